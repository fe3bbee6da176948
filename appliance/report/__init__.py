"""Texts on the state of mail, for the command line, the API and the dashboard."""
