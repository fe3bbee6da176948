"""`appliance webhook …`: where an account's events are posted, which ones, and a test of it."""

from typing import TYPE_CHECKING, Any

import click

from appliance.cli import database
from appliance.cli.options import config_option
from appliance.cli.output import printable, record, show, show_record

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from appliance.config.settings import Config
    from appliance.model.accounts import Account
    from appliance.model.webhooks import Webhook, WebhookDelivery
    from appliance.store import Store

EVENTS = ("delivered", "bounced", "failed", "delayed", "late_bounced", "complained")
POST_SECONDS = 30  # to wait for the first attempt: it is seen within 5, and takes 5 at most
POST_ASKED_EVERY = 0.25  # seconds between two looks at a post


@click.group()
@config_option
def webhook() -> None:
    """Webhooks: where the results of an account's mail are posted."""


@webhook.command("show")
@database.of_only_account
def show_one(name: str, as_json: bool) -> None:
    """Show the webhook of the account NAME. Its secret is not shown again.

    \b
    Examples:
      appliance webhook show
      appliance webhook show acme --json
    """

    async def work(store: "Store") -> "tuple[Account, Webhook | None]":
        account = await store.accounts.named(name)
        return account, await store.webhooks.of(account.id)

    account, found = database.run(work)
    if found is None:
        nothing = f"Account {account.name} has no webhook. Make one: appliance webhook set {account.name} URL"
        show(as_json, {"account": account.name, "webhook": None}, nothing)
        return
    row = _row(found)
    worded = row | {"events": " ".join(row["events"])}
    show_record(as_json, {"account": account.name, "webhook": row}, {"account": account.name} | worded)


@webhook.command("set")
@database.of_only_account_and("URL")
@click.option(
    "--event",
    "events",
    type=click.Choice(EVENTS),
    multiple=True,
    help="Post this; give it once for each. Else those it has, and at first delivered, bounced and failed.",
)
@click.option("--enable/--disable", "enabled", default=None, help="Whether anything is posted. Else as it is.")
def set_url(name: str, url: str, events: tuple[str, ...], enabled: bool | None, as_json: bool) -> None:
    """Post the events of the account NAME to URL. The secret that signs them is shown only when it is made.

    \b
    Examples:
      appliance webhook set https://hooks.acme.example/mail
      appliance webhook set acme https://hooks.acme.example/mail --event bounced --event complained
      appliance webhook set acme https://hooks.acme.example/mail --disable
    """
    from appliance.environment import Environment
    from appliance.keys.webhook_secrets import WebhookSecrets
    from appliance.model.webhooks import RESULT_EVENTS, EventType, WebhookOptions

    settings = database.load_settings()

    async def work(store: "Store") -> "tuple[Account, Webhook, str | None]":
        account = await store.accounts.named(name)
        await _check_url(url, store, settings)
        known, env = await store.webhooks.of(account.id), Environment()
        wanted = {f"email.{each}" for each in events} or set(RESULT_EVENTS if known is None else known.events)
        is_enabled = (known is None or known.enabled) if enabled is None else enabled
        options = WebhookOptions(url, tuple(each for each in EventType if each in wanted), is_enabled)
        new_id = env.identifier("whk")
        secret, sealed = WebhookSecrets(await database.installation_key(store, settings), env).fresh(new_id)
        saved, made = await store.webhooks.save(account.id, options, new_id, sealed)
        return account, saved, secret if made else None

    account, saved, secret = database.run(work, settings=settings)
    row = _row(saved)
    text = f"Events of account {account.name} are posted to {saved.url}: {' '.join(row['events'])}"
    if not saved.enabled:
        text = f"The webhook of account {account.name} is disabled; it leads to {saved.url}"
    if secret is not None:
        text += f"\nIt signs with this secret, which is shown only now: {secret}"
    show(as_json, {"account": account.name, "webhook": row, "secret": secret}, text)


@webhook.command()
@database.of_only_account
def remove(name: str, as_json: bool) -> None:
    """Delete the webhook of the account NAME, what waits for it, and its history.

    \b
    Example:
      appliance webhook remove acme
    """

    async def work(store: "Store") -> "Account":
        account = await store.accounts.named(name)
        await _existing(store, account)
        await store.webhooks.delete(account.id)
        return account

    account = database.run(work)
    show(as_json, {"account": account.name, "removed": True}, f"Account {account.name} has no webhook any more.")


