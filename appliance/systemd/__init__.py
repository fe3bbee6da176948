"""In charge of being a systemd service: the unit, its user and its directories, and how they are put on a machine."""
