"""Feedback by mail: the listener that takes it, and the worker that reads it."""
