"""`appliance send-test`: queues a test message as the dashboard does, and tells what becomes of it."""

import sys
from typing import TYPE_CHECKING, Any

import click

from appliance.cli import database
from appliance.cli.options import PRINTABLE, common
from appliance.cli.output import printable, show

if TYPE_CHECKING:
    from appliance.config.settings import Config
    from appliance.model.accounts import Account
    from appliance.store import Store

WAIT_SECONDS = 120  # by default
ASK_EVERY = 0.25  # seconds between two looks at the message


@click.command("send-test")
@click.argument("words", nargs=-1, type=PRINTABLE, metavar="[ACCOUNT] ADDRESS")
@click.option("--to", type=PRINTABLE, metavar="ADDRESS", help="Who gets it, in place of the argument.")
@click.option("--from", "sender", type=PRINTABLE, metavar="ADDRESS", help="Else test@ the account's first domain.")
@click.option("--wait", is_flag=True, help="Wait until it is delivered, refused or deferred, and tell what was said.")
@click.option(
    "--timeout",
    type=click.IntRange(1, 86_400),
    default=WAIT_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait at most.",
)
@common
def send_test(
    words: tuple[str, ...], to: str | None, sender: str | None, wait: bool, timeout: int, as_json: bool
) -> None:
    """Send a short test message of ACCOUNT to ADDRESS, free of charge and really delivered.

    A running server sends it within a second or two; without one it waits in the queue. With --wait the exit code is 0
    once it is delivered, and 1 when it was refused or deferred, still waits, or no server runs.

    \b
    Examples:
      appliance send-test you@example.net --wait
      appliance send-test acme you@example.net --from hello@acme.example
    """
    from appliance.environment import Environment

    settings = database.load_settings()
    if not words and to is None:
        raise click.UsageError("Missing argument 'ADDRESS'.")
    *accounts, address = words if to is None else (*words, to)
    if len(accounts) > 1:
        raise click.UsageError(f"Got unexpected extra argument ({accounts[1]})")
    name = database.only_account(*accounts)

    async def work(store: "Store") -> dict[str, Any]:
        account = await store.accounts.named(name)
        message_id = await queue_test(store, settings, account, address, sender)
        runs = await database.server_runs(store, settings)
        until = Environment().now() + timeout * 1_000_000 if wait and runs else 0
        return await result_of(store, settings, message_id, until) | {"server_running": runs}

    answer = database.run(work, settings=settings)
    text = f"{answer['id']} from {answer['from']} to {answer['to']}\n{answer['explanation']}"
    if not answer["server_running"]:
        text += "\nNo server runs here: it is sent once one does. Start it: appliance serve"
    elif not wait:
        text += f"\nWhat becomes of it: appliance explain {answer['id']}"
    show(as_json, answer, "\n".join(map(printable, text.split("\n"))))
    if wait and answer["status"] != "delivered":
        raise click.ClickException(f"{answer['id']} is not delivered: it is {answer['status']}")


async def queue_test(store: "Store", settings: "Config", account: "Account", to: str, sender: str | None) -> str:
    """The id of the message, which is on disk."""
    from appliance.environment import Environment
    from appliance.intake.accept import TEST_SUBJECT, TEST_TEXT, test_sender
    from appliance.intake.services import build_services
    from appliance.message.schema import SendRequest

    key, env = await database.installation_key(store, settings), Environment()
    intake = build_services(settings, env, store, key).intake
    caller = await store.access.caller_by_account(account.id)
    assert caller is not None  # noqa: S101 - the account was found a moment ago
    intake.check_open(caller)
    request = SendRequest(sender=sender or test_sender(caller), to=to, subject=TEST_SUBJECT, text=TEST_TEXT)
    return (await intake.send_test(caller, request, env.identifier("req"))).id


async def result_of(store: "Store", settings: "Config", message_id: str, until: int) -> dict[str, Any]:
    """Where the message stands, once that is final or deferred, or at `until`; on a terminal each step is a line."""
    import trio

    from appliance.environment import Environment
    from appliance.model.mail import RecipientStatus
    from appliance.report.explain import clock, standing

    told, attempts = "", len(settings.delivery.retry_delays) + 1
    while True:
        found = await store.records.of(message_id)
        if found is None:
            raise click.ClickException(f"message {message_id} is gone")
        (tried,), now = found.recipients, Environment().now()
        pools = await store.pools.views({tried.domain}, settings.warmup, found.account_id)
        explanation, status = standing(tried, pools[tried.domain], now, attempts), tried.recipient.status
        if tried.next_attempt_at is None or status is RecipientStatus.DEFERRED or not until:
            break
        if explanation != told and sys.stderr.isatty():
            click.echo(printable(f"{clock(now, now)} {explanation}"), err=True)
        told = explanation
        if now >= until:
            break
        await trio.sleep(ASK_EVERY)
    answer = {"id": message_id, "account": found.account_name, "from": found.message.sender}
    return answer | {"to": tried.recipient.email, "status": status.value, "explanation": explanation}
