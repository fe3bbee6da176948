"""What each kind of mail does at each kind of address; and that every mail comes to an end."""

from pathlib import Path
from typing import Any

import pytest
import trio

from appliance.errors import Code, Refused
from appliance.feedback.return_path import LIFETIME, ReturnPaths
from appliance.inbound import worker
from appliance.model.mail import RecipientStatus
from appliance.telemetry.metrics import BOUNCES, FEEDBACK, REPORTS_READ
from tests import stored_mail
from tests.feedback.mutations import mutated
from tests.feedback.report_mail import as_mail, gzipped
from tests.inbound.bounces import bounce, complaint, vacation
from tests.inbound.conftest import KEY, NAME, Read
from tests.store.samples import outcome

CORPUS = Path(__file__).parents[1] / "feedback" / "corpus"
MUTATED = 150  # mails


def results(kind: str) -> dict[str, int]:
    """How often mail to such addresses had each result, since the process began."""
    return {key[1]: count for key, count in FEEDBACK.values.items() if isinstance(key, tuple) and key[0] == kind}


async def test_a_bounce_at_a_token(read: Read) -> None:
    """The recipient of the token has bounced late, and no other; in whatever case the address came."""
    message = await read.delivered("ada@example.net", "bob@example.net")
    counted = BOUNCES.values.get(("late_bounced", "invalid_recipient"), 0)
    for _ in range(2):
        await read.comes_back(bounce("ada@example.net"), read.path(message).upper())
    first, second = (await read.message(message)).recipients
    assert first.late_bounce is not None
    assert (first.late_bounce.code, first.late_bounce.bounce_class) == (550, "invalid_recipient")
    assert "User unknown" in first.late_bounce.response
    assert BOUNCES.values["late_bounced", "invalid_recipient"] == counted + 1
    assert second.late_bounce is None
    assert await read.suppressed() == [("ada@example.net", "late_bounce")]


@pytest.mark.parametrize(
    ("mime", "result"),
    [
        (bounce("ada@example.net", status="4.2.2", action="delayed", code="452"), "delayed"),
        (bounce("ada@example.net", status="2.0.0", action="relayed", code="250"), "delivered"),
        (vacation(), "auto_reply"),
        (b"Subject: hello\r\n\r\nHow are you?\r\n", "not_understood"),
        (b"", "not_understood"),
        (complaint("Subject: x", kind="not-spam"), "no_complaint"),
    ],
)
async def test_what_is_no_bounce_changes_nothing(read: Read, mime: bytes, result: str) -> None:
    """It is counted, and gone."""
    message = await read.delivered("ada@example.net")
    before, told = await read.message(message), results("bounce").get(result, 0)
    await read.comes_back(mime, read.path(message))
    assert await read.message(message) == before
    assert await read.suppressed() == []
    assert results("bounce")[result] == told + 1


@pytest.mark.parametrize(
    ("tags", "template", "number", "found"),
    [
        (("receipts", "news"), None, 1, "tag:news"),
        (("receipts", "news"), "weekly", 2, "template:weekly"),
        ((), "weekly", 0, "template:weekly"),
    ],
)
async def test_a_mail_to_unsubscribe(
    read: Read, tags: tuple[str, ...], template: str | None, number: int, found: str
) -> None:
    """Whatever it says: the address leaves that list and no other, once; the recipient is not changed."""
    message = await stored_mail.accept(
        read.store, read.outside, read.account_id, "Ada@example.net", tags=tags, template=template
    )
    before, told = await read.message(message), results("unsubscribe")
    address = ReturnPaths(KEY).unsubscribe_address(message.recipients[0].id, NAME, number)
    for mime in (b"Subject: unsubscribe\r\n\r\n", b"", bounce("ada@example.net")):
        await read.comes_back(mime, address.upper())
    rows = await read.rows("SELECT account_id, address, list FROM unsubscriptions")
    assert rows == [(read.account_id, "ada@example.net", found)]
    assert await read.message(message) == before
    now = results("unsubscribe")
    assert [now[each] - told.get(each, 0) for each in ("unsubscribed", "repeated")] == [1, 2]


