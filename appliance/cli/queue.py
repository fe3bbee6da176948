"""`appliance queue …`, `pause` and `resume`: queued mail by pool, and stopping delivery of a pool or of everything."""

from typing import TYPE_CHECKING, Any

import click

from appliance.cli import database, options
from appliance.cli.options import (
    PRINTABLE,
    TIME_AHEAD,
    Command,
    CommandGroup,
    common,
    flag,
    is_json,
    listing,
    text_option,
)
from appliance.cli.output import counted, record, show, show_list
from appliance.environment import Environment
from appliance.errors import Code, Refused
from appliance.times import microseconds, rfc3339

if TYPE_CHECKING:
    from appliance.config.settings import Config
    from appliance.model.queue import AllWaiting, PoolHold, PoolState, ResumedPool, WaitingMail
    from appliance.model.warmup import WarmupStatus
    from appliance.store import Store

    _Queue = tuple[list[WaitingMail], list[PoolHold], list[PoolState], list[WarmupStatus], int, int, AllWaiting]

QUEUE_COLUMNS = {"name": "POOL, DESTINATION", "waiting": "WAITING", "deferred": "DEFERRED", "oldest": "OLDEST"}
QUEUE_COLUMNS |= {"next": "NEXT TRY", "state": "STATE"}
POOLS_LISTED, DESTINATIONS_LISTED = 50, 5  # by default; destinations per pool
# Similarity to a known pool's name from which a name counts as a typing error.
SIMILAR_DOMAIN, SIMILAR_NAME = 0.8, 0.6
NOT_LOOKED_UP, SIMULATED = "(not looked up)", "(sandbox)"  # mail without a pool

_HELP = "Show, retry, cancel, reschedule and pause queued mail. Without a command, show the queue."
queue = CommandGroup("queue", _HELP, default="show")


@queue.command("show", reads=True)
@options.number_option("--pools", POOLS_LISTED, None, "Number of pools to show, largest first.")
@options.number_option("--destinations", DESTINATIONS_LISTED, None, "Number of domains to show per pool.", least=0)
@listing
def show_all(pools: int, destinations: int) -> None:
    """Show queued recipients by pool and destination.

    WAITING recipients are due now; DEFERRED ones had a failed attempt and are retried later. Simulated mail, of the
    sandbox and of test keys, is counted under (sandbox).

    Examples:
      appliance queue show
      appliance queue show --pools 10 --destinations 20
    """
    import msgspec

    from appliance.model.queue import AllWaiting
    from appliance.report.queue import by_pool, pause_of, warming
    from appliance.store.pools import EVERY

    settings = database.load_settings()

    async def work(store: "Store") -> "_Queue":
        # One pool more than is shown, to detect further ones.
        mail = await store.queue_control.summary(pools + 1, destinations)
        warmups = await store.warmups.told(settings.warmup, pools)
        sandbox, total = await store.queue_control.simulated(), await store.queue_control.totals()
        scheduled = await store.scheduled.count()
        return mail, await store.pools.all_holds(), await store.pools.states(), warmups, sandbox, scheduled, total

    mail, holds, states, warmups, sandbox, scheduled, total = database.run(
        work, settings=settings, or_nothing=lambda: ([], [], [], [], 0, 0, AllWaiting(0, 0, None))
    )
    pause = pause_of(next((hold for hold in holds if hold.pool == EVERY), None))
    pool_holds = [hold for hold in holds if hold.pool != EVERY]
    queued: list[dict[str, Any]] = msgspec.to_builtins(by_pool(mail, pool_holds, states))
    shown, more = queued[:pools], len(queued) > pools
    if is_json():
        paused = {} if pause is None else {"paused": msgspec.structs.asdict(pause)}
        warm = {"warmups": [msgspec.structs.asdict(warmup) for warmup in warming(warmups)]} if warmups else {}
        totals = {"sandbox": sandbox, **record(total, "due", "deferred"), "scheduled": scheduled}
        show(paused | {"pools": shown, "more": more} | totals | warm, "")
        return
    if pause is not None:
        click.echo(f"All delivery is paused: {pause.reason}. Resume it: appliance resume")
    now = Environment().now()
    rows = [row for pool in shown for row in _rows(pool, warmups, now)]
    if sandbox:
        rows.append(dict.fromkeys(QUEUE_COLUMNS, "") | {"name": SIMULATED, "waiting": sandbox})
    show_list({"pools": rows}, QUEUE_COLUMNS, "The queue is empty.", ("next", "oldest"))
    if rows:
        click.echo(f"All mail: {counted(total.due, 'recipient')} due, {total.deferred} deferred.")
    if scheduled:
        click.echo(f"{counted(scheduled, 'message')} scheduled for later: appliance message list --scheduled")
    if more:
        click.echo("More pools exist: appliance queue show --pools NUMBER")


