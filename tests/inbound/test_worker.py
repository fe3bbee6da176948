"""What each kind of mail does at each kind of address; and that every mail comes to an end."""

from pathlib import Path
from typing import Any

import pytest
import trio

from appliance.errors import StorageUnavailable, invalid
from appliance.feedback.mime import open_mail
from appliance.feedback.return_path import LIFETIME, ReturnPaths
from appliance.inbound import worker
from appliance.keys.dkim_keys import SigningKeys
from appliance.message.dkim import sign
from appliance.model.mail import NewMessage, RecipientStatus
from appliance.store import feedback
from appliance.store.feedback_inbox import INBOX_BYTES, INBOX_MAILS
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
        read.store, read.env, read.account_id, "Ada@example.net", tags=tags, template=template
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
    message = await stored_mail.accept(read.store, read.env, read.account_id, "ada@example.net", tags=("news",))
    id_, paths = message.recipients[0].id, ReturnPaths(KEY)
    addresses = [
        paths.unsubscribe_address(id_, NAME, 2),
        paths.unsubscribe_address(id_, NAME, 0).replace(NAME, "bounces.example.org"),
        paths.unsubscribe_address(read.env.identifier("rcp"), NAME, 0),
        paths.unsubscribe_address(id_, NAME, 0).replace("@", "a@"),
    ]
    await read.comes_back(b"Subject: unsubscribe\r\n\r\n", *addresses)
    assert await read.rows("SELECT count(*) FROM unsubscriptions") == [(0,)]


async def test_a_bounce_that_is_faster_than_our_record(read: Read, autojump_clock: trio.testing.MockClock) -> None:
    early = await stored_mail.accept(read.store, read.env, read.account_id, "ada@example.net")
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
    await read.store.queue.record([outcome(each, RecipientStatus.DELIVERED, read.env.now()) for each in due])
    assert await read.worker.read_next()
    assert trio.current_time() >= began + worker.FEEDBACK_PAUSE
    assert (await read.message(early)).recipients[0].late_bounce is not None
    assert not await read.worker.read_next()


async def test_a_bounce_without_a_result_comes_to_an_end(read: Read, autojump_clock: trio.testing.MockClock) -> None:
    early = await stored_mail.accept(read.store, read.env, read.account_id, "ada@example.net")
    told = results("bounce").get("not_delivered", 0)
    await read.store.feedback.add([read.path(early)], bounce("ada@example.net"))
    for _ in range(worker.TRIES):
        assert await read.worker.read_next()
    assert not await read.worker.read_next()
    assert results("bounce")["not_delivered"] == told + 1
    assert trio.current_time() >= (worker.TRIES - 1) * worker.FEEDBACK_PAUSE


async def test_a_bounce_of_a_policy_suppresses_nothing(read: Read) -> None:
    message = await read.delivered("ada@example.net")
    await read.comes_back(bounce("ada@example.net", status="5.7.1", code="554"), read.path(message))
    assert (await read.message(message)).recipients[0].late_bounce is not None
    assert await read.suppressed() == []


async def test_a_token_that_leads_nowhere(read: Read) -> None:
    message = await read.delivered("ada@example.net")
    before, told = await read.message(message), results("bounce").get("unmatched", 0)
    unknown = read.worker.return_paths.address(read.env.identifier("rcp"), NAME)
    local = read.path(message).partition("@")[0]
    paths = [unknown, f"{local}@bounces.example.org", "what@ever"]
    await read.comes_back(bounce("ada@example.net"), *paths)
    await read.comes_back(bounce("ada@example.net"), read.path(message)[:-1])
    await read.store.feedback.add([read.path(message)], bounce("ada@example.net"))
    late = read.env.now() + LIFETIME + 1
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
    message = await read.delivered("ada@example.net", "bob@example.net")
    await read.comes_back(bounce("ada@example.net"), read.path(message), read.path(message, 1))
    assert all(each.late_bounce is not None for each in (await read.message(message)).recipients)


async def test_a_complaint_at_a_token(read: Read) -> None:
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


async def test_a_complaint_with_an_address_to_unsubscribe(read: Read) -> None:
    """Its token proves the recipient as well: providers that remove the return path keep List-Unsubscribe."""
    message = await read.delivered("ada@example.net", "bob@example.net")
    address = ReturnPaths(KEY).unsubscribe_address(message.recipients[1].id, NAME, 0)
    await read.comes_back(complaint(f"List-Unsubscribe: <mailto:{address}>"), f"fbl@{NAME}")
    assert await read.suppressed() == [("bob@example.net", "complaint")]


