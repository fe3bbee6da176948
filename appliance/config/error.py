"""In charge of the one line that says why the program cannot start with its settings."""


class ConfigError(Exception):
    """The program cannot start like this; the text is one line: file, key, reason."""

    def __init__(self, *parts: str) -> None:
        line = ": ".join(parts)
        # A key or value may hold anything TOML can escape; it must not break the line or drive the terminal.
        super().__init__("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line))
