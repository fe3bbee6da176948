"""Reads feedback, which anyone can send, in linear time and memory within the limits of each module. No I/O."""
