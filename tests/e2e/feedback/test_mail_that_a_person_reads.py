"""Mail to fbl@, postmaster@ and abuse@ of a return path: kept, shown by API and command, and forwarded by delivery."""

from functools import partial
from pathlib import Path
from typing import Any

import dkim  # type: ignore[import-untyped]  # dkimpy has no types
import pytest
import trio

from appliance.feedback.mime import open_mail
from tests.e2e.delivery.world import World, world
from tests.e2e.feedback.feedback import LISTENS, NAME
from tests.e2e.feedback.test_a_late_bounce_and_a_complaint import back
from tests.fakes.mx import FakeMx
from tests.running_appliance import add_account, command

VERIFICATION = (
    b"From: Feedback Loop <fbl@provider.example>\r\nSubject: Confirm your loop\r\n\r\n"
    b"Open https://provider.example/verify?code=1234\r\n"
)
ABUSE = b"From: Ann <ann@example.org>\r\nSubject: Spam from =?utf-8?q?you=3F?=\r\n\r\nPlease stop.\r\n"


async def asked(made: World, path: str, account: Any = None) -> tuple[int, Any]:
    answer = await made.ask("GET", path, account=account)
    return answer.status_code, answer.json()


@pytest.mark.both_engines
async def test_the_operator_reads_what_needs_a_person(tmp_path: Path) -> None:
    """The verification mail of a loop is in the inbox; a copy of mail to abuse@ arrives, signed, and cannot bounce."""
    mx = FakeMx()
    async with world(tmp_path, f'{LISTENS}\nforward_to = "operator@example.net"') as made:
        await made.domain("example.net", mx)
        paid = made.credits()
        await back(made, VERIFICATION, f"fbl@{NAME}")
        await back(made, ABUSE, f"abuse@{NAME}")
        await made.until(lambda: len(mx.messages) == 1)

        (copy,) = mx.messages
        assert copy.mail.startswith("<>")
        assert len(copy.recipients) == 1
        assert "operator@example.net" in copy.recipients[0]
        mail = open_mail(copy.data)
        assert mail.header("subject") == f"[abuse@{NAME}] Spam from you?"
        assert [part.content.strip() for part in mail.parts if part.kind == "message/rfc822"] == [ABUSE.strip()]
        records = dict(made.rows("SELECT selector, record FROM dkim_keys"))
        signature = dkim.DKIM(copy.data)
        assert signature.verify(dnsfunc=lambda name, **_: records[name.decode().partition(".")[0]].encode())
        await made.until(lambda: made.rows("SELECT status FROM recipients") == [("delivered",)])
        assert made.credits() == paid
        assert made.rows("SELECT count(*) FROM events") == [(0,)]

        status, answer = await asked(made, "/v1/feedback/inbox")
        assert status == 200
        results = [(each["kind"], each["result"], each["subject"]) for each in answer["mails"]]
        assert results == [("abuse", "forwarded", "Spam from you?"), ("fbl", "not_understood", "Confirm your loop")]
        for limit, following in ((2, None), (1, answer["mails"][0]["id"])):
            _, page = await asked(made, f"/v1/feedback/inbox?limit={limit}")
            assert page["next"] == following
        path = f"/v1/feedback/inbox/{answer['mails'][1]['id']}"
        status, shown = await asked(made, path)
        assert (status, shown["text"].strip()) == (200, "Open https://provider.example/verify?code=1234")
        assert (shown["source"].encode(), shown["truncated"]) == (VERIFICATION, False)

        stranger = await trio.to_thread.run_sync(
            partial(add_account, made.running.data_dir, "stranger", domain="example.org")
        )
        assert (await asked(made, "/v1/feedback/inbox", stranger))[1]["mails"] == []
        assert (await asked(made, path, stranger))[0] == 404

        run = partial(trio.to_thread.run_sync, command, made.running.config_file, "feedback", "inbox")
        listed = await run()
        assert [each["account"] for each in listed["mails"]] == ["demo", "demo"]
        one = await run(answer["mails"][1]["id"])
        assert one["mail"]["subject"] == "Confirm your loop"
        assert "code=1234" in one["text"]
