"""Mail that came back: what it does and its deletion are one step; the first late bounce of a recipient counts."""

from collections.abc import Awaitable, Callable

import pytest
import trio
from msgspec.structs import replace

from appliance.errors import Code, Refused
from appliance.keys.secrets import WebhookSecrets
from appliance.model.accounts import Account, LedgerKind
from appliance.model.feedback import (
    ComplaintRate,
    FeedbackRecipient,
    FeedbackResult,
    NewComplaint,
    QueueShare,
    ShareScope,
)
from appliance.model.mail import BounceClass, LateBounce, NewMessage, RecipientStatus
from appliance.model.webhooks import EventType, WebhookOptions
from appliance.store import Store
from appliance.store.feedback import SHARE_PARTS, FeedbackStep, FeedbackStore, QueueLimits, all_shares
from tests.store.samples import CREDITS, DAY, Clock, Database, Messages, existing, outcome, refusal

NAME = "bounces.example.com"
BOUNCE = LateBounce(1_000, 550, "550 5.1.1 User unknown", BounceClass.INVALID_RECIPIENT)
COMPLAINT = NewComplaint("abuse", "Provider-FBL/1.0")

Delivered = Callable[..., Awaitable[list[FeedbackRecipient]]]


@pytest.fixture
async def delivered(store: Store, account: Account, messages: Messages, clock: Clock) -> Delivered:
    await store.access.add_domain(account.id, "example.com", usable=True)

    async def send(
        *addresses: str, status: RecipientStatus = RecipientStatus.DELIVERED, simulated: bool = False
    ) -> list[FeedbackRecipient]:
        new = messages.new(*addresses, simulated=simulated)
        await store.messages.accept(new)
        due = [each for each in await store.queue.due(simulated=simulated, most=100) if each.message_id == new.id]
        await store.queue.record([outcome(each, status, clock()) for each in due])
        return await found(store, new)

    return send


async def found(store: Store, message: NewMessage, name: str = NAME) -> list[FeedbackRecipient]:
    each = [await store.feedback.recipient(one.id, one.id, name) for one in message.recipients]
    return [one for one in each if one is not None]


async def bounce(store: Store, recipient: FeedbackRecipient, *, suppresses: bool = True) -> str:
    return await done(store, store.feedback.late_bounce(recipient, BOUNCE, suppresses=suppresses))


async def done(store: Store, *steps: FeedbackStep) -> str:
    await store.feedback.add(["b+token@bounces.example.com"], b"mail")
    mail = existing(await store.feedback.next())
    results = existing(await store.feedback.finish(mail.id, steps))
    return " ".join(results)


async def hook(store: Store, account: Account, *events: EventType) -> None:
    new_id = store.feedback.env.identifier("whk")
    _, sealed = WebhookSecrets(bytes(32), store.feedback.env).fresh(new_id)
    await store.webhooks.save(account.id, WebhookOptions("https://hooks.example.net/", events, True), new_id, sealed)


# ---- mail
async def test_mail_is_kept_until_it_is_finished(store: Store) -> None:
    first_id = await store.feedback.add(["fbl@bounces.example.com"], b"one")
    second_id = await store.feedback.add(["a@b.example", "c@d.example"], b"two" * 100_000)
    read = [await store.feedback.next() for _ in range(3)]
    assert [(mail.id, mail.tries) for mail in read if mail] == [(first_id, 1), (second_id, 1), (first_id, 2)]
    assert read[1] is not None
    assert (read[1].addresses, read[1].mime) == (("a@b.example", "c@d.example"), b"two" * 100_000)
    assert await store.feedback.finish(first_id, []) == []
    assert await store.feedback.finish(first_id, [lambda _: ("never", set())]) is None
    assert await store.feedback.finish(second_id, [lambda _: ("done", set())]) == ["done"]
    assert await store.feedback.next() is None


async def test_a_step_that_fails_leaves_everything(store: Store, delivered: Delivered) -> None:
    (recipient,) = await delivered("b@example.net")
    await store.feedback.add(["b+token@bounces.example.com"], b"mail")
    mail = existing(await store.feedback.next())

    def fail(_: object) -> tuple[str, set[str]]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await store.feedback.finish(mail.id, [store.feedback.late_bounce(recipient, BOUNCE, suppresses=True), fail])
    assert await store.suppressions.page(recipient.account_id, "", 10) == []
    assert (await store.feedback.next()) is not None
    assert await bounce(store, recipient) == FeedbackResult.LATE_BOUNCED