@queue.command()
@text_option("--pool", "POOL", "Retry all mail of this pool.", **database.completed("pool"))
@text_option("--domain", "DOMAIN", "Retry all mail to this domain.")
@text_option("--message", "ID", "Retry one message.")
@text_option("--recipient", "ID|ADDRESS", "Retry one recipient, or all mail to one address.")
@common
def retry(pool: str | None, domain: str | None, message: str | None, recipient: str | None) -> None:
    """Retry deferred mail now: everything, or the mail that one option selects. The attempt counts.

    A running server notices within a second. Mail of a paused or slowed pool stays queued.

    Examples:
      appliance queue retry
      appliance queue retry --pool google
      appliance queue retry --recipient user@example.net
    """
    options = {"pool": pool, "domain": domain, "message": message, "recipient": recipient}
    named = {option: value for option, value in options.items() if value is not None}
    if len(named) > 1:
        raise click.UsageError("Use only one of --pool, --domain, --message and --recipient.")
    count = database.run(lambda store: _retry(store, named))
    text = f"{counted(count, 'recipient')} {'is' if count == 1 else 'are'} due now."
    show({"retried": count}, text if count else "No deferred mail matches.")


@queue.command(action="email.cancelled")
@click.argument("message", type=PRINTABLE)
@common
def cancel(message: str) -> None:
    """Cancel the queued and scheduled recipients of MESSAGE: they fail, credits are refunded and events are sent.

    A delivery that is in progress may still succeed.
    """
    count = database.run(lambda store: store.queue_control.cancel(message, "given up by the operator"))
    text = f"Cancelled {counted(count, 'recipient')} of {message}."
    show({"message": message, "cancelled": count}, text)


@queue.command(action="email.rescheduled")
@click.argument("message", type=PRINTABLE)
@click.argument("due_at", type=TIME_AHEAD, metavar="TIME")
@common
def reschedule(message: str, due_at: int) -> None:
    """Move MESSAGE, which is scheduled and not due yet, to TIME: a span from now (2h, 3d), a date or a time.

    A time without an offset is UTC. `message list --scheduled` lists scheduled messages.

    Examples:
      appliance queue reschedule msg_0019a85f3c6d7c2e4f1b0a9d8e7c6b5a 2h
      appliance queue reschedule msg_0019a85f3c6d7c2e4f1b0a9d8e7c6b5a 2026-11-15T13:00:00+01:00
    """
    from appliance.message.schedule import due_time

    async def work(store: "Store") -> None:
        if (stored := await store.records.of(message)) is None:
            raise Refused(Code.NOT_FOUND, f"there is no message {message!r}")
        await store.scheduled.move(stored.account_id, message, due_at)

    with database.refusals():
        due_time(at := rfc3339(due_at), Environment().now(), "TIME")
    database.run(work)
    show({"message": message, "scheduled_at": at}, f"{message} is scheduled for {at}.")


reason_option = options.reason_option("paused by the operator", "Reason to show with the pause.")
pool_argument = click.argument("pool", type=PRINTABLE, **database.completed("pool"))


@queue.command("pause", action="pool.paused")
@pool_argument
@reason_option
@flag("--force", "Pause the pool even if it is not known.")
@common
def pause_pool(pool: str, reason: str, force: bool) -> None:
    """Stop delivery of POOL until it is resumed; open sessions finish.

    Examples:
      appliance queue pause google
      appliance queue pause example.net --reason 'they move to new servers'
    """
    settings = database.load_settings()

    async def work(store: "Store") -> str:
        if not force:
            await _check_known(store, pool, settings)
        await store.pools.hold(pool, reason)
        return (await store.pools.holds())[pool].reason

    kept = database.run(work, settings=settings)
    show({"pool": pool, "held": True, "reason": kept}, f"Pool {pool} is held: {kept}")


@queue.command("resume", action="pool.resumed")
@pool_argument
@common
def resume_pool(pool: str) -> None:
    """Lift all holds and slow-downs of POOL on all nodes, whether the operator or a server set them.

    A running server lifts its slow-down within a second. Deferred mail stays deferred; `queue retry` makes it due.
    """
    resumed = database.run(lambda store: store.pools.resume(pool))
    lifted = _lifted(resumed)
    lines = [f"Pool {pool} is open again.", *(f"Lifted the {_described(entry)}." for entry in lifted)]
    answer = {"pool": pool, "held": False, "was_held": resumed.was_held, "lifted": lifted}
    show(answer, "\n".join(lines) if resumed.was_held else f"Pool {pool} was not held.")


@click.command(cls=Command, action="mail.paused")
@reason_option
@common
def pause(reason: str) -> None:
    """Stop all delivery and webhook posts until `appliance resume`. The server still accepts new mail.

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
    show({"paused": True, "reason": kept}, f"Delivery is paused: {kept}")


@click.command(cls=Command, action="mail.resumed")
@flag("--cancel-old", "First cancel mail that was accepted before the pause.")
@common
def resume(cancel_old: bool) -> None:
    """Resume delivery after `appliance pause` or a restored backup.

    With --cancel-old, mail accepted before the pause fails instead: its credits are refunded and its events are sent.
    Scheduled messages that are due after the pause stay. Use it for a restored backup whose mail has been delivered
    since.

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
    show(answer, text if was_paused else "Delivery was not paused.")


