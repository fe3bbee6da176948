"""Accepting whole messages: who may send them, what is stored, billed and handed to delivery."""

import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from msgspec.structs import replace

from appliance.config.values import Share
from appliance.deliver.preparing import Envelope
from appliance.environment import Environment
from appliance.errors import Code, Refused
from appliance.feedback.return_path import RecipientIds, ReturnPaths, UnsubscribeLinks, Unsubscription, read_address
from appliance.intake import accept
from appliance.intake.accept import MessageIntake, Submitted
from appliance.intake.limits import FreeSpace, Quota
from appliance.keys.dkim_keys import SigningKeys, record_value
from appliance.message.dkim import sign
from appliance.message.request import decode, fingerprint
from appliance.model.accounts import Caller
from appliance.model.mail import Source
from appliance.store import Store, open_store
from appliance.store.new_mail import due_recipients
from appliance.telemetry.log import MESSAGE_LOG
from appliance.web.api.message_objects import message_json
from tests.e2e.delivery.verifier import signatures, verifies
from tests.message.submissions import message
from tests.running_appliance import Provisioned, provision
from tests.store.samples import DAY, Clock

HOST = "mail.example.com"
LINKS = UnsubscribeLinks(b"k" * 32, f"https://{HOST}")
PATHS = ReturnPaths(b"k" * 32)
HUGE = 2**62  # bytes no disk has


@dataclass
class Hall:
    store: Store
    env: Environment
    clock: Clock
    directory: Path
    account: Provisioned

    receives: bool = False

    def door(self, *, sandbox: bool = False, min_free_disk: int = 0) -> MessageIntake:
        free = FreeSpace(self.directory, min_free_disk, 0, self.env)
        return MessageIntake(
            self.store,
            self.env,
            free,
            Quota(Share(), free),
            sandbox=sandbox,
            hostname=HOST,
            links=LINKS,
            return_paths=PATHS if self.receives else None,
        )

    async def caller(self) -> Caller:
        found = await self.store.access.caller_by_credential(self.account.username)
        assert found is not None
        return found[0]

    async def submit(self, data: bytes | None = None, *to: str, **others: Any) -> Submitted:
        sender = others.pop("sender", "shop@example.com")
        door = others.pop("door", None) or self.door()
        recipients = to or ("ada@example.net",)
        return await door.submit(await self.caller(), sender, recipients, data or message(), "req_1", **others)

    async def send(self, key: str) -> accept.Accepted:
        body = {"from": "shop@example.com", "to": "ada@example.net", "subject": "Hello", "text": "Hi"}
        request = decode(json.dumps(body).encode())
        return await self.door().send(await self.caller(), request, key, fingerprint(request), "req_2", 100)

    async def credits(self) -> int | None:
        return (await self.store.accounts.named(self.account.name)).credits

    async def count(self) -> int:
        return len(await self.store.queue.due(simulated=False, most=1000))


@pytest.fixture
async def hall(tmp_path: Path) -> AsyncIterator[Hall]:
    clock = Clock()
    env = Environment(now=clock)
    async with open_store(tmp_path / "data", env, inline=True) as store:
        account = await provision(store, "demo", credit=10)
        await store.access.add_domain(account.account_id, "example.org", usable=True)
        yield Hall(store, env, clock, tmp_path, account)


async def refused(hall: Hall, *arguments: Any, **others: Any) -> Refused:
    before = await hall.credits(), await hall.count()
    with pytest.raises(Refused) as refusal:
        await hall.submit(*arguments, **others)
    assert (await hall.credits(), await hall.count()) == before
    return refusal.value


# ---- what is stored


