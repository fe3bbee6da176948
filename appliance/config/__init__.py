"""Settings: one TOML file becomes one frozen Config, or an error that names file, key and reason."""