wait_option = click.option("--wait", is_flag=True, help="Wait for the first answer, and tell it.")


@webhook.command()
@database.of_only_account
@wait_option
def ping(name: str, wait: bool, as_json: bool) -> None:
    """Have a test event posted to the webhook of the account NAME, at most every 15 seconds.

    A running server posts it within a few seconds. With --wait the exit code is 0 if the answer was a 2xx, else 1.

    \b
    Examples:
      appliance webhook ping --wait
      appliance webhook ping acme --json
    """
    _post("A test event", name, lambda store, account_id: store.webhook_history.ping(account_id), wait, as_json)


@webhook.command()
@database.of_only_account_and("DELIVERY")
@wait_option
def replay(name: str, delivery: str, wait: bool, as_json: bool) -> None:
    """Post the event of DELIVERY again, as it is in the history: GET /v1/webhook/deliveries, or the dashboard.

    It is signed anew, and has the id of the first post, so that a receiver can tell it. With --wait the exit code is 0
    if the answer was a 2xx, else 1.

    \b
    Examples:
      appliance webhook replay whd_0019a85f3c6d7c2e4f1b0a9d8e7c6b5a --wait
      appliance webhook replay acme whd_0019a85f3c6d7c2e4f1b0a9d8e7c6b5a --json
    """
    _post(
        "The event", name, lambda store, account_id: store.webhook_history.replay(account_id, delivery), wait, as_json
    )


def _post(
    what: str, name: str, begin: "Callable[[Store, str], Awaitable[WebhookDelivery]]", wait: bool, as_json: bool
) -> None:
    """Begin a post by hand, and tell what became of it."""
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
    show(as_json, answer, _told(what, posted, runs=runs, ok=ok))
    if wait and not ok:
        raise click.ClickException("the receiver has not answered with a 2xx")


def _told(what: str, posted: "WebhookDelivery", *, runs: bool, ok: bool) -> str:
    if not runs:
        return f"{what} for {posted.url} waits. No server runs here: it is posted once one does."
    if posted.attempted_at is None:
        return f"{what} is on its way to {posted.url}"
    if posted.response_status is None:
        return f"{posted.url} was not reached: {printable(posted.error or 'no reason is known')}"
    return f"{posted.url} answered {posted.response_status} after {posted.duration_ms} ms" + (
        "" if ok else ": expected is a 2xx; it is tried again"
    )


async def _attempted(store: "Store", account: "Account", posted: "WebhookDelivery") -> "WebhookDelivery":
    """The post once it was tried, or as it is when the time is over."""
    import trio

    with trio.move_on_after(POST_SECONDS):
        while posted.attempted_at is None:
            await trio.sleep(POST_ASKED_EVERY)
            newest = await store.webhook_history.page(account.id, None, None, 100)
            posted = next((each for each in newest if each.id == posted.id), posted)
    return posted


async def _existing(store: "Store", account: "Account") -> None:
    if await store.webhooks.of(account.id) is None:
        hint = f"`appliance webhook set {account.name} URL` makes one"
        raise click.ClickException(f"account {account.name} has no webhook: {hint}")


async def _check_url(url: str, store: "Store", settings: "Config") -> None:
    """Refuse what the API refuses: no https, an address of this machine or of a private network."""
    from appliance.dns.resolver import DnsResolver
    from appliance.environment import Environment
    from appliance.webhook.build import build_poster

    resolver, others = DnsResolver(settings.dns.resolvers), store.engine.others
    poster = build_poster(settings, resolver, Environment(), lambda: others().addresses)
    if (fault := await poster.check(url)) is not None:
        raise click.ClickException(f"url: {fault}")


def _row(found: "Webhook") -> dict[str, Any]:
    row = {"url": found.url, "events": [each.value for each in found.events], "enabled": found.enabled}
    return row | record(found, "secret_hint", "created_at", "updated_at", "last_success_at", "last_failure_at")
