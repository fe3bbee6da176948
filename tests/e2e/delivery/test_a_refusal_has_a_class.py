"""What a server refuses mail for is told beside its code: in the API, by `explain`, and in the numbers."""

import json
from pathlib import Path

from tests.e2e.delivery.telling import explained, polled_recipient
from tests.e2e.delivery.world import delays, world
from tests.fakes.mx import FakeMx

REFUSALS = {
    "unknown": (b"550 5.1.1 User unknown\r\n", "bounced", "invalid_recipient"),
    "full": (b"552 5.2.2 Over quota\r\n", "bounced", "mailbox_full"),
    "spf": (b"550 5.7.26 SPF and DKIM did not pass\r\n", "bounced", "authentication"),
    "listed": (b"554 5.7.1 Blocked by zen.spamhaus.org\r\n", "bounced", "reputation"),
    "later": (b"451 4.3.0 Try again later\r\n", "failed", "temporary"),
    "taken": (b"250 2.1.5 ok\r\n", "delivered", None),
}


async def test_a_refusal_has_a_class(tmp_path: Path) -> None:
    """Each has its own; a delivery has none; what the interface fixes stays as it is."""
    async with world(tmp_path, delays("1s")) as made:
        answers = {f"RCPT {name}@classes.test": reply for name, (reply, _, _) in REFUSALS.items()}
        await made.domain("classes.test", FakeMx(answers=answers))
        sent = {name: await made.send(f"{name}@classes.test") for name in REFUSALS}
        sent["nowhere"] = await made.send("ada@nowhere.test")
        await made.final(*sent.values())
        wanted = {name: (status, found) for name, (_, status, found) in REFUSALS.items()}
        wanted["nowhere"] = ("bounced", "invalid_recipient")
        for name, message in sent.items():
            told = (await made.ask("GET", f"/v1/emails/{message}")).json()["recipients"][0]
            assert (told["status"], told["bounce_class"], told["late_bounce"]) == (*wanted[name], None), name
            assert "bounce_class" not in await polled_recipient(made, message)
            (recipient,) = json.loads(await explained(made, message, "--json"))["recipients"]
            assert recipient["bounce_class"] == wanted[name][1]
            assert ("class of bounce: " in await explained(made, message)) is (wanted[name][1] is not None)
        again = await made.send("unknown@classes.test")
        told = (await made.ask("GET", f"/v1/emails/{again}")).json()["recipients"][0]
        assert (told["last_smtp_code"], told["bounce_class"]) == (None, "other")
        events = [json.loads(body) for (body,) in made.rows("SELECT body FROM events")]
        told = {event["data"]["to"]: event["data"].get("bounce_class") for event in events}
        told.pop("unknown@classes.test")  # twice: bounced, then suppressed
        classes = {f"{name}@classes.test": wanted[name][1] for name in REFUSALS if name != "unknown"}
        assert told == classes | {"later@classes.test": None, "ada@nowhere.test": "invalid_recipient"}
        stats = (await made.ask("GET", "/v1/stats")).json()
        assert stats["totals"]["suppressed"] == 1  # which no server has refused
        assert stats["bounce_classes"] == [
            {"bounce_class": "invalid_recipient", "bounced": 2, "failed": 0},
            {"bounce_class": "mailbox_full", "bounced": 1, "failed": 0},
            {"bounce_class": "reputation", "bounced": 1, "failed": 0},
            {"bounce_class": "authentication", "bounced": 1, "failed": 0},
            {"bounce_class": "temporary", "bounced": 0, "failed": 1},
        ]
