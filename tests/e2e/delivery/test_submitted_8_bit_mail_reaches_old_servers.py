"""Mail submitted over SMTP with raw UTF-8 and 8-bit text, to a server that takes neither: encoded and signed."""

import email
import email.policy
from email.message import EmailMessage
from pathlib import Path

from tests.e2e.delivery.test_every_signature_verifies import published
from tests.e2e.delivery.verifier import signatures, verifies
from tests.e2e.delivery.world import delays, world
from tests.fakes.mx import EXTENSIONS, FakeMx

TEXT = "Grüße, und ein € für dich.\r\n"
MESSAGE = (
    "From: Müller & Söhne <shop@example.com>\r\nTo: Zoë <ada@old.test>\r\nSubject: Grüße\r\n"
    f"MIME-Version: 1.0\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n\r\n{TEXT}"
).encode()


async def test_submitted_8_bit_mail_reaches_old_servers(tmp_path: Path) -> None:
    """The old server gets seven bits that read the same, a modern one the bytes that were submitted; both signed."""
    async with world(tmp_path, delays("1h")) as made:
        old, modern = FakeMx(("PIPELINING", "SIZE 10485760")), FakeMx(EXTENSIONS)
        await made.domain("old.test", old)
        await made.domain("modern.test", modern)
        for recipient in ("ada@old.test", "ada@modern.test"):
            await made.submit(recipient, MESSAGE, mail_options=["BODY=8BITMIME"])
        await made.until(lambda: bool(old.messages and modern.messages))
        (encoded,), (raw,), records = old.messages, modern.messages, published(made)
        assert encoded.data.isascii()
        assert raw.data.endswith(MESSAGE)
        read = email.message_from_bytes(encoded.data, policy=email.policy.default)
        assert isinstance(read, EmailMessage)
        assert (read["From"], read["Subject"]) == ("Müller & Söhne <shop@example.com>", "Grüße")
        assert read.get_content().splitlines() == TEXT.splitlines()
        for got in (encoded, raw):
            assert signatures(got.data) == 2
            assert [verifies(got.data, number, records) for number in range(2)] == [True, True]
