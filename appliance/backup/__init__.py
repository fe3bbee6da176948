"""In charge of backups: one file with everything an installation needs to go on elsewhere."""