async def test_mail_is_finished_once(store: Store, database: Database, account: Account, delivered: Delivered) -> None:
    (recipient,) = await delivered("b@example.net")
    mail_id = await store.feedback.add(["b+token@bounces.example.com"], b"mail")
    results = []

    async def finish(node: Store) -> None:
        results.append(
            await node.feedback.finish(mail_id, [node.feedback.late_bounce(recipient, BOUNCE, suppresses=True)])
        )

    async with database.open(inline=True) as other, trio.open_nursery() as nursery:
        for node in (store, other):
            nursery.start_soon(finish, node)
    assert sorted(results, key=str) == [None, [FeedbackResult.LATE_BOUNCED]]
    assert (await store.accounts.find(account.id)).credits == CREDITS


# ---- whose it is
async def test_a_recipient_is_found_by_its_ids_and_name(store: Store, messages: Messages, delivered: Delivered) -> None:
    first, second = await delivered("b@example.net", "c@example.net")
    assert (first.address, first.domain, first.sent_from) == ("b@example.net", "example.net", "example.com")
    assert await store.feedback.recipient(first.id, first.id, "rp.example.com") == first
    other = await store.accounts.create("other", "other@example.org", "hash")
    await store.access.add_domain(other.id, "example.org", usable=True)
    assert await store.feedback.recipient(first.id, first.id, "bounces.example.org") is None
    assert await store.feedback.recipient(first.id, second.id, NAME) is None
    unknown = store.feedback.env.identifier("rcp")
    assert await store.feedback.recipient(unknown, unknown, NAME) is None
    assert await store.feedback.recipients_of(first.message_id, NAME) == [first, second]
    assert await store.feedback.recipients_of(first.message_id, "bounces.example.org") == []


# ---- late bounces
async def test_a_late_bounce(store: Store, account: Account, delivered: Delivered) -> None:
    """The status stays, the credit goes back, the address is suppressed; a second one changes nothing."""
    (recipient,) = await delivered("B@example.net")
    assert (await store.accounts.find(account.id)).credits == CREDITS - 1
    assert await bounce(store, recipient) == FeedbackResult.LATE_BOUNCED
    assert await bounce(store, recipient) == FeedbackResult.REPEATED
    message = existing(await store.messages.read(account.id, recipient.message_id))
    (shown,) = message.recipients
    assert (message.status, shown.status) == ("delivered", "delivered")
    assert (message.billing_status, shown.billing_status) == ("settled", "settled")
    assert shown.late_bounce == BOUNCE
    assert (await store.accounts.find(account.id)).credits == CREDITS
    lines = await store.accounts.ledger(account.id)
    assert [(line.kind, line.amount, line.balance, line.recipient_id) for line in lines[:2]] == [
        (LedgerKind.RELEASE, 1, CREDITS, recipient.id),
        (LedgerKind.RESERVE, -1, CREDITS - 1, None),
    ]
    (listed,) = await store.suppressions.page(account.id, "", 10)
    assert (listed.address, listed.origin) == ("b@example.net", "late_bounce")


async def test_the_sender_at_fault_suppresses_nothing(store: Store, account: Account, delivered: Delivered) -> None:
    (recipient,) = await delivered("b@example.net")
    assert await bounce(store, recipient, suppresses=False) == FeedbackResult.LATE_BOUNCED
    assert await store.suppressions.page(account.id, "", 10) == []


@pytest.mark.parametrize("status", [RecipientStatus.DEFERRED, RecipientStatus.BOUNCED, RecipientStatus.FAILED])
async def test_only_what_was_delivered_bounces_late(
    store: Store, account: Account, delivered: Delivered, status: RecipientStatus
) -> None:
    (recipient,) = await delivered("b@example.net", status=status)
    before = await store.messages.read(account.id, recipient.message_id)
    assert await bounce(store, recipient) == FeedbackResult.NOT_DELIVERED
    assert await store.messages.read(account.id, recipient.message_id) == before
    assert (await store.accounts.find(account.id)).credits == CREDITS - (status is not RecipientStatus.BOUNCED)
    assert await store.suppressions.page(account.id, "", 10) == []


async def test_simulated_mail_never_bounces(store: Store, delivered: Delivered) -> None:
    (recipient,) = await delivered("b@example.net", simulated=True)
    assert await bounce(store, recipient) == FeedbackResult.NOT_DELIVERED


async def test_an_unlimited_account_gets_no_line(store: Store, account: Account, delivered: Delivered) -> None:
    (recipient,) = await delivered("b@example.net")
    await store.accounts.set_credits(account.id, None)
    lines = await store.accounts.ledger(account.id)
    assert await bounce(store, recipient) == FeedbackResult.LATE_BOUNCED
    assert await store.accounts.ledger(account.id) == lines


