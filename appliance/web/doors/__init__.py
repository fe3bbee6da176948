"""Doors: the HTTP APIs of other providers, for their clients. `frame.py` says what a door consists of."""
