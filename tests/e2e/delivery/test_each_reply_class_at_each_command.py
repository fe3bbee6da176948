"""Whatever a server answers, and to whichever command, the recipient gets the outcome that the answer means."""

from pathlib import Path

import trio

from tests.e2e.delivery.world import CREDITS, World, delays, lines, world
from tests.fakes.mx import EXTENSIONS, FakeMx

STEPWISE = tuple(extension for extension in EXTENSIONS if extension != "PIPELINING")

REPLIES = {
    "2": b"250 2.0.0 fine\r\n",
    "3": b"354 go on\r\n",
    "4": b"451 4.3.0 not now\r\n",
    "5": b"554 5.6.0 never\r\n",
    "odd": b"hello there\r\n",
}
COMMANDS = {"greeting": "greeting", "ehlo": "EHLO", "mail": "MAIL", "rcpt": "RCPT", "data": "DATA", "dot": "."}

# What becomes of a recipient, by command and reply, if not deferred. A 5xx before MAIL is about the session.
EXPECTED = {
    ("greeting", "2"): "delivered",
    ("ehlo", "2"): "delivered",
    ("mail", "2"): "delivered",
    ("rcpt", "2"): "delivered",
    ("data", "3"): "delivered",
    ("dot", "2"): "delivered",
    ("ehlo", "5"): "delivered",  # HELO is tried, RFC 5321 3.2
    ("mail", "5"): "bounced",
    ("rcpt", "5"): "bounced",
    ("data", "5"): "bounced",
    ("dot", "5"): "bounced",
}


async def _send_all(made: World) -> dict[tuple[str, str, str], tuple[str, FakeMx]]:
    sent = {}
    for style, extensions in (("pipelined", EXTENSIONS), ("stepwise", STEPWISE)):
        for command, verb in COMMANDS.items():
            for family, reply in REPLIES.items():
                domain = f"{style}-{command}-{family}.test"
                server = FakeMx(extensions, {verb: reply})
                await made.domain(domain, server)
                sent[style, command, family] = (await made.send(f"ada@{domain}"), server)
    return sent


async def test_each_reply_class_at_each_command(tmp_path: Path) -> None:
    """2xx, 3xx, 4xx, 5xx and nonsense at each command of either style have the outcome that the table says."""
    async with world(tmp_path, delays("1h")) as made:
        sent = await _send_all(made)
        with trio.fail_after(30):
            await made.tried(*(message for message, _ in sent.values()), within=30)
        bounced = 0
        for (style, command, family), (message, server) in sent.items():
            found, expected = made.recipient(message), EXPECTED.get((command, family), "deferred")
            where = f"{style} {command} {family}: {found}"
            assert found.status == expected, where
            assert found.attempts == 1, where
            assert bool(server.messages) is (expected == "delivered"), where
            assert made.events(message) == ([] if expected == "deferred" else [f"email.{expected}"]), where
            (attempt,) = made.attempts(message)
            assert attempt.decision.startswith(expected), where
            assert attempt.host == f"mx0.{style}-{command}-{family}.test"
            assert lines(attempt, "S") or family == "odd", where
            bounced += expected == "bounced"
        assert made.credits() == CREDITS - len(sent) + bounced
        assert made.rows("SELECT * FROM suppressions") == []
        assert made.complaints() == []
