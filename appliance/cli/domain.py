"""In charge of the commands `appliance domain …`."""

from typing import TYPE_CHECKING, Any

import click

from appliance.cli import database
from appliance.cli.options import TEXT, common, config_option
from appliance.cli.output import printable, show, show_list

if TYPE_CHECKING:
    from appliance.config.load import Config
    from appliance.dns.check import CheckedRecord
    from appliance.dns.records import DnsRecord
    from appliance.model.mail import Domain, StoredDkimKey
    from appliance.store import Store

COLUMNS = {"name": "DOMAIN", "usable": "MAY SEND", "created_at": "ADDED (UTC)"}

account_argument = click.argument("name", type=TEXT)
domain_argument = click.argument("domain", type=TEXT)


@click.group()
@config_option
def domain() -> None:
    """Domains: what an account may write into From."""


@domain.command()
@account_argument
@domain_argument
@common
def add(name: str, domain: str, as_json: bool) -> None:
    """Let the account NAME send from DOMAIN, at once, and make the keys that sign its mail.

    A subdomain is a domain of its own.

    \b
    Examples:
      appliance domain add acme acme.example
      appliance domain add acme bücher.example
    """
    settings, wanted = database.load_settings(), _domain_name(domain)

    async def work(store: "Store") -> "Domain":
        account_id = store.accounts.named(name).id
        # Usable last: nobody can send from it before its keys are there, so the server does not make some, too.
        await store.access.add_domain(account_id, wanted, usable=False)
        await _keys(store, settings, account_id, wanted)
        await store.access.add_domain(account_id, wanted, usable=True)
        return _registered(store, name, account_id, wanted)

    added = database.run(work, settings=settings)
    next_step = f"Next, what to publish in DNS: appliance domain records {name} {added.name}"
    show(as_json, _record(added), f"Account {name} may now send from {added.name}. {next_step}")


@domain.command("list")
@account_argument
@common
def list_all(name: str, as_json: bool) -> None:
    """List the domains of the account NAME.

    \b
    Example:
      appliance domain list acme
    """

    async def work(store: "Store") -> "list[Domain]":
        return store.access.domains(store.accounts.named(name).id)

    rows = [_record(found) for found in database.run(work)]
    show_list(as_json, "domains", rows, COLUMNS, f"No domains yet. Add one: appliance domain add {name} DOMAIN")


@domain.command("records")
@account_argument
@domain_argument
@common
def show_records(name: str, domain: str, as_json: bool) -> None:
    """Show the records to publish in DNS for DOMAIN of the account NAME.

    \b
    Examples:
      appliance domain records acme acme.example
      appliance domain records acme acme.example --json
    """
    wanted = _records(name, domain)
    show(as_json, {"records": [_dns_record(record) for record in wanted]}, _to_publish(wanted))


@domain.command()
@account_argument
@domain_argument
@common
def rotate(name: str, domain: str, as_json: bool) -> None:
    """Sign the mail of DOMAIN of the account NAME with new keys from now on.

    The new keys have new names in DNS; publish them at once. The records of the old keys stay for seven days, for mail
    that is on its way.

    \b
    Example:
      appliance domain rotate acme acme.example
    """
    settings = database.load_settings()
    wanted = _records(name, domain, settings, rotate=True)
    text = f"New keys sign for {domain}. Publish their records now:\n\n{_to_publish(wanted)}"
    show(as_json, {"records": [_dns_record(record) for record in wanted]}, text)


@domain.command()
@account_argument
@domain_argument
@common
def verify(name: str, domain: str, as_json: bool) -> None:
    """Ask DNS whether the records of DOMAIN of the account NAME are published as they should be.

    Exits with 0 when all are right, and with 1 when one is not.

    \b
    Examples:
      appliance domain verify acme acme.example
      appliance domain verify acme acme.example --json
    """
    settings = database.load_settings()
    checked = _check(settings, _records(name, domain, settings))
    right = all(each.status == "ok" for each in checked if each.record.needed)
    answer = {"domain": _domain_name(domain), "ok": right, "records": [_checked(each) for each in checked]}
    show(as_json, answer, "\n".join(map(_checked_line, checked)))
    click.get_current_context().exit(0 if right else 1)


# ---- what the commands share


def _domain_name(text: str) -> str:
    from appliance.intake import account_rules

    with database.refusals():
        return account_rules.domain_name(text)


def _registered(store: "Store", account: str, account_id: str, domain: str) -> "Domain":
    from appliance.errors import Code, Refused

    for found in store.access.domains(account_id):
        if found.name == domain:
            return found
    raise Refused(Code.NOT_FOUND, f"the account {account} has no domain {domain}: `appliance domain add` adds it")


async def _keys(
    store: "Store", settings: "Config", account_id: str, domain: str, *, rotate: bool = False
) -> "list[StoredDkimKey]":
    """All keys of a domain, which has some that sign."""
    from appliance.keys.dkim_keys import SigningKeys
    from appliance.keys.keyfile import load_or_create
    from appliance.outside import Outside

    keys = SigningKeys(store, Outside(), load_or_create(settings.server.data_dir))
    return await keys.known(account_id, domain, rotate=rotate)


def _records(account: str, domain: str, settings: "Config | None" = None, *, rotate: bool = False) -> "list[DnsRecord]":
    from appliance.dns import records
    from appliance.outside import Outside

    settings, wanted = settings or database.load_settings(), _domain_name(domain)

    async def work(store: "Store") -> "list[StoredDkimKey]":
        account_id = store.accounts.named(account).id
        _registered(store, account, account_id, wanted)
        return await _keys(store, settings, account_id, wanted, rotate=rotate)

    keys = database.run(work, settings=settings)
    return records.records(wanted, records.sending_host(settings), keys, Outside().now())


def _check(settings: "Config", wanted: "list[DnsRecord]") -> "list[Checked]":
    import trio

    from appliance.dns import check, records
    from appliance.dns.resolver import DnsResolver

    async def ask() -> "list[Checked]":
        host = records.sending_host(settings)
        return await check.check(DnsResolver(settings.dns.resolvers), host, wanted, for_operator=True)

    return trio.run(ask)


def _record(found: "Domain") -> dict[str, Any]:
    from appliance.times import rfc3339

    return {"name": found.name, "usable": found.usable, "created_at": rfc3339(found.created_at)}


def _dns_record(record: "DnsRecord") -> dict[str, Any]:
    return {"name": record.name, "type": record.type, "value": record.value, "purpose": record.purpose}


def _to_publish(wanted: "list[DnsRecord]") -> str:
    return "\n\n".join(f"{record.purpose}:\n  {record.name}  {record.type}\n  {record.value}" for record in wanted)


def _checked(each: "CheckedRecord") -> dict[str, Any]:
    seen = {"needed": each.record.needed, "status": each.status.value, "found": list(each.found), "note": each.note}
    return _dns_record(each.record) | seen


def _checked_line(each: "CheckedRecord") -> str:
    """One line for what is right; for the rest also what was found and what should be."""
    record = each.record
    head = f"{each.status.value:<8} {record.name}  {record.type}" + (f"  ({each.note})" if each.note else "")
    if each.status == "ok":
        return head
    kept = "" if record.needed else "  (of a retired key)"
    found = [f"           DNS shows: {printable(text)}" for text in each.found]
    return "\n".join([head + kept, *found, f"           should be: {record.value}"])
