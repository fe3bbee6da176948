"""The first start: what is created, when, and what is printed."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

from appliance.config.load import embedded, parse
from appliance.config.settings import Config
from appliance.environment import Environment
from appliance.first_start import ACCOUNT, DOMAIN, EMAIL, greeting
from appliance.keys.secrets import password_matches
from appliance.store import open_store

URL = "http://127.0.0.1:8080"


def told(text: str, label: str) -> str:
    (line,) = [line for line in text.splitlines() if line.startswith(f"  {label}  ")]
    return line.removeprefix(f"  {label}").strip()


async def greeted(settings: Config, env: Environment | None = None) -> str:
    async with open_store(settings.server.data_dir, env or Environment()) as store:
        return await greeting(settings, store, URL)


async def test_the_first_start_creates_one_of_everything(tmp_path: Path) -> None:
    settings = embedded(tmp_path)
    text = await greeted(settings)
    async with open_store(settings.server.data_dir, Environment(), inline=True) as store:
        (account,) = await store.accounts.all()
        assert (account.name, account.email, account.credits) == (ACCOUNT, EMAIL, None)
        user = await store.accounts.user_by_email(told(text, "Login"))
        assert user is not None
        assert password_matches(told(text, "Password"), user.password_hash)
        by_key = await store.access.caller_by_key(told(text, "API key"))
        assert by_key is not None
        assert (by_key.may_read, by_key.test, by_key.domains) == (True, False, frozenset({DOMAIN}))
        found = await store.access.caller_by_credential(told(text, "SMTP username"))
        assert found is not None
        assert told(text, "From domain") == DOMAIN
    assert told(text, "URL") == URL
    assert str(settings.server.data_dir) in text


async def test_a_second_start_changes_nothing_and_tells_where_things_are(tmp_path: Path) -> None:
    settings = embedded(tmp_path)
    first = await greeted(settings)
    second = await greeted(settings)
    for label in ("Password", "SMTP password", "API key"):
        assert told(first, label) not in second
    assert told(second, "Data") == str(settings.server.data_dir)
    assert told(second, "URL") == URL
    assert f"appliance key create --account {ACCOUNT}" in second
    assert f"in {tmp_path}:" in second  # elsewhere the commands would use another database
    async with open_store(settings.server.data_dir, Environment(), inline=True) as store:
        assert len(await store.accounts.all()) == len(await store.access.keys()) == 1


async def test_a_crash_while_creating_leaves_nothing(tmp_path: Path) -> None:
    settings = embedded(tmp_path)
    for steps in count(1):
        try:
            text = await greeted(settings, Environment(now=clock_that_stops(steps)))
        except Crash:
            async with open_store(settings.server.data_dir, Environment(), inline=True) as store:
                assert await store.accounts.all() == []
                assert await store.access.keys() == []
        else:
            break
    assert steps > 4  # each of the rows it makes has a time, so it has crashed between all of them
    assert told(text, "API key").startswith("ma_live_")


class Crash(Exception):
    """An error that no part of the program knows."""


def clock_that_stops(steps: int) -> Callable[[], int]:
    left = iter(range(1, steps))

    def now() -> int:
        if next(left, None) is None:
            raise Crash
        return 1_800_000_000_000_000

    return now


async def test_a_config_file_creates_nothing(tmp_path: Path) -> None:
    file = tmp_path / "my settings.toml"
    settings = parse(f'[server]\ndata_dir = "{tmp_path / "data"}"', file)
    hint = await greeted(settings)
    assert hint.count("\n") == 1
    assert "appliance account create NAME" in hint
    assert f"--config '{file}'" in hint
    async with open_store(settings.server.data_dir, Environment(), inline=True) as store:
        assert await store.accounts.all() == []
        await store.accounts.create("acme", "a@example.org", "hash")
    assert await greeted(settings) == ""


async def test_an_account_made_by_hand_is_left_alone(tmp_path: Path) -> None:
    settings = embedded(tmp_path)
    async with open_store(settings.server.data_dir, Environment(), inline=True) as store:
        await store.accounts.create("acme", "a@example.org", "hash")
    assert "appliance key create --account acme" in await greeted(settings)
