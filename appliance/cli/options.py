"""Groups of commands, options and argument types that several commands share."""

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from appliance.times import DAY, HOUR, LATEST, MINUTE, microseconds

F = TypeVar("F", bound=Callable[..., Any])

# In ctx.meta, which a command shares with its groups.
_CONFIG, _JSON, _WIDE = "appliance.config", "appliance.json", "appliance.wide"
MAX_NUMBER = 10**15  # the store's own limit, MAX_CREDITS; not imported, because that takes longer than the command
_SPAN = re.compile(r"([0-9]{1,6})([mhdw])")
_UNITS = {"m": MINUTE, "h": HOUR, "d": DAY, "w": 7 * DAY}


def _kept_as(key: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def keep(ctx: click.Context, _: click.Parameter, value: Any) -> None:
        if value:
            ctx.meta[key] = value

    return keep


# On the command and on every group; the one nearest to the command counts.
config_option = click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    expose_value=False,
    callback=_kept_as(_CONFIG),
    help="Settings file (default: $APPLIANCE_CONFIG, ./config.toml or /etc/appliance/config.toml).",
)


def _output_flag(name: str, key: str, meaning: str) -> Callable[[F], F]:
    return click.option(name, is_flag=True, expose_value=False, callback=_kept_as(key), help=meaning)


json_option = _output_flag("--json", _JSON, "Print one JSON object.")
wide_option = _output_flag("--wide", _WIDE, "Show all columns, however narrow the terminal is.")


class Command(click.Command):
    """A command. `reads`: it only shows something, and neither upgrades nor creates a database.

    `action` is its name in the audit log. Without one it changes nothing, or the whole installation.
    """

    def __init__(self, *args: Any, action: str = "", reads: bool = False, **options: Any) -> None:
        super().__init__(*args, **options)
        self.action, self.reads = action, reads


class CommandGroup(click.Group):
    """The commands of one noun. Without a command, `default` runs; `aliases` are earlier spellings, not listed."""

    command_class = Command

    def __init__(self, name: str, help: str, aliases: Mapping[str, str] | None = None, default: str = "") -> None:
        super().__init__(name, help=help, no_args_is_help=not default)
        config_option(self)
        self.aliases, self.default = aliases or {}, default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = {*self.commands, *self.aliases, *ctx.help_option_names} & set(args)
        if self.default and not named and not ctx.resilient_parsing and (not args or args[0].startswith("-")):
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        words = self.aliases[args[0]].split() if args[0] in self.aliases else args[:1]
        return super().resolve_command(ctx, [*words, *args[1:]])


def common(command: F) -> F:
    """Add --config and --json."""
    return config_option(json_option(command))


def listing(command: F) -> F:
    """Add --wide, --config and --json."""
    return wide_option(common(command))


def flag(name: str, meaning: str, variable: str | None = None) -> Callable[[F], F]:
    return click.option(name, *([variable] if variable else []), is_flag=True, help=meaning)


def text_option(name: str, metavar: str, meaning: str, variable: str | None = None, **more: Any) -> Callable[[F], F]:
    return click.option(name, *([variable] if variable else []), type=PRINTABLE, metavar=metavar, help=meaning, **more)


def number_option(
    name: str, default: int, most: int | None, meaning: str, least: int = 1, **more: Any
) -> Callable[[F], F]:
    return default_option(name, default, meaning, type=click.IntRange(least, most), **more)


def default_option(name: str, default: object, meaning: str, *variable: str, **more: Any) -> Callable[[F], F]:
    return click.option(name, *variable, default=default, show_default=True, help=meaning, **more)


def reason_option(default: str, meaning: str) -> Callable[[F], F]:
    return default_option("--reason", default, meaning, type=PRINTABLE)


def named_config() -> Path | None:
    value: Path | None = click.get_current_context().meta.get(_CONFIG)
    return value


def is_json() -> bool:
    return bool(click.get_current_context().meta.get(_JSON))


def is_wide() -> bool:
    return bool(click.get_current_context().meta.get(_WIDE))


class Parsed(click.ParamType[Any]):
    """An argument type made of a function; its ValueError is the usage error."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as reason:
            self.fail(str(reason), param, ctx)


def _printable(value: str) -> str:
    if not value or not value.isprintable():
        raise ValueError("must be printable text, and not empty")
    return value


def number_or(word: str, pattern: str, what: str) -> Parsed:
    """A whole number, or this word (not None, which click takes for a missing argument)."""

    def parse(value: str) -> str | int:
        if value == word:
            return value
        if not re.fullmatch(pattern, value) or abs(int(value)) > MAX_NUMBER:
            raise ValueError(f"{value!r} is not {what}, nor {word!r}")
        return int(value)

    return Parsed("number", parse)


def number(value: str | int) -> int | None:
    """The number of a `number_or`; None for its word."""
    return value if isinstance(value, int) else None


def _span(value: str) -> int | None:
    match = _SPAN.fullmatch(value)
    return int(match[1]) * _UNITS[match[2]] if match else None


def _time_ago(value: str) -> int:
    """A span before now, a date, or a UTC time; returns microseconds since 1970."""
    if (span := _span(value)) is not None:
        return max(0, time.time_ns() // 1000 - span)
    try:
        return microseconds(value)
    except ValueError:
        text = f"{value!r} is neither a span such as 30m, 12h or 2d, nor a date such as 2026-11-15"
        raise ValueError(text) from None


def _time_ahead(value: str) -> int:
    """A span from now, a date, or a UTC time; returns microseconds since 1970."""
    span, now = _span(value), time.time_ns() // 1000
    at = _time_ago(value) if span is None else now + span
    if not now < at < LATEST:
        raise ValueError(f"{value!r} is not a time in the future, such as 90d or 2027-01-31")
    return at


def _duration(value: str) -> int:
    span = 0 if value == "0" else _span(value)
    if span is None:
        raise ValueError(f"{value!r} is not a span such as 30m, 24h or 7d, nor 0")
    return span


def _status(value: str) -> str | int:
    if value in ("accepted", "refused"):
        return value
    if re.fullmatch("[2-5][0-9]{2}", value):
        return int(value)
    raise ValueError(f"{value!r} is not a status code such as 202, nor 'accepted' or 'refused'")


PRINTABLE = Parsed("text", _printable)
STATUS = Parsed("status", _status)
TIME_AGO = Parsed("time", _time_ago)
TIME_AHEAD = Parsed("time", _time_ahead)
SPAN = Parsed("span", _duration)