async def test_a_mail_to_unsubscribe_that_leads_nowhere(read: Read) -> None:
    """A list that the message does not have, a name that the token is not for, an unknown recipient."""
    message = await stored_mail.accept(read.store, read.outside, read.account_id, "ada@example.net", tags=("news",))
    id_, paths = message.recipients[0].id, ReturnPaths(KEY)
    addresses = [
        paths.unsubscribe_address(id_, NAME, 1),
        paths.unsubscribe_address(id_, NAME, 0).replace(NAME, "bounces.example.org"),
        paths.unsubscribe_address(read.outside.identifier("rcp"), NAME, 0),
        paths.unsubscribe_address(id_, NAME, 0).replace("@", "a@"),
    ]
    await read.comes_back(b"Subject: unsubscribe\r\n\r\n", *addresses)
    assert await read.rows("SELECT count(*) FROM unsubscriptions") == [(0,)]


async def test_a_bounce_that_is_faster_than_our_record(read: Read, autojump_clock: trio.testing.MockClock) -> None:
    """It waits for the result of its recipient, and lets others go before it."""
    early = await stored_mail.accept(read.store, read.outside, read.account_id, "ada@example.net")
    other = await read.delivered("bob@example.net")
    await read.store.feedback.add([read.path(early)], bounce("ada@example.net"))
    assert await read.worker.read_next()
    assert await read.rows("SELECT tries FROM feedback_mail") == [(1,)]
    began = trio.current_time()
    await read.store.feedback.add([read.path(other)], bounce("bob@example.net"))
    assert await read.worker.read_next()
    assert (await read.message(other)).recipients[0].late_bounce is not None
    assert trio.current_time() < began + 1
    due = await stored_mail.due(read.store, early)
    await read.store.queue.record([outcome(each, RecipientStatus.DELIVERED, read.outside.now()) for each in due])
    assert await read.worker.read_next()
    assert trio.current_time() >= began + worker.FEEDBACK_PAUSE
    assert (await read.message(early)).recipients[0].late_bounce is not None
    assert not await read.worker.read_next()


async def test_a_bounce_without_a_result_comes_to_an_end(read: Read, autojump_clock: trio.testing.MockClock) -> None:
    """After some seconds it is counted as one for a recipient that was not delivered."""
    early = await stored_mail.accept(read.store, read.outside, read.account_id, "ada@example.net")
    told = results("bounce").get("not_delivered", 0)
    await read.store.feedback.add([read.path(early)], bounce("ada@example.net"))
    for _ in range(worker.TRIES):
        assert await read.worker.read_next()
    assert not await read.worker.read_next()
    assert results("bounce")["not_delivered"] == told + 1
    assert trio.current_time() >= (worker.TRIES - 1) * worker.FEEDBACK_PAUSE


async def test_a_bounce_of_a_policy_suppresses_nothing(read: Read) -> None:
    """It is a late bounce all the same."""
    message = await read.delivered("ada@example.net")
    await read.comes_back(bounce("ada@example.net", status="5.7.1", code="554"), read.path(message))
    assert (await read.message(message)).recipients[0].late_bounce is not None
    assert await read.suppressed() == []


async def test_a_token_that_leads_nowhere(read: Read) -> None:
    """Of another installation, at a name that it is not for, expired by then, or of no recipient."""
    message = await read.delivered("ada@example.net")
    before, told = await read.message(message), results("bounce").get("unmatched", 0)
    unknown = read.worker.return_paths.address(read.outside.identifier("rcp"), NAME)
    local = read.path(message).partition("@")[0]
    paths = [unknown, f"{local}@bounces.example.org", "what@ever"]
    await read.comes_back(bounce("ada@example.net"), *paths)
    await read.comes_back(bounce("ada@example.net"), read.path(message)[:-1])
    await read.store.feedback.add([read.path(message)], bounce("ada@example.net"))
    late = read.outside.now() + LIFETIME + 1
    await read.store.engine.change("UPDATE feedback_mail SET received_at = :at", {"at": late})
    assert await read.worker.read_next()
    assert results("bounce")["unmatched"] == told + 5
    assert await read.message(message) == before