def _lifted(resumed: "ResumedPool") -> list[dict[str, Any]]:
    """Return the lifted holds and slow-downs. `by` names who set them, `until` when they would have expired."""

    def entry(kind: str, by: str, reason: str, until: int | None = None, account: str | None = None) -> dict[str, Any]:
        return {"kind": kind, "by": by, "reason": reason, "until": until and rfc3339(until), "account": account}

    def holder(hold: "PoolHold") -> str:
        return "operator" if hold.probe_at is None else f"node {hold.node}" if hold.node else "server"

    lifted = [entry("hold", holder(hold), hold.reason) for hold in resumed.holds]
    if (state := resumed.slowed) is not None:
        if state.slowed_until is not None:
            lifted.append(entry("slow-down", "server", state.slowed_by or "", state.slowed_until))
        for slowed in state.slowed_accounts:
            lifted.append(entry("slow-down", "server", slowed.reason, slowed.until, slowed.account_id))
    return lifted


def _described(lifted: dict[str, Any]) -> str:
    of_account = f" of account {lifted['account']}" if lifted["account"] else ""
    until = f" until {lifted['until']}" if lifted["until"] else ""
    return f"{lifted['kind']} by the {lifted['by']}{of_account}{until}: {lifted['reason']}"


async def _check_known(store: "Store", pool: str, settings: "Config") -> None:
    """Refuse the name of an unknown pool that is probably a typing error."""
    from difflib import get_close_matches

    from appliance.deliver.providers import pool_names

    known = pool_names(settings) | set(await store.pools.names())
    if pool in known:
        return
    if (through := await store.pools.destination(pool.lower())) is not None:
        raise click.ClickException(f"There is no pool {pool}. Mail to that domain uses pool {through}.")
    # Any domain may become a pool, so a domain unlike all known pools is accepted.
    near = get_close_matches(pool, sorted(known), n=1, cutoff=SIMILAR_DOMAIN if "." in pool else SIMILAR_NAME)
    if "." in pool and not near:
        return
    meant = "".join(f" Did you mean {name}?" for name in near)
    raise click.ClickException(f"There is no pool {pool}.{meant} Use --force to pause it anyway.")


async def _retry(store: "Store", named: dict[str, str]) -> int:
    from appliance.intake import account_rules

    control = store.queue_control
    match named:
        case {"pool": pool}:
            return await control.retry(pool=pool)
        case {"domain": domain}:
            return await control.retry(domain=account_rules.domain_name(domain))
        case {"message": message}:
            return await control.retry_message(message)
        case {"recipient": address} if "@" in address:
            domain = account_rules.domain_name(address.rpartition("@")[2])
            return await control.retry(domain=domain, address=address)
        case {"recipient": recipient}:
            return await control.retry_recipient(recipient)
        case _:
            return await control.retry()


def _rows(pool: dict[str, Any], warmups: "list[WarmupStatus]", now: int) -> list[dict[str, Any]]:
    from appliance.report.explain import span

    in_use = "" if pool["in_use"] is None else f"{pool['in_use']} of {pool['allowed']} in use"
    state = "; ".join(filter(None, (in_use, _state(pool, warmups, now))))
    lines = [pool | {"name": pool["pool"] or NOT_LOOKED_UP, "state": state}]
    lines += [{"name": f"  {row['domain']}", **row, "state": ""} for row in pool["destinations"]]
    for line in lines:  # durations fit into the table, times do not
        oldest, following = line["oldest_at"], line["next_attempt_at"]
        line["oldest"] = span(now - microseconds(oldest)) if oldest else ""
        line["next"] = f"in {span(microseconds(following) - now)}" if following else ""
    return lines


def _state(pool: dict[str, Any], warmups: "list[WarmupStatus]", now: int) -> str:
    from appliance.report.explain import warmup_wait

    if pool["held_because"] is not None:
        return "; ".join(map(_held, pool["held_by"] or [pool]))
    # Both are UTC in one format, so they compare as text.
    if pool["slowed_until"] is not None and pool["slowed_until"] > rfc3339(now):
        return f"slowed until {pool['slowed_until'][11:19]}: {pool['slowed_because']}"
    if pool["slowed_accounts"]:
        count = pool["slowed_accounts"]
        return "1 account's mail slowed down" if count == 1 else f"{count} accounts' mail slowed down"
    return warmup_wait([warmup for warmup in warmups if warmup.pool == pool["pool"]], now) or ""


def _held(hold: dict[str, Any]) -> str:
    by_node, probe = f" by node {hold['node']}" if "node" in hold else "", hold["next_probe_at"]
    return f"held{by_node}: {hold['held_because']}" + (f"; next probe at {probe[11:19]}" if probe else "")
