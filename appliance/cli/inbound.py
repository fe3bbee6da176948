"""`appliance inbound …`: the addresses and domains that receive mail for an account."""

from typing import TYPE_CHECKING

from appliance.cli import database
from appliance.cli.options import CommandGroup
from appliance.cli.output import printable, record, show, show_list

if TYPE_CHECKING:
    from appliance.config.settings import Config
    from appliance.dns.check import CheckedRecord
    from appliance.model.received import ReceivingAddress
    from appliance.store import Store

ADDRESS_COLUMNS = {"address": "ADDRESS", "created_at": "SINCE (UTC)"}
ADDRESSES_AT_A_TIME = 1_000

inbound = CommandGroup("inbound", "Manage the addresses that receive mail for an account.")


@inbound.command(action="inbound.added")
@database.of_only_account_and("ADDRESS", names=database.completed("domain"))
def add(name: str, address: str) -> None:
    """Receive mail for ADDRESS, or for every address of a domain, and post it to the webhook of the account.

    The domain is a verified domain of the account, or below one. An address receives its plus-addresses, too.

    Examples:
      appliance inbound add --account acme in.acme.example
      appliance inbound add --account acme support@acme.example
    """
    import trio

    settings, key = database.load_settings(), _key(address)
    added = database.run_for(name, lambda store, account_id: store.receiving.add(account_id, key))
    checked = trio.run(_check_mx, settings, key.rpartition("@")[2])
    mx = checked.record
    text = f"Account {name} receives mail for {added.address}."
    if checked.status != "ok":
        text += f" Publish this record: {mx.name}. {mx.type} {mx.value}"
    if checked.status == "differs":
        text += (
            f"\nCareful: {printable(checked.note)}. If you replace that record, its mailboxes get no more mail."
            " Receive at a subdomain instead, or have that server forward mail."
        )
    if not settings.inbound.bind:
        text += "\nThe server does not listen for mail yet: set inbound.bind, for example to 0.0.0.0:25."
    row = record(mx, "name", "type", "value", "purpose") | record(checked, "status", "note")
    show(record(added, *ADDRESS_COLUMNS) | {"records": [row]}, text)


@inbound.command("list", reads=True)
@database.list_of_only_account
def list_all(name: str) -> None:
    """List the addresses and domains that receive mail for the account."""

    async def read(store: "Store", account_id: str) -> "list[ReceivingAddress]":
        return await store.receiving.page(account_id, "", ADDRESSES_AT_A_TIME)

    rows = [record(item, *ADDRESS_COLUMNS) for item in database.run_for(name, read)]
    nothing = f"No address receives mail. Add one: appliance inbound add --account {name} ADDRESS"
    show_list({"addresses": rows}, ADDRESS_COLUMNS, nothing)


@inbound.command(action="inbound.removed")
@database.of_only_account_and("ADDRESS", names=database.completed("receiver"))
def remove(name: str, address: str) -> None:
    """Stop receiving mail for ADDRESS or a domain. Received messages stay until they expire."""
    key = _key(address)
    database.run_for(name, lambda store, account_id: store.receiving.remove(account_id, key))
    show({"address": key, "removed": True}, f"Account {name} no longer receives mail for {key}.")


async def _check_mx(settings: "Config", domain: str) -> "CheckedRecord":
    """Return the MX record to publish, and whether DNS has it or another one."""
    import trio

    from appliance.dns.check import CheckedRecord, check
    from appliance.dns.publishing import LOOKUP_TIMEOUT
    from appliance.dns.records import receiving_record
    from appliance.dns.resolver import DnsResolver
    from appliance.model.accounts import RecordStatus

    expected = receiving_record(domain, [settings.server.hostname])
    with trio.move_on_after(LOOKUP_TIMEOUT):
        return (await check(DnsResolver(settings.dns.resolvers), [expected], for_operator=True))[0]
    return CheckedRecord(expected, RecordStatus.UNKNOWN, note="DNS did not answer")


def _key(address: str) -> str:
    from appliance.intake.account_rules import receiving_address

    with database.refusals():
        return receiving_address(address)
