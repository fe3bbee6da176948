"""`appliance domain …`: adds sending domains, shows and verifies their DNS records, rotates their keys."""

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from appliance.cli import database
from appliance.cli.options import CommandGroup, flag, text_option
from appliance.cli.output import printable, record, show, show_list
from appliance.environment import Environment

if TYPE_CHECKING:
    from appliance.config.settings import Config
    from appliance.dns.check import CheckedRecord
    from appliance.dns.publishing import DnsZone
    from appliance.dns.records import DnsRecord
    from appliance.keys.dkim_keys import SigningKeys
    from appliance.model.accounts import Domain
    from appliance.store import Store

RECORD_FIELDS = ("name", "type", "value", "purpose")
DNS_FIELDS = ("checked_at", "spf", "dkim", "dmarc", "return_path")
DOMAIN_COLUMNS = {"name": "DOMAIN", "usable": "MAY SEND", "spf": "SPF", "dkim": "DKIM", "dmarc": "DMARC"}
DOMAIN_COLUMNS |= {"return_path": "RETURN PATH", "checked_at": "CHECKED (UTC)", "created_at": "ADDED (UTC)"}
DOMAIN_FIELDS = ("name", "usable", "created_at", "return_path", "return_path_at")

domain = CommandGroup("domain", "Manage sending domains and their DNS records.")


@domain.command(action="domain.added")
@text_option("--return-path", "NAME", "Name below DOMAIN that receives bounces (default bounces.DOMAIN).")
@database.of_only_account_and("DOMAIN")
def add(name: str, domain: str, return_path: str | None) -> None:
    """Let the account send from DOMAIN, and create the keys that sign its mail.

    A subdomain is a separate domain. To change the return path, add the domain again; everything else stays.

    Examples:
      appliance domain add --account acme acme.example
      appliance domain add --account acme acme.example --return-path rp.acme.example
    """
    from appliance.intake import account_rules

    settings, domain = database.load_settings(), domain_name(domain)
    with database.refusals():
        path = None if return_path is None else account_rules.return_path(return_path, domain)

    async def work(store: "Store", account_id: str) -> "Domain":
        await register(store, settings, account_id, domain, path)
        return await _registered(store, name, account_id, domain)

    added = database.run_for(name, work, settings=settings)
    next_step = f"Next, show the DNS records to publish: appliance domain records --account {name} {added.name}"
    show(record(added, *DOMAIN_FIELDS), f"Account {name} may now send from {added.name}. {next_step}")


@domain.command("list", reads=True)
@database.list_of_only_account
def list_all(name: str) -> None:
    """List the domains of the account, with the result of the last DNS check.

    The running server checks every ten minutes until all records are correct, then once an hour; less often while DNS
    does not answer, and never in sandbox mode. `appliance domain verify` checks now.
    """
    domains = database.run_for(name, lambda store, account_id: store.access.domains(account_id))
    rows = []
    for domain in domains:
        dns = None if domain.dns is None else record(domain.dns, *DNS_FIELDS)
        rows.append(record(domain, *DOMAIN_FIELDS) | {"dns": dns})
    nothing = f"No domains yet. Add one: appliance domain add --account {name} DOMAIN"
    show_list(
        {"domains": rows}, DOMAIN_COLUMNS, nothing, worded=lambda row: row | (row["dns"] or dict.fromkeys(DNS_FIELDS))
    )


@domain.command(action="domain.removed")
@database.of_only_account_and("DOMAIN")
def remove(name: str, domain: str) -> None:
    """Stop the account from sending from DOMAIN. Mail that is queued is still signed and delivered.

    Keep the DNS records for seven days, until all queued mail is delivered. Keep the return path's records for a month,
    until no more bounces can arrive.
    """
    domain = domain_name(domain)

    async def work(store: "Store", account_id: str) -> None:
        await _registered(store, name, account_id, domain)
        await store.domains.remove(account_id, domain)

    database.run_for(name, work)
    show({"name": domain, "removed": True}, f"Account {name} may no longer send from {domain}.")


