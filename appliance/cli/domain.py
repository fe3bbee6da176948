"""`appliance domain …`: adds From domains, shows and verifies their DNS records, rotates their keys."""

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from appliance.cli import database
from appliance.cli.options import PRINTABLE, config_option
from appliance.cli.output import printable, record, show, show_list

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from appliance.config.settings import Config
    from appliance.dns.check import CheckedRecord
    from appliance.dns.records import DnsRecord
    from appliance.keys.dkim_keys import SigningKeys
    from appliance.model.accounts import Domain, StoredDkimKey
    from appliance.store import Store

RECORD_FIELDS = ("name", "type", "value", "purpose")
DNS_FIELDS = ("checked_at", "spf", "dkim", "dmarc", "return_path")
DNS_COLUMNS = {
    "spf": "SPF",
    "dkim": "DKIM",
    "dmarc": "DMARC",
    "return_path": "RETURN PATH",
    "checked_at": "CHECKED (UTC)",
}
DOMAIN_COLUMNS = {"name": "DOMAIN", "usable": "MAY SEND", **DNS_COLUMNS, "created_at": "ADDED (UTC)"}
DOMAIN_FIELDS = ("name", "usable", "created_at", "return_path", "return_path_at")


@click.group()
@config_option
def domain() -> None:
    """Domains: what an account may write into From."""


@domain.command()
@click.option(
    "--return-path",
    type=PRINTABLE,
    metavar="NAME",
    help="Where bounces are to come back to, a name below DOMAIN; at first bounces.DOMAIN.",
)
@database.of_only_account_and("DOMAIN")
def add(name: str, domain: str, return_path: str | None, as_json: bool) -> None:
    """Let the account NAME send from DOMAIN, at once, and make the keys that sign its mail.

    A subdomain is a domain of its own. Added again with another return path, it keeps everything else.

    \b
    Examples:
      appliance domain add acme acme.example
      appliance domain add acme bücher.example
      appliance domain add acme acme.example --return-path rp.acme.example
    """
    from appliance.intake import account_rules

    settings, wanted = database.load_settings(), domain_name(domain)
    with database.refusals():
        path = None if return_path is None else account_rules.return_path(return_path, wanted)

    async def work(store: "Store") -> "Domain":
        account_id = (await store.accounts.named(name)).id
        await register(store, settings, account_id, wanted, path)
        return await _registered(store, name, account_id, wanted)

    added = database.run(work, settings=settings)
    next_step = f"Next, what to publish in DNS: appliance domain records {name} {added.name}"
    show(as_json, record(added, *DOMAIN_FIELDS), f"Account {name} may now send from {added.name}. {next_step}")


@domain.command("list")
@database.of_only_account
def list_all(name: str, as_json: bool) -> None:
    """List the domains of the account NAME, with what DNS showed of their records when it was last asked.

    The running server asks every ten minutes until all records are right, then once a day; more rarely while DNS does
    not answer, and never in the sandbox. `appliance domain verify` asks now.

    \b
    Example:
      appliance domain list acme
    """
    found = database.run_for(name, lambda store, account_id: store.access.domains(account_id))
    rows = [_listed(each, as_json) for each in found]
    show_list(as_json, "domains", rows, DOMAIN_COLUMNS, f"No domains yet. Add one: appliance domain add {name} DOMAIN")


def _listed(found: "Domain", as_json: bool) -> dict[str, Any]:
    dns = None if found.dns is None else record(found.dns, *DNS_FIELDS)
    listed = record(found, *DOMAIN_FIELDS)
    return {**listed, "dns": dns} if as_json else {**listed, **(dns or dict.fromkeys(DNS_FIELDS))}


@domain.command()
@database.of_only_account_and("DOMAIN")
def remove(name: str, domain: str, as_json: bool) -> None:
    """Let the account NAME send from DOMAIN no more. What is queued already still goes out, signed.

    Its DNS records may go seven days later, when no mail of it is on its way any more; those of its return path a month
    later, when no bounce can come back.

    \b
    Example:
      appliance domain remove acme acme.example
    """
    wanted = domain_name(domain)

    async def work(store: "Store", account_id: str) -> None:
        await _registered(store, name, account_id, wanted)
        await store.domains.remove(account_id, wanted)

    database.run_for(name, work)
    show(as_json, {"name": wanted, "removed": True}, f"Account {name} may no longer send from {wanted}.")


@domain.command("records")
@database.of_only_account_and("DOMAIN")
def show_records(name: str, domain: str, as_json: bool) -> None:
    """Show the records to publish in DNS for DOMAIN of the account NAME.

    \b
    Examples:
      appliance domain records acme acme.example
      appliance domain records acme acme.example --json
    """
    wanted = records_of(name, domain)
    show(as_json, _answer(wanted), _to_publish(wanted))


@domain.command()
@click.option("--now", is_flag=True, help="Let the new keys sign at once, before DNS shows them: the old ones leaked.")
@database.of_only_account_and("DOMAIN")
def rotate(name: str, domain: str, now: bool, as_json: bool) -> None:
    """Make new keys for the mail of DOMAIN of the account NAME, which sign once DNS shows them.

    The new keys have new names in DNS; publish them, and keep the records of the old ones. The running server looks at
    DNS every minute, `appliance domain verify` at once: when all new records are there, the new keys sign, and
    `appliance domain records` says until when the old records must stay. Until then a second rotation changes nothing.

    \b
    Examples:
      appliance domain rotate acme acme.example
      appliance domain rotate acme acme.example --now
    """
    wanted = records_of(name, domain, keys=partial(_rotated, at_once=now))
    when = " once DNS shows them" if any(each.pending for each in wanted) else ""
    text = f"New keys sign for {domain}{when}. Publish their records now:\n\n{_to_publish(wanted)}"
    show(as_json, _answer(wanted), text)


