"""Options and argument types that all commands share."""

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import click

from appliance.times import DAY, HOUR, MINUTE, SECOND

F = TypeVar("F", bound=Callable[..., Any])

_CONFIG = "appliance.config"  # in ctx.meta, which a command shares with its groups
LATEST = 2**53  # microseconds, in the year 2255: what an id has bits for
MAX_NUMBER = 10**15  # the store's own limit, MAX_CREDITS; not imported, because that takes longer than the command


def _keep_config(ctx: click.Context, _: click.Parameter, value: Path | None) -> None:
    if value is not None:
        ctx.meta[_CONFIG] = value


# On the command and on every group; the one nearest to the command counts.
config_option = click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    expose_value=False,
    callback=_keep_config,
    help="Settings (TOML). Else $APPLIANCE_CONFIG, ./config.toml, /etc/appliance/config.toml.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for scripts.")


def common(command: F) -> F:
    """Add --config and --json."""
    return config_option(json_option(command))


def of_account(command: F) -> F:
    """Add the argument NAME, --config and --json."""
    return click.argument("name", type=PRINTABLE)(common(command))


def named_config() -> Path | None:
    value: Path | None = click.get_current_context().meta.get(_CONFIG)
    return value


class Text(click.ParamType[str]):
    """Printable text: anything else cannot be a name."""

    name = "text"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value or not value.isprintable():
            self.fail("must be printable text, and not empty", param, ctx)
        return value


class NumberOr(click.ParamType[str | int]):
    """A whole number, or the one word that may stand in its place."""

    name = "number"

    def __init__(self, word: str, pattern: str, what: str) -> None:
        self.word, self.pattern, self.what = word, re.compile(pattern), what

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> str | int:
        """The number, or the word (not None, which click takes for an argument that is missing)."""
        if isinstance(value, int) or value == self.word:
            return value
        if not self.pattern.fullmatch(value) or abs(int(value)) > MAX_NUMBER:
            self.fail(f"{value!r} is not {self.what}, nor {self.word!r}", param, ctx)
        return int(value)


class TimeAgo(click.ParamType[int]):
    """A span until now, a date, or a time of UTC; as microseconds since 1970."""

    name = "time"
    span = re.compile(r"([0-9]{1,6})([mhdw])")
    units: ClassVar = {"m": MINUTE, "h": HOUR, "d": DAY, "w": 7 * DAY}

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The time; the clock is read here."""
        if isinstance(value, int):
            return value
        now = time.time_ns() // 1000
        if found := self.span.fullmatch(value):
            return max(0, now - int(found[1]) * self.units[found[2]])
        try:
            moment = datetime.fromisoformat(value)
            seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is neither a span such as 30m, 12h or 2d, nor a date such as 2026-11-15", param, ctx)
        return min(max(0, round(seconds * SECOND)), LATEST)


class TimeAhead(click.ParamType[int]):
    """A span from now on, a date, or a time of UTC; as microseconds since 1970."""

    name = "time"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The time; the clock is read here."""
        if isinstance(value, int):
            return value
        now = time.time_ns() // 1000
        if found := TimeAgo.span.fullmatch(value):
            at = now + int(found[1]) * TimeAgo.units[found[2]]
        else:
            at = TIME_AGO.convert(value, param, ctx)
        if not now < at < LATEST:
            self.fail(f"{value!r} is not a time to come, such as 90d or 2027-01-31", param, ctx)
        return at


class TimeSpan(click.ParamType[int]):
    """A length of time, as microseconds."""

    name = "span"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The microseconds; 0 needs no unit."""
        if isinstance(value, int):
            return value
        found = TimeAgo.span.fullmatch(value)
        if found is None and value != "0":
            self.fail(f"{value!r} is not a span such as 30m, 24h or 7d, nor 0", param, ctx)
        return int(found[1]) * TimeAgo.units[found[2]] if found else 0


def number(value: str | int) -> int | None:
    """The number of a NumberOr; None for its word."""
    return value if isinstance(value, int) else None


PRINTABLE = Text()
TIME_AGO = TimeAgo()
TIME_AHEAD = TimeAhead()
SPAN = TimeSpan()