async def test_a_submitted_message_can_be_read_like_any_other(hall: Hall) -> None:
    """GET shows it with source smtp, its From and Subject as people read them, and its recipients as spelled."""
    data = message(
        b"From: =?utf-8?q?Caf=C3=A9?= <shop@example.com>", b"Subject: =?utf-8?b?4oKs?= 5", b"Bcc: x@example.com",
        without=[b"From", b"Subject"],
    )  # fmt: skip
    done = await hall.submit(
        data, "Ada@example.net", "grace@example.net", "ADA@EXAMPLE.NET", sender="bounce@example.org"
    )
    stored = await hall.store.messages.read(hall.account.account_id, done.message_id)
    assert stored is not None
    shown = json.loads(message_json(stored, "req_9"))
    assert (shown["id"], shown["source"], shown["status"]) == (done.message_id, "smtp", "queued")
    assert (shown["from"], shown["subject"]) == ("Café <shop@example.com>", "€ 5")
    assert (shown["recipient_count"], shown["credits_reserved"]) == (2, 2)
    assert [recipient["email"] for recipient in shown["recipients"]] == ["Ada@example.net", "grace@example.net"]
    assert await hall.credits() == 8
    due = await hall.store.queue.due(simulated=False, most=10)
    assert {each.envelope_from for each in due} == {"bounce@example.org"}
    mime = await hall.store.messages.mime(done.message_id)
    assert mime is not None
    assert mime.startswith(f"Received: by {HOST} (appliance) with ESMTPSA\r\n id {done.message_id}; ".encode())
    assert b"Bcc" not in mime
    assert hall.account.username.encode() not in mime


async def test_the_trace_says_when_there_was_no_tls(hall: Hall) -> None:
    done = await hall.submit(secure=False)
    assert b"with ESMTPA\r\n" in (await hall.store.messages.mime(done.message_id) or b"")


async def test_it_is_handed_to_delivery_in_memory(hall: Hall) -> None:
    done = await hall.submit()
    (fresh,) = hall.store.new_mail.take()
    assert (fresh.message.id, fresh.charged) == (done.message_id, 1)
    assert fresh.message.mime == await hall.store.messages.mime(done.message_id)
    assert fresh.message.tags == ()