@domain.command("records", reads=True)
@database.of_only_account_and("DOMAIN")
def show_records(name: str, domain: str) -> None:
    """Show the DNS records to publish for DOMAIN of the account.

    An SPF record that DNS already has is kept: the value shown is that record with this server added. Names are shown
    in full, and relative to the DNS zone as most DNS consoles expect them.
    """
    settings = database.load_settings()
    records, zone = proposed(settings, domain_name(domain), records_of(name, domain, settings))
    show(_answer(records, zone), _to_publish(records, zone))


@domain.command(action="domain.keys_rotated")
@flag("--now", "Sign with the new keys at once, before DNS has them; use it if the old keys leaked.")
@database.of_only_account_and("DOMAIN")
def rotate(name: str, domain: str, now: bool) -> None:
    """Create new signing keys for DOMAIN of the account; they sign once their DNS records are published.

    Publish the new records, and keep the old ones. The running server checks DNS every minute, and `appliance domain
    verify` at once. When all new records exist, the new keys sign, and `appliance domain records` says how long to keep
    the old records. Until then, another rotation changes nothing.

    Example:
      appliance domain rotate --account acme acme.example --now
    """
    settings = database.load_settings()
    raw = records_of(name, domain, settings, rotated=True, at_once=now)
    records, zone = proposed(settings, domain_name(domain), raw)
    when = " once their records are in DNS" if any(published.pending for published in records) else ""
    text = f"New keys sign for {domain}{when}. Publish their records now:\n\n{_to_publish(records, zone)}"
    show(_answer(records, zone), text)


@domain.command()
@database.of_only_account_and("DOMAIN")
def verify(name: str, domain: str) -> None:
    """Check the DNS records of DOMAIN of the account.

    Exits with 0 if all are correct, otherwise with 1. After a rotation, the new keys sign once all of their records are
    correct. Mail uses the return path once both of its records are correct; the records may be missing, but not wrong.
    """
    import trio

    from appliance.deliver.domain_watch import use_if_published
    from appliance.dns import check
    from appliance.dns.resolver import DnsResolver

    settings, domain = database.load_settings(), domain_name(domain)

    def check_dns() -> "list[CheckedRecord]":
        resolver, published = DnsResolver(settings.dns.resolvers), records_of(name, domain, settings)
        return trio.run(partial(check.check, resolver, published, for_operator=True))

    async def switch(store: "Store", account_id: str) -> bool:
        sender = await store.domains.find(account_id, domain)
        await store.domains.record_dns(account_id, sender, check.summary(checked, Environment().now()))
        await use_if_published(store, account_id, sender, checked)
        if not any(result.record.pending for result in checked):
            return False
        return await (await _signing_keys(store, settings)).switch(account_id, domain, checked)

    checked = check_dns()
    if database.run_for(name, switch, settings=settings):
        checked = check_dns()
    wrong = [f"{result.record.type} {result.record.name}" for result in checked if result.is_wrong]
    rows = [record(one.record, *RECORD_FIELDS, "needed") | record(one, "status", "found", "note") for one in checked]
    show({"domain": domain, "ok": not wrong, "records": rows}, "\n".join(map(_checked_line, checked)))
    if wrong:
        raise click.ClickException(f"DNS records of {domain} are wrong or missing: {', '.join(wrong)}")


def domain_name(text: str) -> str:
    from appliance.intake import account_rules

    with database.refusals():
        return account_rules.domain_name(text)


async def register(
    store: "Store", settings: "Config", account_id: str, domain: str, return_path: str | None = None
) -> None:
    """Let an account send from a domain, and create the keys that sign its mail."""
    # Usable last: for a message before that, the server would create keys as well.
    await store.access.add_domain(account_id, domain, usable=False, return_path=return_path)
    await (await _signing_keys(store, settings)).known(account_id, domain)
    await store.access.add_domain(account_id, domain, usable=True)