async def signed(read: Read, message: NewMessage, key_of: str = "") -> str:
    """The header of a copy of a message, signed by the keys of its account, or of another."""
    keys = SigningKeys(read.store, read.env, KEY)
    header = f"Message-ID: <{message.id.removeprefix('msg_')}@example.com>\r\nSubject: On its way\r\n"
    mime = f"From: shop@example.com\r\n{header}\r\nHello.\r\n".encode()
    fields = sign(mime, await keys.in_use(key_of or read.account_id, "example.com"), now_seconds=1_700_000_000)
    return (fields + mime).partition(b"\r\n\r\n")[0].decode().replace("\r\n", "\n")


def report_of(header: str) -> bytes:
    """A complaint with this header of the message, and another body: providers cut it."""
    return complaint("X-Provider: kept").replace(
        b"X-Provider: kept\r\nFrom: shop@example.com\r\nSubject: On its way\r\n",
        f"{header}\n".replace("\n", "\r\n").encode(),
    )


async def test_a_complaint_with_a_signed_copy(read: Read) -> None:
    """Our own signature proves that the reporter has the message; it counts for the only recipient."""
    message = await read.delivered("ada@example.net")
    await read.comes_back(report_of(await signed(read, message)), f"fbl@{NAME}")
    assert await read.suppressed() == [("ada@example.net", "complaint")]
    assert await read.store.feedback_inbox.newest(None, 10) == []


async def test_a_complaint_that_is_not_proven_changes_nothing(read: Read) -> None:
    """A Message-ID alone, a copy that was changed, one that another account signed, one of several recipients."""
    message = await read.delivered("ada@example.net")
    pair = await read.delivered("bob@example.net", "cyd@example.net")
    other = await read.store.accounts.create("other", "other@example.org", "hash")
    await read.store.domains.register(other.id, "example.com")
    good = await signed(read, message)
    forged = [
        f"Message-ID: <{message.id.removeprefix('msg_')}@example.com>",
        good.replace("On its way", "On its Way"),
        good.replace(message.id.removeprefix("msg_"), pair.id.removeprefix("msg_")),
        f"Message-ID: <{pair.id.removeprefix('msg_')}@example.com>\n{good}",
        await signed(read, message, other.id),
        await signed(read, pair),
        "\n".join(line for line in good.split("\n") if not line.startswith("DKIM")),
        "Subject: x",
    ]
    for header in forged:
        before = results("fbl").get("not_verified", 0)
        await read.comes_back(report_of(header), f"fbl@{NAME}")
        assert results("fbl").get("not_verified", 0) == before + 1, header
    await read.comes_back(report_of(good), "fbl@bounces.example.org")
    assert await read.suppressed() == []
    assert await read.rows("SELECT count(*) FROM complaints") == [(0,)]
    assert await read.rows("SELECT count(*) FROM events WHERE type = 'email.complained'") == [(0,)]
    kept = await read.store.feedback_inbox.newest(read.account_id, 100)
    assert [each.result for each in kept] == ["not_verified"] * len(forged)


# ---- the inbox

VERIFICATION = (
    b"From: Feedback Loop <fbl@provider.example>\r\nSubject: Please =?utf-8?q?verify_=00_your?= loop\r\n\r\n"
    b"Open https://provider.example/verify?code=1234\r\n"
)


async def test_the_verification_mail_of_a_feedback_loop_is_kept(read: Read) -> None:
    await read.comes_back(VERIFICATION, f"fbl@{NAME}")
    (mail,) = await read.store.feedback_inbox.newest(read.account_id, 10)
    assert (mail.kind, mail.address, mail.result) == ("fbl", f"fbl@{NAME}", "not_understood")
    assert mail.sender == "Feedback Loop <fbl@provider.example>"
    assert mail.subject.startswith("Please verify")
    assert "\0" not in mail.subject
    assert await read.store.feedback_inbox.find(read.account_id, mail.id) == (mail, VERIFICATION)
    assert await read.store.feedback_inbox.find("acc_other", mail.id) is None


