"""In charge of finding waiting mail fairly: by account, and within an account by destination.

A lane is one account's mail for one domain. Due mail is normally so little that all of it fits into one look, by time.
When it does not, lanes are visited instead, each by index, so that neither an account nor a domain with a hundred
thousand messages is read to its end before the next one's first is seen.
"""

from dataclasses import dataclass

from appliance.model.mail import DueRecipient
from appliance.outside import Outside
from appliance.store.engine import Engine
from appliance.store.queue import SELECT_DUE, due_recipient
from appliance.store.sql import rows

# SQLite has no skip scan over a partial index, so these walk it from one value to the next.
_ACCOUNTS = """
WITH RECURSIVE waiting (account_id) AS (
    SELECT min(account_id) FROM recipients WHERE simulated = 0 AND next_attempt_at IS NOT NULL
    UNION ALL
    SELECT (SELECT min(r.account_id) FROM recipients r
        WHERE r.simulated = 0 AND r.next_attempt_at IS NOT NULL AND r.account_id > waiting.account_id)
    FROM waiting WHERE waiting.account_id IS NOT NULL
)
SELECT account_id FROM waiting WHERE account_id IS NOT NULL
"""
_DOMAINS = """
WITH RECURSIVE waiting (domain) AS (
    SELECT min(domain) FROM recipients
    WHERE simulated = 0 AND next_attempt_at IS NOT NULL AND account_id = :account_id AND domain > :after
    UNION ALL
    SELECT (SELECT min(r.domain) FROM recipients r WHERE r.simulated = 0 AND r.next_attempt_at IS NOT NULL
        AND r.account_id = :account_id AND r.domain > waiting.domain)
    FROM waiting WHERE waiting.domain IS NOT NULL LIMIT :most
)
SELECT domain FROM waiting WHERE domain IS NOT NULL
"""
_LANE = (
    SELECT_DUE
    + """
WHERE r.simulated = 0 AND r.account_id = :account_id AND r.domain = :domain AND r.next_attempt_at <= :now
ORDER BY r.next_attempt_at LIMIT :most
"""
)


@dataclass(frozen=True, slots=True)
class Lanes:
    """Waiting mail by account and domain."""

    engine: Engine
    outside: Outside

    def accounts(self) -> list[str]:
        """Every account that has mail waiting."""
        return [account_id for (account_id,) in self.engine.read(lambda c: rows(c, _ACCOUNTS, {}))]

    def domains(self, account_id: str, after: str, most: int) -> list[str]:
        """Domains this account has mail waiting for, in order, from the one after `after`."""
        wanted = {"account_id": account_id, "after": after, "most": most}
        return [domain for (domain,) in self.engine.read(lambda c: rows(c, _DOMAINS, wanted))]

    def due(self, account_id: str, domain: str, most: int) -> list[DueRecipient]:
        """The due recipients of one lane, the longest waiting first."""
        wanted = {"account_id": account_id, "domain": domain, "now": self.outside.now(), "most": most}
        return [due_recipient(row) for row in self.engine.read(lambda c: rows(c, _LANE, wanted))]