async def test_events_go_to_those_who_asked(store: Store, account: Account, delivered: Delivered) -> None:
    await hook(store, account, EventType.LATE_BOUNCED)
    first, second = await delivered("b@example.net", "c@example.net")
    store.webhook_posts.take_new()
    await bounce(store, first)
    assert store.webhook_posts.take_new() == {account.id}
    await done(store, store.feedback.complaint(second, COMPLAINT))
    assert store.webhook_posts.take_new() == set()
    kinds = await store.engine.rows("SELECT type, recipient_id FROM events WHERE id > '' ORDER BY id", {})
    assert kinds[2:] == [("email.late_bounced", first.id), ("email.complained", second.id)]
    posts = await store.engine.rows("SELECT type, request_body FROM webhook_deliveries", {})
    ((kind, body),) = posts
    assert kind == "email.late_bounced"
    assert b'"smtp_code":550' in bytes(body)
    assert b'"bounce_class":"invalid_recipient"' in bytes(body)


# ---- complaints
async def test_a_complaint(store: Store, account: Account, delivered: Delivered, clock: Clock) -> None:
    """The address is suppressed, and the complaint counted once."""
    (recipient,) = await delivered("b@example.net")
    assert await done(store, store.feedback.complaint(recipient, COMPLAINT)) == FeedbackResult.COMPLAINED
    assert await done(store, store.feedback.complaint(recipient, COMPLAINT)) == FeedbackResult.REPEATED
    (listed,) = await store.suppressions.page(account.id, "", 10)
    assert (listed.address, listed.origin) == ("b@example.net", "complaint")
    assert listed.reason == "complaint: abuse reported by Provider-FBL/1.0"
    rows = await store.engine.rows("SELECT account_id, recipient_id, domain, provider, kind FROM complaints", {})
    assert rows == [(account.id, recipient.id, "example.com", "example.net", "abuse")]
    message = existing(await store.messages.read(account.id, recipient.message_id))
    assert message.recipients[0].status == "delivered"


async def test_the_rate_by_provider(store: Store, delivered: Delivered, clock: Clock) -> None:
    recipients = await delivered(*(f"u{number}@gmail.test" for number in range(4)), "v@example.org")
    await store.engine.change("INSERT INTO destinations VALUES ('gmail.test', 'google', 1)", {})
    since = clock.now
    assert await store.feedback.complaint_rates(since) == []
    await done(store, store.feedback.complaint(recipients[0], COMPLAINT))
    clock.now += 60_000_000
    while await store.statistics.count():
        pass
    assert await store.feedback.complaint_rates(since) == [ComplaintRate("google", 1, 4), ComplaintRate("", 0, 1)]
    assert await store.feedback.complaint_rates(since + DAY) == []


