"""`appliance ramp`: the share of mail that goes direct while a relay still delivers the rest."""

from typing import TYPE_CHECKING, Any

import click

from appliance.cli import database
from appliance.cli.options import CommandGroup, common, is_json, listing, text_option
from appliance.cli.output import show, show_list
from appliance.environment import Environment

if TYPE_CHECKING:
    from appliance.config.settings import Config
    from appliance.model.ramp import RampComparison, RampFigures, RampPlan
    from appliance.store import Store

RAMP_COLUMNS = {"provider": "PROVIDER", "route": "ROUTE", "delivered": "DELIVERED", "deferred": "DEFERRED"}
RAMP_COLUMNS |= {"bounced": "BOUNCED", "complaints": "COMPLAINTS", "time": "MEAN TIME"}

POOLS = database.completed("pool")
_HELP = "Move mail from a relay to direct delivery step by step. Without a command, show the ramp."
ramp = CommandGroup("ramp", _HELP, default="show")


@ramp.command("show", reads=True)
@listing
def show_all() -> None:
    """Show the percentages, the results of both routes in the last 24 hours, and a suggestion.

    Examples:
      appliance ramp
      appliance ramp --json
    """
    from appliance.model.ramp import in_force

    settings = database.load_settings()

    async def work(store: "Store") -> "tuple[RampPlan | None, RampComparison | None]":
        plan = in_force(await store.ramp.stored(), settings)
        return plan, None if plan is None else await store.ramp.comparison(plan, settings.warmup)

    plan, comparison = database.run(work, settings=settings, or_nothing=lambda: (in_force(None, settings), None))
    if is_json() or plan is None:
        show(_answer(plan), f"The ramp is off. {_off(settings)}")
        return
    click.echo(_worded(plan))
    if comparison is not None:
        rows = [_row(figures) for figures in comparison.figures]
        show_list({"figures": rows}, RAMP_COLUMNS, "No results in the last 24 hours.", ("time", "complaints"))
        for suggested in comparison.suggestions:
            name = suggested.provider or "all providers without a percentage of their own"
            click.echo(f"Suggestion for {name}: {suggested.action} ({suggested.percent} %): {suggested.reason}.")


@ramp.command("set", action="ramp.changed")
@click.argument("percent", type=click.IntRange(0, 100))
@text_option("--provider", "NAME", "Change only this provider, such as google. It keeps its own percentage.", **POOLS)
@common
def set_percent(percent: int, provider: str | None) -> None:
    """Send PERCENT of the recipients direct, and the others by the relay. This turns `auto` off.

    The percentage is stored and wins over the settings until `ramp reset`. A running server follows within a second.
    A recipient whose delivery was attempted keeps its route.

    Examples:
      appliance ramp set 5
      appliance ramp set 25 --provider google
    """
    from msgspec.structs import replace

    settings, now = _usable(provider), Environment().now()

    def changed(stored: "RampPlan", plan: "RampPlan | None") -> "RampPlan":
        if provider and plan is None:
            raise click.ClickException("The ramp is off. First set a percentage for all: appliance ramp set 0")
        return replace(stored.having(provider or "", percent, now), auto=False)

    _change(settings, changed)


@ramp.command(action="ramp.changed")
@text_option("--provider", "NAME", "Remove only the percentage of this provider.", **POOLS)
@common
def reset(provider: str | None) -> None:
    """Forget all stored percentages and `auto`: the settings count again.

    Examples:
      appliance ramp reset
      appliance ramp reset --provider google
    """
    _change(_usable(provider), lambda stored, _: stored.without(provider) if provider else None)


@ramp.command(action="ramp.changed")
@click.argument("state", type=click.Choice(["on", "off"]), required=False)
@common
def auto(state: str | None) -> None:
    """Raise and lower the percentages by the suggestions, or show whether this is on.

    docs/ramp.md lists the rules. `ramp set` and `ramp reset` turn it off.

    Examples:
      appliance ramp auto on
      appliance ramp auto --json
    """
    from msgspec.structs import replace

    settings = _usable(None)

    def changed(stored: "RampPlan", plan: "RampPlan | None") -> "RampPlan":
        if plan is None:
            raise click.ClickException("The ramp is off. Start it: appliance ramp set 5")
        return replace(stored, auto=state == "on", percent=plan.percent)

    if state is not None:
        plan = _stored(settings, changed)
    else:
        plan = database.run(lambda store: store.ramp.stored(), settings=settings, or_nothing=lambda: None)
    is_on = plan is not None and plan.auto
    show({"auto": is_on}, f"Automatic changes of the percentages are {'on' if is_on else 'off'}.")


def _usable(provider: str | None) -> "Config":
    from appliance.config.checks import ramp_refusal
    from appliance.deliver.providers import pool_names

    settings = database.load_settings()
    if (reason := ramp_refusal(settings.delivery)) is not None:
        raise click.ClickException(f"The ramp {reason}.")
    if provider is not None and provider not in (known := pool_names(settings)):
        raise click.ClickException(f"There is no provider {provider}. Known: {', '.join(sorted(known))}.")
    return settings


def _stored(settings: "Config", changed: Any) -> "RampPlan | None":
    """Store what `changed` makes of the stored plan and the plan in force; None forgets it."""
    from appliance.model.ramp import in_force

    async def work(store: "Store") -> "RampPlan | None":
        return await store.ramp.change(lambda stored: changed(stored, in_force(stored, settings)))

    return database.run(work, settings=settings, create=True)


def _change(settings: "Config", changed: Any) -> None:
    from appliance.model.ramp import in_force

    plan = in_force(_stored(settings, changed), settings)
    show(_answer(plan), f"The ramp is off. {_off(settings)}" if plan is None else _worded(plan))


def _answer(plan: "RampPlan | None") -> dict[str, Any]:
    return {"percent": plan and plan.percent, "providers": plan.providers if plan else {}}


def _off(settings: "Config") -> str:
    from appliance.config.checks import ramp_refusal

    reason = ramp_refusal(settings.delivery)
    return "Start it: appliance ramp set 5" if reason is None else f"It {reason}."


def _worded(plan: "RampPlan") -> str:
    own = "".join(f"\n{name}: {percent} %" for name, percent in sorted(plan.providers.items()))
    state = f"\nChanges automatically{f'; last: {plan.reason}' if plan.reason else ''}." if plan.auto else ""
    return f"{plan.percent} % of the recipients go direct, the others by the relay.{own}{state}"


def _row(figures: "RampFigures") -> dict[str, Any]:
    counts = {name: getattr(figures, name) for name in ("provider", "delivered", "deferred", "complaints")}
    time = "" if figures.mean_seconds is None else f"{figures.mean_seconds:g} s"
    return counts | {"route": figures.route.value, "bounced": figures.bounced + figures.failed, "time": time}
