"""`appliance pause` and `appliance resume`: stop and start all delivery."""

from typing import TYPE_CHECKING

import click

from appliance.cli import database
from appliance.cli.options import common, flag, reason_option
from appliance.cli.output import show

if TYPE_CHECKING:
    from appliance.model.queue import AllWaiting
    from appliance.store import Store


@click.command()
@reason_option("paused by the operator", "Reason to show with the pause.")
@common
def pause(reason: str, as_json: bool) -> None:
    """Stop all delivery and webhook posts until `appliance resume`. The server still accepts new mail.

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
@flag("--cancel-old", "First cancel mail that was accepted before the pause.")
@common
def resume(cancel_old: bool, as_json: bool) -> None:
    """Resume delivery after `appliance pause` or a restored backup.

    With --cancel-old, mail accepted before the pause fails instead: its credits are refunded and its events are sent.
    Use it for a restored backup whose mail has been delivered since.

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
    before = f"Cancelled: {cancelled}. " if cancel_old else ""
    text = f"{before}Delivery is resumed. Recipients due now: {waiting.due}, later: {waiting.deferred}."
    show(as_json, answer, text if was_paused else "Delivery was not paused.")
