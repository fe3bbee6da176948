"""The SMTP credential: who it stands for, and how soon a change is seen."""

from dataclasses import replace
from pathlib import Path

from appliance.intake.credentials import CACHED_FOR, Credentials
from appliance.intake.login_throttle import LoginThrottle
from appliance.outside import Outside
from appliance.store import open_store
from appliance.store.access import sha256
from tests.running_appliance import provision

START = 1_800_000_000_000_000  # microseconds


async def test_a_change_is_seen_within_half_a_second(tmp_path: Path) -> None:
    """A session that asks for every message is told what was true a moment ago, and no longer; wrong ones at once."""
    now = [START]
    outside = replace(Outside(), now=lambda: now[0])
    async with open_store(tmp_path, outside, inline=True) as store:
        account = await provision(store, "demo")
        credentials = Credentials(store, outside, LoginThrottle(outside))
        right, wrong = sha256(account.password), sha256("wrong")
        found = credentials.caller(account.username, right)
        assert found is not None
        assert found.account_id == account.account_id
        assert credentials.caller(account.username, wrong) is None
        assert credentials.caller("unknown", right) is None
        assert credentials.caller("no\0body", right) is None
        await store.access.revoke_credential(account.account_id, account.username)
        assert credentials.look_up(account.username, right) is None
        assert credentials.caller(account.username, right) is found
        now[0] += CACHED_FOR
        assert credentials.caller(account.username, right) is None


async def test_what_this_process_changes_is_seen_at_once(tmp_path: Path) -> None:
    """`forget` looks again."""
    outside = Outside()
    async with open_store(tmp_path, outside, inline=True) as store:
        account = await provision(store, "demo")
        credentials = Credentials(store, outside, LoginThrottle(outside))
        assert credentials.caller(account.username, sha256(account.password)) is not None
        await store.access.revoke_credential(account.account_id, account.username)
        credentials.forget()
        assert credentials.caller(account.username, sha256(account.password)) is None


async def test_a_use_is_noted_and_written_later(tmp_path: Path) -> None:
    """The last use of a credential is on disk once uses are recorded; a wrong password is no use."""
    now = [START]
    outside = replace(Outside(), now=lambda: now[0])
    async with open_store(tmp_path, outside, inline=True) as store:
        account = await provision(store, "demo")
        credentials = Credentials(store, outside, LoginThrottle(outside))

        def last_used() -> int | None:
            (credential,) = store.access.credentials(account.account_id)
            return credential.last_used_at

        credentials.look_up(account.username, sha256("wrong"))
        await credentials.record_uses()
        assert last_used() is None
        now[0] += 1_000_000
        credentials.look_up(account.username, sha256(account.password))
        assert last_used() is None
        await credentials.record_uses()
        assert last_used() == START + 1_000_000