async def test_the_inbox_is_bounded(read: Read) -> None:
    """The newest mails of each kind stay, and the beginning of each: one kind does not push out another."""
    await read.comes_back(VERIFICATION, f"fbl@{NAME}")
    for _ in range(INBOX_MAILS + 3):
        await read.comes_back(b"Subject: x\r\n\r\n" + b"x" * 2 * INBOX_BYTES, f"abuse@{NAME}")
    kept = await read.store.feedback_inbox.newest(read.account_id, 1_000)
    assert [each.kind for each in kept] == ["abuse"] * INBOX_MAILS + ["fbl"]
    assert kept[0].size == len(b"Subject: x\r\n\r\n") + 2 * INBOX_BYTES
    assert await read.rows("SELECT max(length(mime)) FROM feedback_inbox") == [(INBOX_BYTES,)]


async def test_mail_of_a_return_path_without_a_single_owner_is_for_administrators(read: Read) -> None:
    await read.store.accounts.create("stranger", "stranger@example.org", "hash")
    stranger = (await read.store.accounts.create("other", "other@example.org", "hash")).id
    await read.store.domains.register(stranger, "example.com")
    await read.comes_back(VERIFICATION, f"postmaster@{NAME}")
    assert len(await read.store.feedback_inbox.newest(read.account_id, 10)) == 1
    assert await read.store.feedback_inbox.newest(stranger, 10) == []
    await read.store.domains.prove(stranger, "example.com")
    await read.comes_back(VERIFICATION, f"postmaster@{NAME}")
    assert len(await read.store.feedback_inbox.newest(read.account_id, 10)) == 1
    assert len(await read.store.feedback_inbox.newest(stranger, 10, shared=True)) == 1
    assert len(await read.store.feedback_inbox.newest(None, 10)) == 2


async def test_old_mail_in_the_inbox_is_deleted(read: Read) -> None:
    await read.comes_back(VERIFICATION, f"fbl@{NAME}")
    assert (await read.store.feedback_inbox.forget(read.env.now() - 60_000_000, 10)).deleted == 0
    assert (await read.store.feedback_inbox.forget(read.env.now() + 60_000_000, 10)).deleted == 1
    assert await read.store.feedback_inbox.newest(None, 10) == []


# ---- forwarding


async def forwarded(read: Read) -> list[tuple[str, str, int]]:
    """Messages that wait for delivery to the operator: sender, envelope sender and credits."""
    return [
        (sender, envelope_from, credits)
        for sender, envelope_from, credits in await read.rows(
            "SELECT m.sender, m.envelope_from, m.credits_reserved FROM messages m JOIN recipients r"
            " ON r.message_id = m.id WHERE r.address = 'operator@example.net' AND r.status = 'queued'"
        )
    ]


async def test_mail_to_abuse_is_forwarded_to_the_operator(read: Read) -> None:
    """By the queue, as free mail of the account with the null sender, with the whole mail attached; and it is kept."""
    read.worker.forward_to = "operator@example.net"
    for kind in ("abuse", "postmaster"):
        await read.comes_back(VERIFICATION, f"{kind}@{NAME}")
    assert await forwarded(read) == [("Mail server <postmaster@example.com>", "", 0)] * 2
    (mime,) = {bytes(mime) for (mime,) in await read.rows("SELECT mime FROM message_bodies ORDER BY 1 LIMIT 1")}
    mail = open_mail(mime)
    assert mail.header("auto-submitted") == "auto-forwarded"
    assert mail.header("to") == "operator@example.net"
    assert [part.content.strip() for part in mail.parts if part.kind == "message/rfc822"] == [VERIFICATION.strip()]
    assert [each.result for each in await read.store.feedback_inbox.newest(read.account_id, 10)] == ["forwarded"] * 2


@pytest.mark.parametrize(
    "mime",
    [
        b"Auto-Submitted: auto-forwarded\r\n" + VERIFICATION,
        b"Auto-Submitted: auto-replied (vacation)\r\n" + VERIFICATION,
        bounce("operator@example.net"),
        VERIFICATION + b"x" * worker.FORWARDED_BYTES,
    ],
    ids=["our own", "an automatic answer", "a bounce", "too large"],
)
async def test_mail_that_could_loop_or_is_large_is_only_kept(read: Read, mime: bytes) -> None:
    """What a program sends is not forwarded: the operator's server could forward it back."""
    read.worker.forward_to = "operator@example.net"
    await read.comes_back(mime, f"abuse@{NAME}")
    assert await forwarded(read) == []
    assert [each.result for each in await read.store.feedback_inbox.newest(read.account_id, 10)] == ["kept"]