async def test_a_token_outlives_the_name_it_was_made_for(read: Read) -> None:
    """The domain has another return path now, or is gone: what was sent before still leads to its recipient."""
    message = await read.delivered("ada@example.net", "bob@example.net")
    old = [read.path(message, number) for number in range(2)]
    await read.store.access.add_domain(read.account_id, "example.com", usable=True, return_path="rp.example.com")
    await read.comes_back(bounce("ada@example.net"), old[0])
    await read.store.domains.remove(read.account_id, "example.com")
    await read.comes_back(bounce("bob@example.net"), old[1])
    assert all(each.late_bounce is not None for each in (await read.message(message)).recipients)


async def test_one_mail_to_several_tokens(read: Read) -> None:
    """Each of its recipients has bounced, with what the mail says of it."""
    message = await read.delivered("ada@example.net", "bob@example.net")
    await read.comes_back(bounce("ada@example.net"), read.path(message), read.path(message, 1))
    assert all(each.late_bounce is not None for each in (await read.message(message)).recipients)


async def test_a_complaint_at_a_token(read: Read) -> None:
    """The token names the recipient, whatever the report says."""
    message = await read.delivered("ada@example.net")
    await read.comes_back(complaint("Subject: x", recipient="eve@example.net"), read.path(message))
    assert await read.suppressed() == [("ada@example.net", "complaint")]
    assert (await read.message(message)).recipients[0].late_bounce is None


async def test_a_complaint_at_the_address_of_complaints(read: Read) -> None:
    """A token in what the provider kept of the message proves the recipient; a forged one before it does not."""
    message = await read.delivered("ada@example.net", "bob@example.net")
    forged = f"b+{'b' * 24}@{NAME}"
    inside = f"Return-Path: <{forged}>\nX-Envelope-From: <{read.path(message, 1)}>"
    await read.comes_back(complaint(inside), f"fbl@{NAME}")
    await read.comes_back(complaint(inside), f"fbl@{NAME}")
    assert await read.suppressed() == [("bob@example.net", "complaint")]
    assert await read.rows("SELECT provider, kind, domain FROM complaints") == [("example.net", "abuse", "example.com")]


async def test_a_complaint_by_the_id_of_the_message(read: Read) -> None:
    """For its only recipient; not for one of several, whom another of them could name, nor at another's name."""
    one = await read.delivered("ada@example.net")
    two = await read.delivered("bob@example.net", "cyd@example.net")
    ids = [f"Message-ID: <{message.id.removeprefix('msg_')}@example.com>" for message in (one, two)]
    await read.comes_back(complaint(ids[1]), f"fbl@{NAME}")
    await read.comes_back(complaint(ids[1], recipient="eve@example.net"), f"fbl@{NAME}")
    await read.comes_back(complaint(ids[0]), "fbl@bounces.example.org")
    assert await read.suppressed() == []
    await read.comes_back(complaint(ids[0]), f"fbl@{NAME}")
    await read.comes_back(complaint(ids[1], recipient="Cyd@example.net"), f"fbl@{NAME}")
    assert await read.suppressed() == [("ada@example.net", "complaint")]


async def test_an_address_that_anyone_can_name_is_not_suppressed(read: Read) -> None:
    """Without a token or the id of a message nothing follows."""
    await read.delivered("ada@example.net")
    told = results("fbl").get("unmatched", 0)
    await read.comes_back(complaint("Subject: x", recipient="ada@example.net"), f"fbl@{NAME}")
    await read.comes_back(bounce("ada@example.net"), f"fbl@{NAME}")
    assert results("fbl")["unmatched"] == told + 1
    assert await read.suppressed() == []