async def _registered(store: "Store", account: str, account_id: str, domain: str) -> "Domain":
    for sender in await store.access.domains(account_id):
        if sender.name == domain:
            return sender
    raise click.ClickException(f"the account {account} has no domain {domain}: `appliance domain add` adds it")


async def _signing_keys(store: "Store", settings: "Config") -> "SigningKeys":
    from appliance.keys.dkim_keys import SigningKeys

    return SigningKeys(store, Environment(), await database.installation_key(store, settings))


def records_of(
    account: str, domain: str, settings: "Config | None" = None, *, rotated: bool = False, at_once: bool = False
) -> "list[DnsRecord]":
    """Return the DNS records of a domain; create its first signing keys, or new ones if `rotated`."""
    from appliance.dns.check import find_senders
    from appliance.dns.records import records_for
    from appliance.dns.resolver import DnsResolver
    from appliance.model.ramp import in_force

    settings, domain = settings or database.load_settings(), domain_name(domain)

    async def work(store: "Store", account_id: str) -> "list[DnsRecord]":
        sender = await _registered(store, account, account_id, domain)
        keys = await _signing_keys(store, settings)
        rotation = partial(keys.begin_rotation, at_once=at_once)
        known = await (rotation if rotated else keys.known)(account_id, domain)
        nodes = await store.engine.hosts()
        ramp, sources = (
            in_force(await store.ramp.stored(), settings),
            await store.sources.of_account(account_id, settings),
        )
        resolver, on_ramp = DnsResolver(settings.dns.resolvers), ramp is not None
        sending = await find_senders(resolver, settings, nodes, ramp=on_ramp, sources=sources)
        receives = await store.receiving.domains(account_id, domain)
        return records_for(settings, sender, known, Environment().now(), sending, nodes, receives)

    return database.run_for(account, work, settings=settings)


def proposed(settings: "Config", domain: str, records: "list[DnsRecord]") -> "tuple[list[DnsRecord], DnsZone | None]":
    """Return the records with the values to publish, and the domain's zone; None if DNS does not answer."""
    import trio

    from appliance.dns.publishing import proposals
    from appliance.dns.resolver import DnsResolver

    return trio.run(proposals, DnsResolver(settings.dns.resolvers), domain, records)


def _answer(records: "list[DnsRecord]", zone: "DnsZone | None") -> dict[str, Any]:
    rows = []
    for published in records:
        relative = {"relative_name": zone and zone.relative(published.name)}
        rows.append(record(published, *RECORD_FIELDS) | relative)
    return {"zone": zone and zone.name, "records": rows}


def _to_publish(records: "list[DnsRecord]", zone: "DnsZone | None") -> str:
    texts = [] if zone is None else [zone_summary(zone)]
    for one in records:
        relative = f"\n  {zone.relative(one.name)}  (name in the zone {zone.name})" if zone else ""
        texts.append(f"{one.purpose}:\n  {one.name}  {one.type}\n  {one.value}{relative}")
    return "\n\n".join(texts)


def zone_summary(zone: "DnsZone") -> str:
    host = f", hosted by {zone.host.name}: {zone.host.console}" if zone.host else ""
    return f"DNS zone {zone.name}{host}"


def _checked_line(checked: "CheckedRecord") -> str:
    """One line for a correct record; for others also the published and the expected values."""
    expected = checked.record
    note = f"  ({checked.note})" if checked.note else ""
    head = f"{checked.status.value:<8} {expected.name}  {expected.type}{note}"
    if checked.status == "ok":
        return head
    about = "  (new key; signs once this record is published)" if expected.pending else ""
    if not expected.needed:
        about = "  (retired key)" if expected.kind == "dkim" else "  (optional)"
    published = [f"           published: {printable(text)}" for text in checked.found]
    return "\n".join([head + about, *published, f"           expected:  {expected.value}"])
