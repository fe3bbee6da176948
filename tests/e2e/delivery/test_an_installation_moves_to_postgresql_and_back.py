"""Mail that waits in a file, and in a PostgreSQL after it was copied there, is sent once; nothing else changes."""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest
import trio

from appliance.environment import Environment
from appliance.keys.keyfile import KEY_FILE
from appliance.store import FILE_NAME, open_store
from tests.e2e.delivery.test_the_shell_steers_a_running_server import shell
from tests.e2e.delivery.world import CREDITS, World, delays, world
from tests.fakes.mx import FakeMx
from tests.postgresql_server import postgresql
from tests.programs import needs
from tests.store.test_copying import content, of_file, of_server

WAITING = 12  # messages that were never tried
LARGE = "x" * 700_000  # is stored in parts


async def statistics(made: World, at: int, data_dir: Path, url: str = "") -> Any:
    """The account's figures at one moment: what is deferred now is due a little later."""
    async with open_store(data_dir, Environment(now=lambda: at), url=url, inline=True) as store:
        return await store.statistics.of(made.running.account.account_id, 0)


def waiting(url: str) -> int:
    with psycopg.connect(url) as connection:
        ((count,),) = connection.execute("SELECT count(*) FROM recipients WHERE next_attempt_at IS NOT NULL").fetchall()
        return int(count)


@needs("postgresql")
@pytest.mark.sqlite_only
async def test_an_installation_moves_to_postgresql_and_back(tmp_path: Path) -> None:
    """Delivered, deferred and waiting mail: each arrives once, and the ledger and all figures stay equal."""
    with postgresql() as database:
        url = database.new_database()
        async with world(tmp_path, delays("5s")) as made:
            server = FakeMx()
            grey = FakeMx(answers={"RCPT": [b"451 4.7.1 greylisted\r\n", b"250 2.1.5 ok\r\n"]})
            await made.domain("shop.test", server)
            await made.domain("grey.test", grey)
            await made.final(await made.send("done@shop.test"))
            await made.tried(await made.send("ada@grey.test"))
            await shell(made, "pause", "--reason", "we move")
            await trio.sleep(1.2)  # until the server has seen it
            for number in range(WAITING):
                await made.send(f"waiting{number}@shop.test", text=LARGE if number % 5 == 0 else "short")
            assert await made.terminate() == 0
            assert len(made.unfinished()) == WAITING + 1

            old, settings = made.running.data_dir, made.running.config_file.read_text()
            now = Environment().now()
            before, figures = of_file(old / FILE_NAME), await statistics(made, now, old)
            copied = await shell(made, "store", "copy", "--to", url)
            assert copied["rows"] == sum(map(len, content(before).values()))
            assert content(of_server(url)) == content(before)
            assert of_file(old / FILE_NAME) == before
            assert await statistics(made, now, old, url) == figures

            made.running.config_file.write_text(f'{settings}\n[store]\nurl = "{url}"\n')
            await made.start()
            await shell(made, "resume")
            await made.until(lambda: waiting(url) == 0, within=60)
            await made.send("new@shop.test")
            await made.until(lambda: waiting(url) == 0)
            assert await made.terminate() == 0
            arrived = ["done", *(f"waiting{number}" for number in range(WAITING)), "new"]
            assert Counter(recipients(server)) == Counter(f"{name}@shop.test" for name in arrived)
            assert recipients(grey) == ["ada@grey.test"]
            assert of_file(old / FILE_NAME) == before

            back = tmp_path / "back"
            now = Environment().now()
            after, figures = content(of_server(url)), await statistics(made, now, old, url)
            await shell(made, "store", "copy", "--to-sqlite", str(back))
            assert content(of_file(back / FILE_NAME)) == after
            assert await statistics(made, now, back) == figures
            ((credit,),) = [row[2:3] for row in after["accounts"]]
            assert credit == sum(row[3] for row in after["credit_ledger"]) == CREDITS - WAITING - 3

            shutil.copy(old / KEY_FILE, back)
            made.running.config_file.write_text(settings.replace(str(old), str(back)))
            made.running.data_dir = back
            await made.start()
            await made.final(await made.send("last@shop.test"))
            assert len(server.messages) == len(arrived) + 1
            assert len(grey.messages) == 1


def recipients(server: FakeMx) -> list[str]:
    return [address for received in server.messages for address in received.recipients]
