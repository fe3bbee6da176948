"""A server that hangs up, wherever it does, has taken nothing: the mail is tried again and arrives."""

from pathlib import Path

import trio

from tests.e2e.delivery.world import delays, said, world
from tests.fakes.mx import EXTENSIONS, FakeMx, hang_up, say_and_hang_up

STEPWISE = tuple(extension for extension in EXTENSIONS if extension != "PIPELINING")
POINTS = ("greeting", "EHLO", "MAIL", "RCPT", "DATA", ".")
USUAL = {
    "greeting": b"220 mx.example ESMTP\r\n",
    "EHLO": b"250-mx.example\r\n250 8BITMIME\r\n",
    "MAIL": b"250 2.1.0 ok\r\n",
    "RCPT": b"250 2.1.5 ok\r\n",
    "DATA": b"354 go on\r\n",
    ".": b"250 2.0.0 queued\r\n",
}


async def hang_up_in_data(stream: trio.abc.Stream) -> None:
    """Let DATA begin, take a little of it, and hang up."""
    await stream.send_all(USUAL["DATA"])
    await stream.receive_some(100)
    await hang_up(stream)


async def test_a_disconnect_at_any_point_defers(tmp_path: Path) -> None:
    """Hung up on once at each point, before or within the answer or amid the data, every message arrives later."""
    async with world(tmp_path, delays("1s", "1s")) as made:
        sent = {}
        for style, extensions in (("pipelined", EXTENSIONS), ("stepwise", STEPWISE)):
            for number, point in enumerate(POINTS):
                cut = say_and_hang_up(USUAL[point][:4])
                for name, answer in (("before", hang_up), ("within", cut)):
                    domain = f"{style}-{number}-{name}.test"
                    server = FakeMx(extensions, {point: [answer, USUAL[point]]})
                    await made.domain(domain, server)
                    sent[domain] = (await made.send(f"ada@{domain}"), server)
            domain = f"{style}-amid-data.test"
            server = FakeMx(extensions, {"DATA": [hang_up_in_data, USUAL["DATA"]]})
            await made.domain(domain, server)
            sent[domain] = (await made.send(f"ada@{domain}"), server)
        await made.final(*(message for message, _ in sent.values()), within=30)
        for domain, (message, server) in sent.items():
            assert said(made.attempts(message)) == [(None, "deferred"), (250, "delivered")], domain
            assert len(server.messages) == 1, domain
            assert made.events(message) == ["email.delivered"], domain
        assert made.complaints() == []


async def test_an_acceptance_without_its_line_end_counts_for_nothing(tmp_path: Path) -> None:
    """`250 ` and a closed connection after the final dot is no answer: the message is tried again."""
    async with world(tmp_path, delays("1s")) as made:
        server = FakeMx(answers={".": [say_and_hang_up(b"250 2.0.0 qu"), USUAL["."]]})
        await made.domain("cut.test", server)
        message = await made.send("ada@cut.test")
        await made.final(message)
        first, second = made.attempts(message)
        assert "end of data" in (first.response or "")
        assert second.code == 250
