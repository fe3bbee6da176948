"""The backup of a PostgreSQL, as docs/backup.md has it: a dump and the key file are the installation."""

import shutil
import subprocess
from pathlib import Path

import psycopg
import trio

from appliance.environment import Environment
from appliance.keys.dkim_keys import SigningKeys
from appliance.keys.installation_key import shared_key
from appliance.keys.keyfile import KEY_FILE
from appliance.store import open_store
from tests.postgresql_server import postgresql
from tests.programs import needs
from tests.running_appliance import command, provision, ran

OUTSIDE = Environment()


@needs("postgresql")
def test_a_postgresql_is_restored_from_a_dump(tmp_path: Path) -> None:
    """The dump in a new database: refused without the key file of before, and whole with it."""
    with postgresql() as cluster:
        first, second = cluster.new_database(), cluster.new_database()

        async def fill() -> list[str]:
            async with open_store(tmp_path / "first", OUTSIDE, url=first, inline=True) as store:
                account = await provision(store, "demo")
                keys = SigningKeys(store, OUTSIDE, await shared_key(tmp_path / "first", store))
                return [key.selector for key in await keys.begin_rotation(account.account_id, account.domain)]

        selectors = trio.run(fill)
        dump = tmp_path / "appliance.dump"
        programs = cluster.programs
        subprocess.run([programs / "pg_dump", "--format=custom", f"--file={dump}", first], check=True)
        subprocess.run([programs / "pg_restore", f"--dbname={second}", "--no-owner", dump], check=True)
        config_file = tmp_path / "config.toml"
        config_file.write_text(f'[server]\ndata_dir = "{tmp_path / "second"}"\n[store]\nurl = "{second}"\n')
        code, _, told = ran(config_file, "pause", "--reason", "restored")
        assert (code, "appliance.key: missing" in told) == (1, True)
        (tmp_path / "second").mkdir(mode=0o700)
        shutil.copy(tmp_path / "first" / KEY_FILE, tmp_path / "second" / KEY_FILE)
        assert ran(config_file, "pause", "--reason", "restored")[0] == 0
        records = command(config_file, "domain", "records", "demo", "example.com")["records"]
        assert all(any(each["name"].startswith(selector) for each in records) for selector in selectors)
        with psycopg.connect(second) as connection:
            assert connection.execute("SELECT reason FROM pool_holds WHERE pool = '*'").fetchone() == ("restored",)
