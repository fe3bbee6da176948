"""`appliance webhook …`: sets, tests and replays the webhook of an account."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from appliance.cli import database
from appliance.cli.options import CommandGroup, flag
from appliance.cli.output import printable, record, show, show_record
from appliance.environment import Environment

if TYPE_CHECKING:
    from appliance.config.settings import Config
    from appliance.model.accounts import Account
    from appliance.model.webhooks import Webhook, WebhookDelivery
    from appliance.store import Store

EVENTS = ("delivered", "bounced", "failed", "delayed", "late_bounced", "complained", "received")
FORMATS = ("native", "resend", "postmark", "mailgun", "sendgrid")
POST_SECONDS = 30  # to wait for the first attempt: the server notices within 5, and an attempt takes at most 5
POST_ASKED_EVERY = 0.25  # seconds between two reads of a post's result

webhook = CommandGroup("webhook", "Manage the webhook of an account: where its events are posted.")


@webhook.command("show", reads=True)
@database.of_only_account
def show_one(name: str) -> None:
    """Show the webhook of the account, without its secret."""
    settings = database.load_settings()

    async def work(store: "Store") -> "tuple[Account, dict[str, Any] | None]":
        account = await store.accounts.named(name)
        webhook = await store.webhooks.of(account.id)
        return account, None if webhook is None else await _row(webhook, store, settings)

    account, row = database.run(work, settings=settings)
    if row is None:
        nothing = (
            f"Account {account.name} has no webhook. Create one: appliance webhook set --account {account.name} URL"
        )
        show({"account": account.name, "webhook": None}, nothing)
        return
    worded = row | {"events": " ".join(row["events"])}
    show_record({"account": account.name, "webhook": row}, {"account": account.name} | worded)


@webhook.command("set", action="webhook.saved")
@database.of_only_account_and("URL")
@click.option(
    "--event",
    "events",
    type=click.Choice(EVENTS),
    multiple=True,
    help="Event type to send; repeatable (default: keep the current ones, at first delivered, bounced, failed).",
)
@click.option("--enable/--disable", "enabled", default=None, help="Turn posts on or off (default: unchanged).")
@click.option(
    "--format",
    "shape",
    type=click.Choice(FORMATS),
    help="Shape of the events: ours, or that of another provider (default: unchanged, at first native).",
)
def set_url(name: str, url: str, events: tuple[str, ...], enabled: bool | None, shape: str | None) -> None:
    """Post the events of the account to URL. The signing secret is shown only when it is created.

    Examples:
      appliance webhook set https://hooks.acme.example/mail
      appliance webhook set --account acme https://hooks.acme.example/mail --event bounced --event complained
      appliance webhook set --account acme https://hooks.acme.example/mail --disable
    """
    from appliance.keys.secrets import WebhookSecrets
    from appliance.model.webhooks import RESULT_EVENTS, EventType, WebhookFormat, WebhookOptions

    settings = database.load_settings()

    async def work(store: "Store") -> "tuple[Account, dict[str, Any], str | None]":
        account = await store.accounts.named(name)
        await _check_url(url, store, settings)
        known, env = await store.webhooks.of(account.id), Environment()
        chosen = {f"email.{event}" for event in events} or set(RESULT_EVENTS if known is None else known.events)
        is_enabled = (known is None or known.enabled) if enabled is None else enabled
        form = WebhookFormat(shape or (WebhookFormat.NATIVE if known is None else known.format))
        options = WebhookOptions(url, tuple(event for event in EventType if event in chosen), is_enabled, form)
        new_id = env.identifier("whk")
        secret, sealed = WebhookSecrets(await database.installation_key(store, settings), env).fresh(new_id)
        saved, made = await store.webhooks.save(account.id, options, new_id, sealed)
        return account, await _row(saved, store, settings), secret if made else None

    account, row, secret = database.run(work, settings=settings)
    text = f"Events of account {account.name} are posted to {row['url']}: {' '.join(row['events'])}"
    if not row["enabled"]:
        text = f"The webhook of account {account.name} to {row['url']} is disabled."
    if "public_key" in row:
        text += f"\nPublic key that verifies its signatures: {row['public_key']}"
    if secret is not None:
        text += f"\nSigning secret, shown only once: {secret}"
    show({"account": account.name, "webhook": row, "secret": secret}, text)


@webhook.command(action="webhook.deleted")
@database.of_only_account
def remove(name: str) -> None:
    """Delete the webhook of the account, its pending posts and its history."""

    async def work(store: "Store") -> "Account":
        account = await store.accounts.named(name)
        await _existing(store, account)
        await store.webhooks.delete(account.id)
        return account

    account = database.run(work)
    show({"account": account.name, "removed": True}, f"Removed the webhook of account {account.name}.")


wait_option = flag("--wait", "Wait for the first response and print it.")


@webhook.command()
@database.of_only_account
@wait_option
def ping(name: str, wait: bool) -> None:
    """Post a test event to the webhook of the account, at most every 15 seconds.

    A running server posts it within a few seconds. With --wait the exit code is 0 for a 2xx response, otherwise 1.

    Example:
      appliance webhook ping --wait
    """
    _post("A test event", name, lambda store, account_id: store.webhook_history.ping(account_id), wait)


@webhook.command()
@database.of_only_account_and("DELIVERY")
@wait_option
def replay(name: str, delivery: str, wait: bool) -> None:
    """Post the event of DELIVERY again; GET /v1/webhook/deliveries and the dashboard list the ids.

    The post has a new signature and the event id of the first post, so that a receiver can detect the duplicate. With
    --wait the exit code is 0 for a 2xx response, otherwise 1.

    Example:
      appliance webhook replay whd_0019a85f3c6d7c2e4f1b0a9d8e7c6b5a --wait
    """
    _post("The event", name, lambda store, account_id: store.webhook_history.replay(account_id, delivery), wait)


def _post(what: str, name: str, begin: "Callable[[Store, str], Awaitable[WebhookDelivery]]", wait: bool) -> None:
    settings = database.load_settings()

    async def work(store: "Store") -> "tuple[Account, WebhookDelivery, bool]":
        account = await store.accounts.named(name)
        await _existing(store, account)
        posted, runs = await begin(store, account.id), await database.server_runs(store, settings)
        return account, await _attempted(store, account, posted) if wait and runs else posted, runs

    account, posted, runs = database.run(work, settings=settings)
    answer: dict[str, Any] = {"account": account.name, "server_running": runs}
    answer |= record(posted, "id", "event_id", "url", "response_status", "error", "duration_ms", "created_at")
    ok = posted.response_status is not None and 200 <= posted.response_status < 300
    show(answer, _described(what, posted, runs=runs, ok=ok))
    if wait and not ok:
        raise click.ClickException("the receiver did not return a 2xx status")


def _described(what: str, posted: "WebhookDelivery", *, runs: bool, ok: bool) -> str:
    if not runs:
        return f"{what} for {posted.url} is pending. No server is running: it is posted once one starts."
    if posted.attempted_at is None:
        return f"{what} is on its way to {posted.url}"
    if posted.response_status is None:
        return f"{posted.url} was not reached: {printable(posted.error or 'unknown reason')}"
    retried = "" if ok else ": expected a 2xx status; the post is retried"
    return f"{posted.url} returned {posted.response_status} after {posted.duration_ms} ms{retried}"


async def _attempted(store: "Store", account: "Account", posted: "WebhookDelivery") -> "WebhookDelivery":
    import trio

    with trio.move_on_after(POST_SECONDS):
        while posted.attempted_at is None:
            await trio.sleep(POST_ASKED_EVERY)
            newest = await store.webhook_history.page(account.id, None, None, 100)
            posted = next((delivery for delivery in newest if delivery.id == posted.id), posted)
    return posted


async def _existing(store: "Store", account: "Account") -> None:
    if await store.webhooks.of(account.id) is None:
        hint = f"create one with `appliance webhook set --account {account.name} URL`"
        raise click.ClickException(f"account {account.name} has no webhook: {hint}")


async def _check_url(url: str, store: "Store", settings: "Config") -> None:
    from appliance.dns.resolver import DnsResolver
    from appliance.webhook.dispatcher import build_poster

    resolver, others = DnsResolver(settings.dns.resolvers), store.engine.others
    poster = build_poster(settings, resolver, Environment(), lambda: others().addresses)
    if (fault := await poster.check(url)) is not None:
        raise click.ClickException(f"url: {fault}")


async def _row(webhook: "Webhook", store: "Store", settings: "Config") -> dict[str, Any]:
    from appliance.keys.secrets import WebhookSecrets
    from appliance.webhook.signatures import public_key

    row = {"url": webhook.url, "events": [event.value for event in webhook.events], "enabled": webhook.enabled}
    secrets = WebhookSecrets(await database.installation_key(store, settings), Environment())
    row |= {"format": webhook.format.value}
    if (key := public_key(secrets, webhook)) is not None:
        row["public_key"] = key
    return row | record(webhook, "secret_hint", "created_at", "updated_at", "last_success_at", "last_failure_at")
