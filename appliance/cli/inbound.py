"""`appliance inbound …`: the addresses and domains that receive mail for an account."""

from typing import TYPE_CHECKING

from appliance.cli import database
from appliance.cli.options import CommandGroup
from appliance.cli.output import record, show, show_list

if TYPE_CHECKING:
    from appliance.model.received import ReceivingAddress
    from appliance.store import Store

ADDRESS_COLUMNS = {"address": "ADDRESS", "created_at": "SINCE (UTC)"}
ADDRESSES_AT_A_TIME = 1_000

inbound = CommandGroup("inbound", "Manage the addresses that receive mail for an account.")


@inbound.command()
@database.of_only_account_and("ADDRESS", names=database.completed("domain"))
def add(name: str, address: str) -> None:
    """Receive mail for ADDRESS, or for every address of a domain, and post it to the webhook of the account.

    The domain is a verified domain of the account, or below one. An address receives its plus-addresses, too.

    Examples:
      appliance inbound add --account acme in.acme.example
      appliance inbound add --account acme support@acme.example
    """
    settings, key = database.load_settings(), _key(address)
    added = database.run_for(name, lambda store, account_id: store.receiving.add(account_id, key))
    domain, hostname = key.rpartition("@")[2], settings.server.hostname
    records = [{"name": domain, "type": "MX", "value": f"10 {hostname}", "purpose": "receives the mail of this domain"}]
    text = f"Account {name} receives mail for {added.address}. Publish this record: {domain}. MX 10 {hostname}."
    if not settings.inbound.bind:
        text += "\nThe server does not listen for mail yet: set inbound.bind, for example to 0.0.0.0:25."
    show(record(added, *ADDRESS_COLUMNS) | {"records": records}, text)


@inbound.command("list")
@database.list_of_only_account
def list_all(name: str) -> None:
    """List the addresses and domains that receive mail for the account."""

    async def read(store: "Store", account_id: str) -> "list[ReceivingAddress]":
        return await store.receiving.page(account_id, "", ADDRESSES_AT_A_TIME)

    rows = [record(item, *ADDRESS_COLUMNS) for item in database.run_for(name, read)]
    nothing = f"No address receives mail. Add one: appliance inbound add --account {name} ADDRESS"
    show_list({"addresses": rows}, ADDRESS_COLUMNS, nothing)


@inbound.command()
@database.of_only_account_and("ADDRESS", names=database.completed("receiver"))
def remove(name: str, address: str) -> None:
    """Stop receiving mail for ADDRESS or a domain. Received messages stay until they expire."""
    key = _key(address)
    database.run_for(name, lambda store, account_id: store.receiving.remove(account_id, key))
    show({"address": key, "removed": True}, f"Account {name} no longer receives mail for {key}.")


def _key(address: str) -> str:
    from appliance.intake.account_rules import receiving_address

    with database.refusals():
        return receiving_address(address)
