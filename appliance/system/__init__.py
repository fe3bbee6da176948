"""What the program asks of the operating system, besides sockets."""