@pytest.mark.parametrize(("address", "kind"), [("dmarc", "dmarc"), ("tlsrpt", "tls")])
async def test_reports_that_cannot_be_read(read: Read, address: str, kind: str) -> None:
    """They are counted, and gone."""
    told = REPORTS_READ.values.get((kind, "not_understood"), 0)
    await read.comes_back(as_mail(gzipped(b"<feedback>"), "application/gzip"), f"{address}@{NAME}")
    await read.comes_back(vacation(), f"{address}@{NAME}")
    assert REPORTS_READ.values[kind, "not_understood"] == told + 2


async def test_reports_are_recorded(read: Read) -> None:
    """With the result that the store gives: here about days that are long gone."""
    report = sorted((CORPUS / "dmarc").glob("*.xml"))[0].read_bytes()
    told = sum(REPORTS_READ.values.values())
    await read.comes_back(as_mail(gzipped(report), "application/gzip"), f"dmarc@{NAME}")
    assert sum(REPORTS_READ.values.values()) == told + 1
    assert set(REPORTS_READ.values) & {("dmarc", "out_of_time"), ("dmarc", "unknown_domain"), ("dmarc", "recorded")}


# ---- every mail comes to an end


async def test_changed_mail_is_read_to_its_end(read: Read) -> None:
    """Damaged copies of real bounces and complaints: each is gone after one reading, and nothing raises."""
    message = await read.delivered("ada@example.net")
    mails = [file.read_bytes() for kind in ("dsn", "arf") for file in sorted((CORPUS / kind).glob("*.eml"))]
    for number in range(MUTATED):
        mime = mutated(mails[number % len(mails)], number)
        await read.comes_back(mime, read.path(message), f"fbl@{NAME}", f"dmarc@{NAME}", f"tlsrpt@{NAME}")
    assert len(await read.rows("SELECT 1 FROM events WHERE type = 'email.late_bounced'")) <= 1


async def test_a_mail_that_cannot_be_read_is_given_up(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many tries, and others are read before it is tried again."""

    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    message = await read.delivered("ada@example.net")
    with monkeypatch.context() as patched:
        patched.setattr(worker, "read_complaint", fail)
        await read.store.feedback.add([read.path(message)], bounce("ada@example.net"))
        for _ in range(worker.TRIES):
            assert await read.worker.read_next()
        assert await read.rows("SELECT tries FROM feedback_mail") == [(worker.TRIES,)]
    second = await read.store.feedback.add([read.path(message)], vacation())
    assert await read.worker.read_next()
    assert second not in {each for (each,) in await read.rows("SELECT id FROM feedback_mail")}
    told = results("bounce").get("given_up", 0)
    assert await read.worker.read_next()
    assert results("bounce")["given_up"] == told + 1
    assert not await read.worker.read_next()
    assert (await read.message(message)).recipients[0].late_bounce is None


async def test_a_storage_that_refuses_for_a_while_loses_nothing(
    read: Read, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """The worker waits for it, however long that takes, and it is no try of the mail."""
    message = await read.delivered("ada@example.net")
    refusals = 20
    finish = type(read.store.feedback).finish

    async def busy(store: Any, mail_id: str, steps: Any) -> Any:
        nonlocal refusals
        refusals -= 1
        if refusals:
            raise Refused(Code.TEMPORARY_FAILURE, "The storage is busy.")
        return await finish(store, mail_id, steps)

    monkeypatch.setattr(type(read.store.feedback), "finish", busy)
    await read.comes_back(bounce("ada@example.net"), read.path(message))
    assert (await read.message(message)).recipients[0].late_bounce is not None


async def test_it_runs_until_cancelled(read: Read) -> None:
    """Mail that comes while it waits is read at once."""
    message = await read.delivered("ada@example.net")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read.worker.run)
        await trio.testing.wait_all_tasks_blocked()
        await read.store.feedback.add([read.path(message)], bounce("ada@example.net"))
        with trio.fail_after(20):
            while (await read.message(message)).recipients[0].late_bounce is None:  # noqa: ASYNC110 - no event tells
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