async def test_no_message_stays_expected(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused, repeated, simulated or taken: polls of the store must find it again."""
    expected: list[str] = []
    expect = hall.store.new_mail.expect

    def note(message_id: str, low: int) -> None:
        expected.append(message_id)
        expect(message_id, low)

    monkeypatch.setattr(hall.store.new_mail, "expect", note)
    await refused(hall, None, *(f"user{number}@example.net" for number in range(11)))  # ten credits
    for _ in range(2):
        await hall.submit(message(b"Idempotency-Key: order-1"))
    await hall.submit(door=hall.door(sandbox=True))
    assert [each in hall.store.new_mail for each in expected] == [False, True, False]  # the simulated one never was
    hall.store.new_mail.take()
    assert not any(each in hall.store.new_mail for each in expected)


async def test_tags_are_kept_with_the_message(hall: Hall) -> None:
    await hall.submit(message(b"X-Service-Tag: order, eu"))
    (fresh,) = hall.store.new_mail.take()
    assert fresh.message.tags == ("order", "eu")
    assert b"X-Service-Tag: order, eu\r\n" in fresh.message.mime


async def test_a_large_message_is_made_off_the_event_loop(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    trips: list[object] = []
    run_sync = trio.to_thread.run_sync

    async def counted(work: Any, *arguments: Any, **options: Any) -> Any:
        trips.append(work)
        return await run_sync(work, *arguments, **options)

    monkeypatch.setattr(trio.to_thread, "run_sync", counted)
    data = message(body=b"x" * 98 + b"\r\n")
    await hall.submit(data)
    assert not trips
    large = message(b"Bcc: x@example.org", body=(b"x" * 98 + b"\r\n") * 3_000)
    done = await hall.submit(large)
    assert len(trips) == 2
    assert (await hall.store.messages.mime(done.message_id) or b"").endswith(large[large.index(b"\r\n\r\n") :])


# ---- who may send


@pytest.mark.parametrize(
    ("data", "sender", "code", "words"),
    [
        (None, "shop@elsewhere.example", Code.FORBIDDEN, "MAIL FROM: the domain elsewhere.example is not registered"),
        (None, "shop@mail.example.com", Code.FORBIDDEN, "MAIL FROM: the domain mail.example.com is not registered"),
        (None, "", Code.FORBIDDEN, "MAIL FROM: the empty sender"),
        (
            message(b"From: shop@elsewhere.example", without=[b"From"]),
            "shop@example.com",
            Code.FORBIDDEN,
            "From: the domain elsewhere.example is not registered",
        ),
        (
            message(b"From: shop@example.com <shop@elsewhere.example>", without=[b"From"]),
            "shop@example.com",
            Code.INVALID_REQUEST,
            "From: expected one mailbox",
        ),
        (message(without=[b"From"]), "shop@example.com", Code.INVALID_REQUEST, "From: this field is required"),
        *(
            (
                message(name + b": Boss <boss@elsewhere.example>"),
                "shop@example.com",
                Code.FORBIDDEN,
                f"{name.decode()}: the domain elsewhere.example is not registered",
            )
            for name in (b"Sender", b"Resent-From", b"Resent-Sender")
        ),
    ],
)
async def test_only_the_accounts_own_domains_may_send(
    hall: Hall, data: bytes | None, sender: str, code: Code, words: str
) -> None:
    """Both the From and the envelope's sender are of registered domains; a subdomain is a domain of its own."""
    refusal = await refused(hall, data, sender=sender)
    assert refusal.code is code
    assert refusal.text.startswith(words)


async def test_a_suspended_account_may_not_submit(hall: Hall) -> None:
    before = await hall.caller()
    await hall.store.accounts.set_suspended(hall.account.account_id, True)
    assert (await refused(hall)).code is Code.ACCOUNT_SUSPENDED
    with pytest.raises(Refused, match="suspended"):
        await hall.door().submit(before, "shop@example.com", ["ada@example.net"], message(), "req_1")
    assert await hall.count() == 0


async def test_a_full_disk_takes_nothing(hall: Hall) -> None:
    assert (await refused(hall, door=hall.door(min_free_disk=HUGE))).code is Code.TEMPORARY_FAILURE


async def test_the_sandbox_simulates_submitted_mail(hall: Hall) -> None:
    done = await hall.submit(door=hall.door(sandbox=True))
    stored = await hall.store.messages.read(hall.account.account_id, done.message_id)
    assert stored is not None
    assert stored.source is Source.SMTP
    assert await hall.credits() == 9
    assert await hall.count() == 0
    assert len(await hall.store.queue.due(simulated=True, most=10)) == 1


async def test_a_test_caller_costs_nothing_and_is_simulated(hall: Hall) -> None:
    caller = await hall.store.access.caller_by_key(hall.account.test_key)
    assert caller is not None
    done = await hall.door().submit(caller, "shop@example.com", ["ada@example.net"], message(), "req_1")
    stored = await hall.store.messages.read(hall.account.account_id, done.message_id)
    assert stored is not None
    assert (stored.source, stored.credits_reserved, await hall.credits()) == (Source.TEST, 0, 10)
    assert await hall.count() == 0


# ---- once

KEYED = message(b"Idempotency-Key: order-4711")


async def test_a_retry_gets_the_first_id_and_queues_nothing(hall: Hall) -> None:
    first = await hall.submit(KEYED)
    again = await hall.submit(KEYED.replace(b"05:43:34", b"05:50:00").replace(b"<1@", b"<2@"))
    assert (again.message_id, again.replayed, first.replayed) == (first.message_id, True, False)
    assert (await hall.credits(), await hall.count()) == (9, 1)
    hall.clock.now += DAY
    assert (await hall.submit(KEYED)).message_id != first.message_id


async def test_another_message_under_the_key_is_a_conflict(hall: Hall) -> None:
    await hall.submit(KEYED)
    assert (await refused(hall, KEYED + b"PS\r\n")).code is Code.IDEMPOTENCY_CONFLICT
    assert (await refused(hall, KEYED, "grace@example.net")).code is Code.IDEMPOTENCY_CONFLICT


async def test_what_was_accepted_stays_accepted(hall: Hall) -> None:
    """A retry is answered even if the message would be refused by now, for its domain or for want of credits."""
    first = await hall.submit(KEYED)
    narrowed = msgspec.structs.replace(await hall.caller(), domains=frozenset({"example.org"}))
    again = await hall.door().submit(narrowed, "shop@example.com", ["ada@example.net"], KEYED, "req_3")
    assert again == Submitted(first.message_id, replayed=True)
    await hall.submit(None, *[f"ada{number}@example.net" for number in range(9)])
    assert (await hall.submit(KEYED)).message_id == first.message_id


async def test_a_refused_message_does_not_burn_its_key(hall: Hall) -> None:
    await refused(hall, KEYED, *[f"ada{number}@example.net" for number in range(11)])
    assert not (await hall.submit(KEYED)).replayed


async def test_without_a_key_the_same_message_is_sent_twice(hall: Hall) -> None:
    assert (await hall.submit()).message_id != (await hall.submit()).message_id
    assert await hall.credits() == 8


async def test_keys_are_shared_by_both_ways_of_one_credential(hall: Hall) -> None:
    await hall.send("order-4711")
    assert (await refused(hall, KEYED)).code is Code.IDEMPOTENCY_CONFLICT
    await hall.submit(message(b"Idempotency-Key: order-4712"))
    with pytest.raises(Refused) as conflict:
        await hall.send("order-4712")
    assert conflict.value.code is Code.IDEMPOTENCY_CONFLICT
    assert await hall.count() == 2


async def test_many_at_once_under_one_key_are_one_message(hall: Hall) -> None:
    """Ten submissions of one message at the same time: one is stored, the others are told so or told to wait."""
    door, told, wait = hall.door(), [], []

    async def one() -> None:
        try:
            told.append((await hall.submit(KEYED, door=door)).message_id)
        except Refused as refusal:
            wait.append(refusal.code)

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(one)
    assert len(set(told)) == 1
    assert set(wait) <= {Code.IDEMPOTENCY_IN_PROGRESS}
    assert (await hall.credits(), await hall.count()) == (9, 1)


async def test_many_retries_at_once_are_all_answered(hall: Hall) -> None:
    first = await hall.submit(KEYED)
    door, told = hall.door(), []

    async def one() -> None:
        told.append((await hall.submit(KEYED, door=door)).message_id)

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(one)
    assert told == [first.message_id] * 10
    assert (await hall.credits(), await hall.count()) == (9, 1)


# ---- how it is signed


async def test_the_from_domain_signs_whatever_the_envelope_says(hall: Hall) -> None:
    """DMARC looks at the From: its domain's keys sign, and the signature verifies, both fresh and from disk."""
    data = message(
        "From: \"Grüße, Shop\" <shop@example.com>".encode(), b"X-Service-Tag:  a ,\r\n\tb ",
        without=[b"From"], body="Grüße \r\n\r\n\r\n".encode(),
    )  # fmt: skip
    done = await hall.submit(data, sender="bounce@example.org")
    (fresh,) = hall.store.new_mail.take()
    stored = await hall.store.queue.due(simulated=False, most=10)
    for due in (due_recipients(fresh), stored):
        assert (
            Envelope(done.message_id, hall.account.account_id, "example.net", tuple(due)).sender_domain == "example.com"
        )
    keys = await SigningKeys(hall.store, hall.env, b"k" * 32).in_use(hall.account.account_id, "example.com")
    signature = sign(fresh.message.mime, keys, now_seconds=hall.clock() // 1_000_000)
    records = {f"{key.selector}._domainkey.example.com.".encode(): record_value(key.key).encode() for key in keys}
    assert signatures(signature + fresh.message.mime) == 2
    assert [verifies(signature + fresh.message.mime, number, records) for number in range(2)] == [True, True]


# ---- links to unsubscribe

TAGGED = (b"X-Service-Tag: receipts, news",)


async def sent_header(hall: Hall, **fields: Any) -> str:
    body = {"from": "shop@example.com", "to": "Ada@example.net", "subject": "Hello", "text": "Hi"} | fields
    body = {name: value for name, value in body.items() if value is not None}
    request = decode(json.dumps(body).encode())
    accepted = await hall.door().send(await hall.caller(), request, hall.env.identifier("key"), b"", "req_2", 100)
    mime = await hall.store.messages.mime(json.loads(accepted.receipt)["id"])
    assert mime is not None
    return mime.partition(b"\r\n\r\n")[0].decode()


async def submitted_header(hall: Hall, *fields: bytes, to: tuple[str, ...] = ()) -> str:
    done = await hall.submit(message(*fields), *to)
    mime = await hall.store.messages.mime(done.message_id)
    assert mime is not None
    return mime.partition(b"\r\n\r\n")[0].decode()


def link_of(header: str) -> Unsubscription | None:
    found = [line for line in header.split("\r\n") if line.startswith("List-Unsubscribe")]
    if not found:
        return None
    link, post = found
    assert post == "List-Unsubscribe-Post: List-Unsubscribe=One-Click"
    return LINKS.read(link.removeprefix(f"List-Unsubscribe: <https://{HOST}/unsubscribe/").removesuffix(">"))


async def test_a_message_with_such_a_tag_has_a_link(hall: Hall) -> None:
    await hall.store.unsubscriptions.replace_tags(hall.account.account_id, ["news", "other"])
    wanted = Unsubscription(hall.account.account_id, "tag:news", "ada@example.net")
    assert link_of(await sent_header(hall, tags=["receipts", "news", "other"])) == wanted
    assert link_of(await submitted_header(hall, *TAGGED)) == wanted
    for header in (await sent_header(hall, tags="receipts"), await submitted_header(hall)):
        assert link_of(header) is None
    await hall.store.unsubscriptions.replace_tags(hall.account.account_id, [])
    assert link_of(await sent_header(hall, tags=["news"])) is None


async def test_a_message_with_such_a_template_has_a_link(hall: Hall) -> None:
    """The template's alias is what one unsubscribes from, unless the message has such a tag."""
    account_id = hall.account.account_id
    await hall.store.templates.save(account_id, "weekly", "Hello", "Hi", None, unsubscribe=True)
    fields = {"template": "weekly", "text": None, "subject": None}
    wanted = Unsubscription(account_id, "template:weekly", "ada@example.net")
    assert link_of(await sent_header(hall, **fields)) == wanted
    await hall.store.unsubscriptions.replace_tags(account_id, ["news"])
    assert link_of(await sent_header(hall, **fields, tags="news")) == replace(wanted, mail_list="tag:news")
    await hall.store.templates.save(account_id, "weekly", "Hello", "Hi", None)
    assert link_of(await sent_header(hall, **fields)) is None


async def test_a_message_to_several_has_no_link(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    """One signed header goes to all, so that each could unsubscribe another; the log says why there is none."""
    noted: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(MESSAGE_LOG, "keep", True)
    monkeypatch.setattr(MESSAGE_LOG, "note", lambda event, **fields: noted.append((event, fields)))
    await hall.store.unsubscriptions.replace_tags(hall.account.account_id, ["news"])
    assert link_of(await sent_header(hall, tags="news", bcc="grace@example.net")) is None
    assert link_of(await submitted_header(hall, *TAGGED, to=("ada@example.net", "grace@example.net"))) is None
    told = [fields for event, fields in noted if event == "no unsubscribe link"]
    assert [each["list"] for each in told] == ["tag:news", "tag:news"]
    assert {each["reason"] for each in told} == {"several recipients"}
    # Two spellings of one address are one recipient.
    assert link_of(await sent_header(hall, tags="news", cc="ADA@example.net")) is not None


async def test_a_senders_own_link_stays_alone(hall: Hall) -> None:
    await hall.store.unsubscriptions.replace_tags(hall.account.account_id, ["news"])
    own = "<mailto:leave@example.com>"
    headers = [
        await sent_header(hall, tags="news", headers={"list-UNSUBSCRIBE": own}),
        await submitted_header(hall, *TAGGED, f"List-unsubscribe: {own}".encode()),
        await submitted_header(hall, *TAGGED, b"DKIM-Signature: v=1; h=From:List-Unsubscribe;\r\n b=x"),
    ]
    assert [header.lower().count("list-unsubscribe:") for header in headers] == [1, 1, 0]
    assert not any("List-Unsubscribe-Post" in header for header in headers)


def mailto_of(header: str) -> str | None:
    """The address to unsubscribe by mail, beside the link; None where there is none."""
    found = re.search(r"^List-Unsubscribe: <https://[^>]+>,\r\n <mailto:([^>]+)\?subject=unsubscribe>\r$", header, re.M)
    assert (found is None) == ("mailto" not in header)
    return None if found is None else found[1]


async def test_an_address_stands_beside_the_link(hall: Hall) -> None:
    """Where mail is received and the return path of the From domain is in use; it leads to the recipient and list."""
    account_id = hall.account.account_id
    await hall.store.unsubscriptions.replace_tags(account_id, ["news"])
    hall.receives = True
    assert mailto_of(await submitted_header(hall, *TAGGED)) is None
    for domain in ("example.com", "example.org"):
        known = await hall.store.domains.find(account_id, domain)
        await hall.store.domains.use_return_path(account_id, known, in_use=True)
    await hall.store.templates.save(account_id, "weekly", "Hello", "Hi", None, unsubscribe=True)
    templated = {"template": "weekly", "text": None, "subject": None}
    for header, number in (
        (await submitted_header(hall, *TAGGED), 1),
        (await sent_header(hall, tags=["news"]), 0),
        (await sent_header(hall, **templated, tags=["other"]), 1),
    ):
        address = read_address(mailto_of(header) or "")
        assert address is not None
        assert (address.domain, address.list_number) == ("bounces.example.com", number)
        ids = PATHS.check(address.token or "", address.domain, hall.clock())
        assert isinstance(ids, RecipientIds)
        wanted = {"first": ids.first, "last": ids.last}
        found = await hall.store.engine.rows("SELECT id FROM recipients WHERE id BETWEEN :first AND :last", wanted)
        assert len(found) == 1
    hall.receives = False
    assert mailto_of(await submitted_header(hall, *TAGGED)) is None


async def test_a_link_is_signed(hall: Hall) -> None:
    """Both signatures cover both fields: dkimpy accepts the message, and not with another link (RFC 8058 4)."""
    account_id, hall.receives = hall.account.account_id, True
    await hall.store.unsubscriptions.replace_tags(account_id, ["news"])
    await hall.store.domains.use_return_path(
        account_id, await hall.store.domains.find(account_id, "example.com"), in_use=True
    )
    await hall.submit(message(*TAGGED))
    (fresh,) = hall.store.new_mail.take()
    mime = fresh.message.mime
    keys = await SigningKeys(hall.store, hall.env, b"k" * 32).in_use(hall.account.account_id, "example.com")
    signature = sign(mime, keys, now_seconds=hall.clock() // 1_000_000)
    records = {f"{key.selector}._domainkey.example.com.".encode(): record_value(key.key).encode() for key in keys}
    assert [verifies(signature + mime, number, records) for number in range(2)] == [True, True]
    for old, new in (
        (b"List-Unsubscribe: <https://mail", b"List-Unsubscribe: <https://evil"),
        (b"<mailto:u+", b"<mailto:v+"),
        (b"Post: List-Unsubscribe=One-Click", b"Post: none"),
        (b"List-Unsubscribe:", b"List-Unsubscribe: <https://x.example>\r\nList-Unsubscribe:"),
    ):
        changed = signature + mime.replace(old, new)
        assert changed != signature + mime
        assert [verifies(changed, number, records) for number in range(2)] == [False, False]
