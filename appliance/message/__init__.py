"""In charge of one message: from the JSON a caller wrote to the bytes that go on the wire, without any I/O."""