@domain.command()
@database.of_only_account_and("DOMAIN")
def verify(name: str, domain: str, as_json: bool) -> None:
    """Ask DNS whether the records of DOMAIN of the account NAME are published as they should be.

    Exits with 0 when all are right, and with 1 when one is not. New keys of a rotation sign once all of theirs are, and
    mail leaves with the return path once both of its records are; it may lack, but not lead elsewhere.

    \b
    Examples:
      appliance domain verify acme acme.example
      appliance domain verify acme acme.example --json
    """
    import trio

    from appliance.deliver.return_paths import use_if_shown
    from appliance.dns import check, records
    from appliance.dns.resolver import DnsResolver
    from appliance.environment import Environment

    settings = database.load_settings()

    def look() -> "list[CheckedRecord]":
        resolver, host = DnsResolver(settings.dns.resolvers), records.sending_host(settings)
        wanted = records_of(name, domain, settings)
        return trio.run(partial(check.check, resolver, host, wanted, for_operator=True))

    async def switch(store: "Store") -> bool:
        account_id, wanted = (await store.accounts.named(name)).id, domain_name(domain)
        found = await store.domains.find(account_id, wanted)
        await store.domains.record_dns(account_id, found, check.summary(checked, Environment().now()))
        await use_if_shown(store, account_id, found, checked)
        if not any(each.record.pending for each in checked):
            return False
        return await (await _signing_keys(store, settings)).switch(account_id, wanted, checked)

    checked = look()
    if database.run(switch, settings=settings):
        checked = look()
    wrong = [f"{each.record.type} {each.record.name}" for each in checked if each.is_wrong]
    rows = [record(each.record, *RECORD_FIELDS, "needed") | record(each, "status", "found", "note") for each in checked]
    answer = {"domain": domain_name(domain), "ok": not wrong, "records": rows}
    show(as_json, answer, "\n".join(map(_checked_line, checked)))
    if wrong:
        raise click.ClickException(f"DNS of {domain_name(domain)} is not as it should be: {', '.join(wrong)}")


def domain_name(text: str) -> str:
    from appliance.intake import account_rules

    with database.refusals():
        return account_rules.domain_name(text)


async def register(
    store: "Store", settings: "Config", account_id: str, domain: str, return_path: str | None = None
) -> None:
    """Let an account send from a domain, with the keys that sign its mail."""
    # Usable last: a message before the keys are there would make the server create some as well.
    await store.access.add_domain(account_id, domain, usable=False, return_path=return_path)
    await _keys(store, settings, account_id, domain)
    await store.access.add_domain(account_id, domain, usable=True)


async def _registered(store: "Store", account: str, account_id: str, domain: str) -> "Domain":
    for found in await store.access.domains(account_id):
        if found.name == domain:
            return found
    raise click.ClickException(f"the account {account} has no domain {domain}: `appliance domain add` adds it")


async def _signing_keys(store: "Store", settings: "Config") -> "SigningKeys":
    from appliance.environment import Environment
    from appliance.keys.dkim_keys import SigningKeys

    return SigningKeys(store, Environment(), await database.installation_key(store, settings))


async def _keys(store: "Store", settings: "Config", account_id: str, domain: str) -> "list[StoredDkimKey]":
    """All keys of a domain; those that sign are created if there are none."""
    return await (await _signing_keys(store, settings)).known(account_id, domain)


async def _rotated(
    store: "Store", settings: "Config", account_id: str, domain: str, *, at_once: bool
) -> "list[StoredDkimKey]":
    return await (await _signing_keys(store, settings)).begin_rotation(account_id, domain, at_once=at_once)


def records_of(
    account: str,
    domain: str,
    settings: "Config | None" = None,
    *,
    keys: "Callable[[Store, Config, str, str], Awaitable[list[StoredDkimKey]]]" = _keys,
) -> "list[DnsRecord]":
    from appliance.dns import records
    from appliance.environment import Environment

    settings, wanted = settings or database.load_settings(), domain_name(domain)

    async def work(store: "Store") -> "list[DnsRecord]":
        account_id = (await store.accounts.named(account)).id
        found = await _registered(store, account, account_id, wanted)
        known = await keys(store, settings, account_id, wanted)
        return records.records_for(settings, found, known, Environment().now(), await store.engine.hosts())

    return database.run(work, settings=settings)


def _answer(wanted: "list[DnsRecord]") -> dict[str, Any]:
    return {"records": [record(each, *RECORD_FIELDS) for each in wanted]}


def _to_publish(wanted: "list[DnsRecord]") -> str:
    return "\n\n".join(f"{each.purpose}:\n  {each.name}  {each.type}\n  {each.value}" for each in wanted)


def _checked_line(each: "CheckedRecord") -> str:
    """One line for a right record; for others also what was found and what should be."""
    wanted = each.record
    head = f"{each.status.value:<8} {wanted.name}  {wanted.type}" + (f"  ({each.note})" if each.note else "")
    if each.status == "ok":
        return head
    kept = "  (of a new key, which signs once it is there)" if wanted.pending else ""
    if not wanted.needed:
        kept = "  (of a retired key)" if wanted.kind == "dkim" else "  (optional)"
    found = [f"           DNS shows: {printable(text)}" for text in each.found]
    return "\n".join([head + kept, *found, f"           should be: {wanted.value}"])
