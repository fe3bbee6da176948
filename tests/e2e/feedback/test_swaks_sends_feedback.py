"""swaks, the tester that no one wrote for this listener, sends back what may come back, and what may not.

Guessing: a thousand tokens in one session and in many at once are refused, no client has more connections than one may,
and a server that has something to tell is served beside them.
"""

import re
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import trio

from appliance.environment import Environment
from appliance.feedback.return_path import LIFETIME
from tests.e2e.delivery.world import World, world
from tests.e2e.feedback.feedback import LISTENS, NAME, return_path
from tests.e2e.submission.client import endpoint
from tests.fakes.mx import FakeMx
from tests.inbound.bounces import bounce
from tests.programs import needs, require
from tests.running_appliance import add_account

REJECTED = 24  # how swaks ends if no recipient was taken
REFUSED = re.compile(r"^<\*\* (550 5\.\d\.\d)", re.MULTILINE)

pytestmark = needs("swaks")


class Said(NamedTuple):
    """How a run of swaks ended, and its transcript."""

    code: int
    text: str

    @property
    def refusals(self) -> list[str]:
        """The replies that refused a recipient."""
        return REFUSED.findall(self.text)


def swaks(made: World, mime: bytes, recipients: Sequence[str], *options: str) -> Said:
    """One session, with the null sender unless the options say another."""
    given = mime.replace(b"\r\n", b"\n").removesuffix(b"\n").decode()  # it adds the last line end
    host, port = endpoint(made.running, "inbound")
    command = [require("swaks"), "--server", host, "--port", str(port), "--helo", "mx.example.net", "--timeout", "30"]
    command += ["--from", "<>", "--to", ",".join(recipients), "--data", "-", *options]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=120, check=False)
    return Said(done.returncode, done.stdout + done.stderr)


async def delivered(made: World, *addresses: str) -> dict[str, str]:
    """A message that a server took: the return path of each recipient."""
    message = await made.send(*addresses)
    await made.final(message)
    rows = made.rows("SELECT address, id FROM recipients WHERE message_id = ?", message)
    return {address: return_path(made.running, recipient_id) for address, recipient_id in rows}


def late(made: World) -> set[str]:
    """The recipients that bounced late."""
    return {address for (address,) in made.rows("SELECT address FROM recipients WHERE late_bounce IS NOT NULL")}


def guesses(path: str, count: int) -> list[str]:
    """Other tokens than that of a return path, which differ from it in the MAC."""
    alphabet = "abcdefghijklmnopqrstuvwxyz234567"
    token = path.partition("@")[0]
    ends = (f"{alphabet[n // 1024]}{alphabet[n // 32 % 32]}{alphabet[n % 32]}" for n in range(count + 1))
    return [f"{token[:-3]}{end}@{NAME}" for end in ends if f"{token[:-3]}{end}" != token][:count]


async def test_swaks_sends_feedback(tmp_path: Path) -> None:
    """Its bounces for valid tokens come in, with and without TLS, from any sender; nothing else does."""
    async with world(tmp_path, LISTENS) as made:
        await made.domain("example.net", FakeMx())
        await trio.to_thread.run_sync(partial(add_account, made.running.data_dir, "other", domain="example.org"))
        paths = await delivered(made, "ada@example.net", "bob@example.net", "cyd@example.net", "dan@example.net")
        ada = paths["ada@example.net"]
        old = Environment(now=lambda: Environment().now() - LIFETIME - 60_000_000).identifier("rcp")
        for recipient, reply in (
            (guesses(ada, 1)[0], "550 5.1.1"),  # forged
            (return_path(made.running, old), "550 5.7.1"),  # signed with the key of this installation, and too old
            (f"{ada.partition('@')[0]}@bounces.example.org", "550 5.1.1"),  # a name of the other account
            (f"{ada.partition('@')[0]}@example.com", "550 5.1.1"),
            ("stranger@example.net", "550 5.7.1"),  # relaying
            ("shop@example.com", "550 5.7.1"),  # a mailbox
            ("fbl@bounces.example.edu", "550 5.1.1"),
        ):
            said = await trio.to_thread.run_sync(swaks, made, bounce("ada@example.net"), [recipient])
            assert (said.code, said.refusals) == (REJECTED, [reply]), said.text
        assert made.rows("SELECT count(*) FROM feedback_mail") == [(0,)]
        assert late(made) == set()

        for name, options in (
            ("ada", ()),
            ("bob", ("--tls",)),
            ("cyd", ("--from", "MAILER-DAEMON@mx.example.net")),
            ("dan", ("--pipeline",)),
        ):
            address = f"{name}@example.net"
            said = await trio.to_thread.run_sync(swaks, made, bounce(address), [paths[address]], *options)
            assert said.code == 0, said.text
            assert ("~> MAIL FROM:<>" in said.text) == (name == "bob")  # its sign for what is encrypted
        await made.until(lambda: late(made) == set(paths))
        listed = made.rows("SELECT address FROM suppressions ORDER BY address")
        assert [address for (address,) in listed] == sorted(paths)
