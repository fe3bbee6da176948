"""The systemd service: the unit, its user and directories, and the steps that install and remove them."""
