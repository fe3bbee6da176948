"""HTTP: the API for sending and for managing accounts, and the dashboard."""
