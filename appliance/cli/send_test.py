"""`appliance send-test`: queues a test message as the dashboard does, and reports its delivery."""

import sys
from typing import TYPE_CHECKING, Any

import click

from appliance.cli import database
from appliance.cli.options import PRINTABLE, common, flag, number_option, text_option
from appliance.cli.output import printable, show
from appliance.environment import Environment

if TYPE_CHECKING:
    from appliance.config.settings import Config
    from appliance.model.accounts import Account
    from appliance.store import Store

WAIT_SECONDS = 120  # by default
ASK_EVERY = 0.25  # seconds between two reads of the message's status


@click.command("send-test")
@click.argument("words", nargs=-1, type=PRINTABLE, metavar="ADDRESS")
@database.account_option
@text_option("--to", "ADDRESS", "Recipient, instead of the argument.", hidden=True)
@text_option("--from", "ADDRESS", "Sender (default test@ the account's first domain).", "sender")
@flag("--wait", "Wait until it is delivered, rejected or deferred, and print the server's reply.")
@number_option("--timeout", WAIT_SECONDS, 86_400, "Maximum time to wait.", metavar="SECONDS")
@common
def send_test(
    words: tuple[str, ...], account: str | None, to: str | None, sender: str | None, wait: bool, timeout: int
) -> None:
    """Send a short test message to ADDRESS. It costs no credit and is really delivered.

    A running server sends it within two seconds; otherwise it stays queued. With --wait the exit code is 0 if it is
    delivered, and 1 if it is rejected or deferred, still queued after the timeout, or no server runs.

    Examples:
      appliance send-test you@example.net --wait
      appliance send-test --account acme you@example.net --from hello@acme.example
    """
    settings = database.load_settings()
    if not words and to is None:
        raise click.UsageError("Missing argument 'ADDRESS'.")
    name, address = database.name_and_last(words if to is None else (*words, to), account)
    name = database.only_account(name)

    async def work(store: "Store") -> dict[str, Any]:
        account = await store.accounts.named(name)
        message_id = await queue_test(store, settings, account, address, sender)
        runs = await database.server_runs(store, settings)
        until = Environment().now() + timeout * 1_000_000 if wait and runs else 0
        return await result_of(store, settings, message_id, until) | {"server_running": runs}

    answer = database.run(work, settings=settings)
    text = f"{answer['id']} from {answer['from']} to {answer['to']}\n{answer['explanation']}"
    if not answer["server_running"]:
        from appliance.system.service import start_advice

        text += f"\nNo server is running: the message is sent once one starts. {start_advice(settings)}"
    elif not wait:
        text += f"\nSee its delivery: appliance explain {answer['id']}"
    show(answer, "\n".join(map(printable, text.split("\n"))))
    if wait and answer["status"] != "delivered":
        raise click.ClickException(f"{answer['id']} is not delivered: it is {answer['status']}")


async def queue_test(store: "Store", settings: "Config", account: "Account", to: str, sender: str | None) -> str:
    from appliance.intake.account_rules import TEST_SUBJECT, TEST_TEXT, test_sender
    from appliance.intake.services import build_services
    from appliance.message.schema import SendRequest
    from appliance.model.ramp import in_force

    key, env = await database.installation_key(store, settings), Environment()
    intake = build_services(settings, env, store, key).intake
    store.ramping.plan = in_force(await store.ramp.stored(), settings)
    caller = await store.access.caller_by_account(account.id)
    assert caller is not None  # noqa: S101 - the account exists
    intake.check_open(caller)
    request = SendRequest(sender=sender or test_sender(caller), to=to, subject=TEST_SUBJECT, text=TEST_TEXT)
    return (await intake.send_test(caller, request, env.identifier("req"))).id


async def result_of(store: "Store", settings: "Config", message_id: str, until: int) -> dict[str, Any]:
    """Return the message's status once it is final or deferred, or at `until`; print each step on a terminal."""
    import trio

    from appliance.model.mail import RecipientStatus
    from appliance.model.ramp import sources_in_use
    from appliance.report.explain import clock, standing

    printed, attempts = "", len(settings.delivery.retry_delays) + 1
    while True:
        sent = await store.records.of(message_id)
        if sent is None:
            raise click.ClickException(f"message {message_id} was deleted meanwhile")
        (tried,), now = sent.recipients, Environment().now()
        table, stream = sources_in_use(settings, store.ramping.plan), sent.message.stream
        pools = await store.pools.views({tried.domain}, settings.warmup, sent.account_id, stream, table)
        explanation, status = standing(tried, pools[tried.domain], now, attempts), tried.recipient.status
        if tried.next_attempt_at is None or status is RecipientStatus.DEFERRED or not until:
            break
        if explanation != printed and sys.stderr.isatty():
            click.echo(printable(f"{clock(now, now)} {explanation}"), err=True)
        printed = explanation
        if now >= until:
            break
        await trio.sleep(ASK_EVERY)
    answer = {"id": message_id, "account": sent.account_name, "from": sent.message.sender}
    return answer | {"to": tried.recipient.email, "status": status.value, "explanation": explanation}
