"""The client libraries, one folder for each language, and what checks all of them (`clients.conformance`)."""