async def test_old_complaints_go(store: Store, delivered: Delivered, clock: Clock) -> None:
    """In slices, the oldest first."""
    for recipient in await delivered("a@example.net", "b@example.net", "c@example.net"):
        await done(store, store.feedback.complaint(recipient, COMPLAINT))
        clock.now += DAY
    assert (await store.feedback.forget_complaints(clock.now - 5 * DAY, 10)).deleted == 0
    assert (await store.feedback.forget_complaints(clock.now - 3 * DAY // 2, 1)).deleted == 1
    assert (await store.feedback.forget_complaints(clock.now - 3 * DAY // 2, 10)).deleted == 1
    assert len(await store.engine.rows("SELECT 1 FROM complaints", {})) == 1


# ---- limits of the queue

TOKEN = QueueShare(ShareScope.TOKEN, "token")


def limited(store: Store, *, mails: int = 10_000, size: int = 1_000_000) -> FeedbackStore:
    return replace(store.feedback, limits=QueueLimits(mails, size))


async def counts(store: Store) -> dict[tuple[str, str], tuple[int, int]]:
    rows = await store.engine.rows("SELECT scope, name, mails, bytes FROM feedback_counts", {})
    return {(scope, name): (mails, size) for scope, name, mails, size in rows}


@pytest.mark.parametrize(("mails", "size", "fits"), [(2, 1_000_000, 2), (10_000, 640, 64)], ids=["mails", "bytes"])
async def test_the_queue_is_bounded_in_mails_and_in_bytes(store: Store, mails: int, size: int, fits: int) -> None:
    small = limited(store, mails=mails, size=size)
    for number in range(fits):
        await small.add(["b+token@bounces.example.com"], b"x" * 10, [TOKEN._replace(name=str(number))])
    before = await counts(store)
    with refusal(Code.SERVICE_UNAVAILABLE):
        await small.add(["b+token@bounces.example.com"], b"x" * 10, [TOKEN])
    assert await counts(store) == before
    assert await store.engine.rows("SELECT count(*) FROM feedback_mail", {}) == [(fits,)]


class CountedLimits(QueueLimits, frozen=True):
    checks = 0

    def check(self, scope: str, mails: int, size: int) -> None:
        type(self).checks += 1
        super().check(scope, mails, size)


async def test_a_full_queue_refuses_after_few_checks(store: Store) -> None:
    full = replace(store.feedback, limits=CountedLimits(10_000, 0))
    with pytest.raises(Refused):
        await full.add(["b+token@bounces.example.com"], b"x", [TOKEN])
    assert 1 <= CountedLimits.checks <= 2
    CountedLimits.checks = 0


def test_every_mail_locks_the_count_of_the_whole_queue_first() -> None:
    mails = [[QueueShare(scope, "a"), TOKEN] for scope in ShareScope if scope is not ShareScope.ALL]
    assert {all_shares(shares)[0] for shares in mails} == {QueueShare(ShareScope.ALL, "")}


@pytest.mark.parametrize(
    "scope", [scope for scope in ShareScope if scope not in (ShareScope.ALL, ShareScope.WITHOUT_TOKEN)]
)
async def test_one_sender_or_recipient_has_a_share_of_the_queue(store: Store, scope: ShareScope) -> None:
    small, tokens = limited(store, mails=2 * SHARE_PARTS[scope]), iter("abcdefgh")

    def shares(name: str) -> list[QueueShare]:
        return [QueueShare(scope, name), TOKEN._replace(name=next(tokens))]

    ids = [await small.add(["x@bounces.example.com"], b"x", shares("one")) for _ in range(2)]
    with pytest.raises(Refused):
        await small.check_room(shares("one"))
    with pytest.raises(Refused):
        await small.add(["x@bounces.example.com"], b"x", shares("one"))
    await small.check_room(shares("other"))
    await small.add(["x@bounces.example.com"], b"x", shares("other"))
    await small.finish(ids[0], [])
    await small.check_room(shares("one"))


async def test_mail_without_a_token_leaves_room_for_bounces(store: Store) -> None:
    small = limited(store, mails=8)
    for name in ("dmarc@a.example", "fbl@b.example"):
        await small.add([name], b"x", [QueueShare(ShareScope.ADDRESS, name)])
    with pytest.raises(Refused):
        await small.add(["tlsrpt@c.example"], b"x", [QueueShare(ShareScope.ADDRESS, "tlsrpt@c.example")])
    for number in range(6):
        await small.add(["b+token@a.example"], b"x", [TOKEN._replace(name=str(number))])
    with pytest.raises(Refused):
        await small.add(["b+token@a.example"], b"x", [TOKEN])


async def test_counts_survive_a_restart_and_end_with_the_queue(store: Store, database: Database) -> None:
    network = QueueShare(ShareScope.NETWORK, "192.0.2.1")
    ids = [await store.feedback.add(["b+token@a.example"], b"x" * 10, [TOKEN, network]) for _ in range(3)]
    full = {("all", ""): (3, 30), ("network", "192.0.2.1"): (3, 30), ("token", "token"): (3, 30)}
    assert await counts(store) == full
    async with database.open(inline=True) as other:
        assert await counts(other) == full
        await other.feedback.finish(ids[0], [])
        await other.feedback.finish(ids[0], [])
        await store.feedback.finish(ids[1], [])
        assert await counts(other) == dict.fromkeys(full, (1, 10))
        await other.feedback.finish(ids[2], [])
        assert await counts(store) == {}


async def test_an_empty_queue_corrects_the_counts(store: Store) -> None:
    """A node of an older version deletes mail without subtracting it."""
    await store.feedback.add(["b+token@a.example"], b"x", [TOKEN])
    await store.engine.change("DELETE FROM feedback_mail", {})
    assert await counts(store)
    assert await store.feedback.next() is None
    assert await counts(store) == {}


async def test_recipients_go_before_reports(store: Store) -> None:
    for address in ("dmarc@bounces.example.com", "tlsrpt@bounces.example.com"):
        await store.feedback.add([address], b"x", [QueueShare(ShareScope.ADDRESS, address)])
    for address in ("b+token@bounces.example.com", "U+token@bounces.example.com"):
        await store.feedback.add([address], b"x", [TOKEN])
    order = []
    while (mail := await store.feedback.next()) is not None and mail.tries == 1:
        order.append(mail.addresses[0][:2])
    assert order == ["b+", "U+", "dm", "tl"]