async def test_forwarding_has_a_rate(read: Read) -> None:
    read.worker.forward_to = "operator@example.net"
    for _ in range(worker.FORWARDED_PER_HOUR + 5):
        await read.comes_back(VERIFICATION, f"abuse@{NAME}")
        await read.comes_back(VERIFICATION, f"fbl@{NAME}")
    assert len(await forwarded(read)) == worker.FORWARDED_PER_HOUR


async def test_a_suspended_or_unwilling_account_forwards_nothing(read: Read) -> None:
    read.worker.forward_to = "operator@example.net"
    await read.comes_back(VERIFICATION, "abuse@bounces.example.org")
    await read.store.suppressions.add(read.account_id, "operator@example.net", "test")
    await read.comes_back(VERIFICATION, f"abuse@{NAME}")
    await read.store.suppressions.remove(read.account_id, "operator@example.net")
    await read.store.accounts.set_suspended(read.account_id, suspended=True)
    await read.comes_back(VERIFICATION, f"abuse@{NAME}")
    assert await forwarded(read) == []


@pytest.mark.parametrize(("address", "kind"), [("dmarc", "dmarc"), ("tlsrpt", "tls")])
async def test_reports_that_cannot_be_read(read: Read, address: str, kind: str) -> None:
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


async def test_a_stored_address_that_cannot_be_read_stops_nothing_else(
    read: Read, caplog: pytest.LogCaptureFixture
) -> None:
    """The recipient's mail is given up at once, in one line of the log; other recipients and mails are read."""
    message = await read.delivered("ada@example.net", "bob@example.net")
    second = await read.delivered("eve@example.net")
    change = "UPDATE recipients SET address = 'ada@@example' WHERE address = :address"
    await read.store.engine.change(change, {"address": "ada@example.net"})
    count = results("bounce").get("given_up", 0)
    both = [read.path(message, number) for number in (0, 1)]
    await read.store.feedback.add(both, bounce("bob@example.net"))
    await read.store.feedback.add([read.path(second)], bounce("eve@example.net"))
    assert await read.worker.read_next()
    assert await read.worker.read_next()
    assert not await read.worker.read_next()
    assert results("bounce")["given_up"] == count + 1
    (line,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert line.message == "feedback given up: cannot be read"
    late = [recipient.late_bounce for new in (message, second) for recipient in (await read.message(new)).recipients]
    assert [bounce is not None for bounce in late] == [False, True, True]


async def test_a_step_that_refuses_stored_data_stops_nothing_else(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    message = await read.delivered("ada@example.net")

    def refuse(*_: Any, **__: Any) -> None:
        raise invalid("address", "is not valid")

    count = results("bounce").get("given_up", 0)
    with monkeypatch.context() as patched:
        patched.setattr(feedback, "suppress", refuse)
        await read.comes_back(bounce("ada@example.net"), read.path(message))
    assert results("bounce")["given_up"] == count + 1
    assert (await read.message(message)).recipients[0].late_bounce is None


async def test_a_storage_that_refuses_for_a_while_loses_nothing(
    read: Read, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    message = await read.delivered("ada@example.net")
    refusals = 20
    finish = type(read.store.feedback).finish

    async def busy(store: Any, mail_id: str, steps: Any, *, large: bool) -> Any:
        nonlocal refusals
        refusals -= 1
        if refusals:
            raise StorageUnavailable("The storage is busy.")
        return await finish(store, mail_id, steps, large=large)

    monkeypatch.setattr(type(read.store.feedback), "finish", busy)
    await read.comes_back(bounce("ada@example.net"), read.path(message))
    assert (await read.message(message)).recipients[0].late_bounce is not None


async def test_it_runs_until_cancelled(read: Read) -> None:
    message = await read.delivered("ada@example.net")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read.worker.run)
        await trio.testing.wait_all_tasks_blocked()
        await read.store.feedback.add([read.path(message)], bounce("ada@example.net"))
        with trio.fail_after(20):
            while (await read.message(message)).recipients[0].late_bounce is None:  # noqa: ASYNC110 - no event tells
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
