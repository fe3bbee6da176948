"""The addresses and domains that receive mail for an account.

A domain receives for one account only, so that no account can take mail from another's domain. It is a usable sending
domain of the account, or a subdomain of one; removing that removes the addresses, too.
"""

from appliance.errors import Code, Refused
from appliance.model.database import Feature
from appliance.model.received import ReceivingAccount, ReceivingAddress
from appliance.store.engine import Bulk, StorePart, Tx, first, rows, run

RECEIVING_ADDRESSES = 1_000  # per account
RECEIVING_CHECKED = 20  # in DNS, of a sending domain

_PARENTS = Bulk(
    "SELECT account_id, name, usable, removed_at FROM domains WHERE (account_id, name) IN (VALUES {(?, ?)})"
)
_TAKEN = """SELECT 1 FROM receiving_addresses WHERE domain = :domain AND account_id <> :account_id LIMIT 1"""
_COUNT = "SELECT count(*) FROM receiving_addresses WHERE account_id = :account_id"
_ADD = """INSERT INTO receiving_addresses (address, account_id, domain, parent, created_at)
    VALUES (:address, :account_id, :domain, :parent, :now) ON CONFLICT (address) DO NOTHING RETURNING address"""
_REMOVE = "DELETE FROM receiving_addresses WHERE address = :address AND account_id = :account_id RETURNING address"
_PAGE = """SELECT address, created_at FROM receiving_addresses
    WHERE account_id = :account_id AND address > :after ORDER BY address LIMIT :most"""
_FIND = "SELECT address, created_at FROM receiving_addresses WHERE address = :address AND account_id = :account_id"
_DOMAINS = """SELECT DISTINCT domain FROM receiving_addresses WHERE account_id = :account_id AND parent = :parent
    ORDER BY domain LIMIT :most"""
_OF_DOMAIN = """SELECT a.id, a.suspended, a.stored_bytes, EXISTS (SELECT 1 FROM receiving_addresses k
        WHERE k.address IN (:address, :without_plus, :domain) AND k.account_id = a.id)
    FROM accounts a WHERE a.id = (SELECT d.account_id FROM receiving_addresses d WHERE d.domain = :domain LIMIT 1)"""
# Ends with the sending domain, or with the account.
REMOVE_OF_DOMAIN = "DELETE FROM receiving_addresses WHERE account_id = :account_id AND parent = :name"
REMOVE_OF_ACCOUNT = "DELETE FROM receiving_addresses WHERE account_id = :account_id"


class ReceivingAddresses(StorePart):
    most: int = RECEIVING_ADDRESSES

    async def add(self, account_id: str, address: str) -> ReceivingAddress:
        """Add an address in its key form, or a domain in A-labels."""
        await self.engine.fence_older_nodes(Feature.RECEIVING)
        domain, now = address.rpartition("@")[2], self.env.now()
        row = {"account_id": account_id, "address": address, "domain": domain, "now": now}

        def work(tx: Tx) -> ReceivingAddress:
            parent = _parent(tx, account_id, domain)
            if rows(tx, _TAKEN, row):
                raise Refused(Code.CONFLICT, f"address: {domain} receives mail for another account of this server")
            ((count,),) = rows(tx, _COUNT, row)
            if count >= self.most:
                text = f"address: an account may receive at {self.most} addresses. Add a domain for all its addresses."
                raise Refused(Code.CONFLICT, text)
            if first(tx, _ADD, {**row, "parent": parent}) is None:
                raise Refused(Code.CONFLICT, f"address: {address} is already added")
            return ReceivingAddress(address, now)

        return await self.engine.write(work)

    async def remove(self, account_id: str, address: str) -> None:
        if not await self.engine.change(_REMOVE, {"account_id": account_id, "address": address}):
            raise unknown_address()

    async def page(self, account_id: str, after: str, most: int) -> list[ReceivingAddress]:
        bindings = {"account_id": account_id, "after": after, "most": most}
        return await self.engine.all(ReceivingAddress, _PAGE, bindings)

    async def read(self, account_id: str, address: str) -> ReceivingAddress:
        added = await self.engine.one(ReceivingAddress, _FIND, {"account_id": account_id, "address": address})
        if added is None:
            raise unknown_address()
        return added

    async def domains(self, account_id: str, parent: str, most: int = RECEIVING_CHECKED) -> list[str]:
        """The first domains that need an MX record: this sending domain, or below it."""
        return await self.engine.all(str, _DOMAINS, {"account_id": account_id, "parent": parent, "most": most})

    async def find(self, address: str) -> ReceivingAccount | None:
        """Return the account of an address's domain, or None; the address is in its key form."""
        local, _, domain = address.rpartition("@")
        row = {"address": address, "without_plus": f"{local.partition('+')[0]}@{domain}", "domain": domain}
        selected = await self.engine.rows(_OF_DOMAIN, row)
        if not selected:
            return None
        account_id, suspended, stored_bytes, is_known = selected[0]
        return ReceivingAccount(account_id, bool(suspended), stored_bytes, bool(is_known))


def unknown_address() -> Refused:
    return Refused(Code.NOT_FOUND, "This account does not receive mail at this address.")


def _parent(tx: Tx, account_id: str, domain: str) -> str:
    """Return the account's usable domain that is this one, or the nearest above it."""
    labels = domain.split(".")
    names = [".".join(labels[at:]) for at in range(len(labels) - 1)]
    selected = _PARENTS.run(tx, [(account_id, name) for name in names])
    usable: set[str] = {name for _, name, usable, removed_at in selected if usable and removed_at is None}
    if not usable:
        text = f"address: {domain} is neither a verified domain of this account nor below one. Add the domain first."
        raise Refused(Code.FORBIDDEN, text)
    return max(usable, key=len)


def remove_of_domain(tx: Tx, account_id: str, name: str) -> None:
    run(tx, REMOVE_OF_DOMAIN, {"account_id": account_id, "name": name})
