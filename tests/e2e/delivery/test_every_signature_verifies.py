"""DKIM: each message carries two signatures, and a verifier that knows only the published records accepts both."""

from pathlib import Path

from tests.e2e.delivery.verifier import signatures, verifies
from tests.e2e.delivery.world import World, world
from tests.fakes.mx import FakeMx

MESSAGES = 20

# Bodies that canonicalisation has an opinion about, beside the plain ones.
BODIES = (
    {"text": "Plain."},
    {"text": "  spaces   and\ttabs  \n\n\n"},
    {"text": ".\n..\n.leading dots\n.\n"},
    {"text": "x" * 5_000},
    {"text": "Ünïcödé €\n" * 20},
    {"html": "<p>Hello</p>\n" * 50},
    {"text": "both", "html": "<b>both</b>"},
    {"text": "\n\n\nempty lines first"},
    {"subject": "Grüße, " + "long " * 40, "text": "a long subject"},
    {
        "text": "with a file",
        "attachments": [{"filename": "a.txt", "content": "aGVsbG8=", "content_type": "text/plain"}],
    },
)


def published(made: World) -> dict[bytes, bytes]:
    """The TXT records an operator is told to publish, by the name a verifier asks for."""
    found = made.rows("SELECT selector || '._domainkey.' || domain || '.', record FROM dkim_keys")
    return {name.encode(): record.encode() for name, record in found}


async def test_every_signature_verifies(tmp_path: Path) -> None:
    """Twenty messages of ten kinds: RSA and Ed25519 on each, both verified by dkimpy."""
    async with world(tmp_path) as made:
        server = FakeMx()
        await made.domain("verifier.test", server)
        sent = [
            await made.send(f"user{number}@verifier.test", **BODIES[number % len(BODIES)]) for number in range(MESSAGES)
        ]
        await made.final(*sent, within=60)
        records = published(made)
        assert len(records) == 2
        assert len(server.messages) == MESSAGES
        for got in server.messages:
            assert signatures(got.data) == 2
            assert [verifies(got.data, number, records) for number in range(2)] == [True, True], got.data[:2000]
