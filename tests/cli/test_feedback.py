"""`appliance feedback inbox`, on a database with mail in it."""

import pytest
import trio

from appliance.environment import Environment
from appliance.model.feedback import FeedbackResult, KeptMail
from appliance.store import open_store
from tests.cli.shell import Shell, fields
from tests.docs.test_cli import documented

MIME = b"Subject: \x1b[2J\r\n\r\nOpen \x1b]0;title\x07https://provider.example/?code=12\r\n"


@pytest.fixture
def acme(shell: Shell) -> Shell:
    """Commands, the account acme with a domain, and a mail to its address of complaints."""
    shell.create("acme")
    shell.json("domain", "add", "acme", "acme.example")

    async def receive() -> None:
        env = Environment()
        async with open_store(shell.data_dir, env, inline=True) as store:
            address = "fbl@bounces.acme.example"
            mail_id = await store.feedback.add([address], MIME)
            mail = KeptMail(mail_id, "fbl", address, "Loop \x1b[2J", "Confirm", env.now(), MIME)
            await store.feedback.finish(mail_id, [store.feedback_inbox.keep(mail, FeedbackResult.NOT_UNDERSTOOD)])

    trio.run(receive)
    return shell


def test_the_mail_is_listed_and_shown(acme: Shell) -> None:
    """As JSON with the documented fields, and for a terminal without its control characters."""
    listed = acme.json("feedback", "inbox")
    assert fields(listed) == fields(documented("feedback inbox"))
    (mail,) = listed["mails"]
    assert (mail["account"], mail["kind"], mail["result"]) == ("acme", "fbl", "not_understood")
    one = acme.json("feedback", "inbox", mail["id"])
    assert one["mail"] == mail
    assert one["source"].encode() == MIME
    for words in ([], [mail["id"]]):
        shown = acme.text("feedback", "inbox", *words)
        assert "Confirm" in shown
        assert "\x1b" not in shown
        assert "\x07" not in shown
    assert "https://provider.example/?code=12" in shown


def test_a_mail_that_is_not_there(acme: Shell) -> None:
    refused = acme.refused("feedback", "inbox", "fbm_none")
    assert refused.startswith("Error: no mail fbm_none in the feedback inbox")
