"""`appliance pause` and `appliance resume`: hold all mail, and let it go again."""

from typing import TYPE_CHECKING

import click

from appliance.cli import database
from appliance.cli.options import PRINTABLE, common
from appliance.cli.output import show

if TYPE_CHECKING:
    from appliance.model.queue import AllWaiting
    from appliance.store import Store


@click.command()
@click.option(
    "--reason", type=PRINTABLE, default="paused by the operator", show_default=True, help="Shown with the pause."
)
@common
def pause(reason: str, as_json: bool) -> None:
    """Hold all mail and webhook posts until `appliance resume`; new mail is accepted and waits.

    \b
    Examples:
      appliance pause
      appliance pause --reason 'the address is being moved'
    """
    from appliance.store.pools import EVERY

    async def work(store: "Store") -> str:
        await store.pools.hold(EVERY, reason)
        hold = await store.pools.paused()
        return reason if hold is None else hold.reason

    kept = database.run(work)
    show(as_json, {"paused": True, "reason": kept}, f"Delivery is paused: {kept}")


@click.command()
@click.option("--cancel-old", is_flag=True, help="First give up what was accepted before the pause began.")
@common
def resume(cancel_old: bool, as_json: bool) -> None:
    """Let mail go again that a restored backup, or `appliance pause`, holds.

    With --cancel-old what was accepted before the pause fails instead, its credits go back and its events are sent: for
    a restored backup whose mail has been sent since.

    \b
    Examples:
      appliance resume
      appliance resume --cancel-old
    """
    from appliance.store.pools import EVERY

    async def work(store: "Store") -> "tuple[bool, int, AllWaiting]":
        hold, cancelled = await store.pools.paused(), 0
        if hold is not None and cancel_old:
            cancelled = await store.queue_control.cancel_older(hold.held_at, "given up when delivery was resumed")
        return await store.pools.release(EVERY), cancelled, await store.queue_control.totals()

    was_paused, cancelled, waiting = database.run(work)
    answer = {"was_paused": was_paused, "cancelled": cancelled, "due": waiting.due, "deferred": waiting.deferred}
    given_up = f"Given up: {cancelled}. " if cancel_old else ""
    text = f"{given_up}Delivery is resumed. Recipients due now: {waiting.due}, later: {waiting.deferred}."
    show(as_json, answer, text if was_paused else "Delivery was not paused.")
