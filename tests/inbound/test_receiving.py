"""Mail for receiving addresses: which is taken, what is stored of it, and what the webhook gets."""

import base64
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec.structs import force_setattr

from appliance.config.values import MIB
from appliance.dns.resolver import DnsAnswer, LookupFailed
from appliance.environment import Environment
from appliance.errors import Code, Refused
from appliance.inbound import listener, receiver
from appliance.keys.dkim_keys import generate, record_value
from appliance.keys.received_links import ReceivedLinks
from appliance.message.dkim import Algorithm, SigningKey, sign
from appliance.model.feedback import ShareScope
from appliance.store import feedback
from appliance.store.body_parts import INLINE
from appliance.store.received import RECORD
from appliance.store.receiving import ReceivingAddresses
from appliance.submission.content import FindRecipient
from appliance.times import DAY, HOUR
from tests import stored_mail
from tests.fakes.dns import ZoneResolver
from tests.inbound.receiving_world import CLIENT, DOMAIN, MAIL, receiving

TAKEN = "250 2.1.5 Recipient OK"
FIELDS = {
    "inbound_id", "envelope", "from", "to", "cc", "reply_to", "subject", "text", "html", "headers", "message_id",
    "in_reply_to", "attachments", "spf", "dkim", "dmarc", "size", "raw_url",
}  # fmt: skip


async def test_a_reply_becomes_an_event(tmp_path: Path) -> None:
    """With the fields of the interface, a link to the message that it answers, and links to its files."""
    async with receiving(tmp_path) as world:
        sent = await stored_mail.accept(world.store, world.env, world.account_id, "ada@example.net")
        await world.store.receiving.add(world.account_id, DOMAIN)
        answered = f"{sent.id.removeprefix('msg_')}@example.com"
        mime = (
            "From: =?utf-8?q?Ada=2C_L=2E?= <ada@example.net>\r\n"
            "To: Support <support@in.example.com>, b@example.org\r\n"
            f"Reply-To: list@example.net\r\nSubject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\r\nMessage-ID: <1@example.net>\r\n"
            f"In-Reply-To: <{answered}>\r\nMIME-Version: 1.0\r\n"
            'Content-Type: multipart/mixed; boundary="x"\r\n\r\n--x\r\nContent-Type: text/plain\r\n\r\nHi\r\n'
            '--x\r\nContent-Type: text/html\r\n\r\n<p>Hi</p>\r\n--x\r\nContent-Type: image/png; name="a.png"\r\n'
            "Content-Transfer-Encoding: base64\r\n\r\naGVsbG8=\r\n--x--\r\n"
        ).encode()
        assert (await world.send("Support@IN.example.com", mime=mime))[0] == TAKEN
        await world.settle()
        (event,) = await world.events()
        assert event["type"] == "email.received"
        data = event["data"]
        assert data.keys() == FIELDS | {"in_reply_to_email"}
        assert data["envelope"] == {"from": "ada@example.net", "to": ["Support@in.example.com"]}
        assert (data["from"], data["subject"]) == ("Ada, L. <ada@example.net>", "Grüße")
        assert data["to"] == ["Support <support@in.example.com>", "b@example.org"]
        assert (data["cc"], data["reply_to"]) == ([], ["list@example.net"])
        assert (data["text"], data["html"]) == ("Hi", "<p>Hi</p>")
        assert (data["message_id"], data["in_reply_to"]) == ("1@example.net", answered)
        assert data["in_reply_to_email"] == {"id": sent.id, "metadata": {}}
        assert (data["spf"], data["dkim"], data["dmarc"]) == ("none", "none", "none")
        assert data["size"] == len(mime)
        (file,) = data["attachments"]
        assert {**file, "url": ""} == {
            "number": 1, "filename": "a.png", "content_type": "image/png", "size": 5, "url": "",
        }  # fmt: skip
        linked = world.links.read(file["url"].rpartition("/")[2], world.env.now())
        assert linked is not None
        assert (linked.account_id, linked.message_id, linked.number) == (world.account_id, data["inbound_id"], 1)
        assert await world.store.received.mime(world.account_id, data["inbound_id"]) == mime
        assert await world.stored_bytes() >= len(mime) + RECORD
        assert await world.rows("SELECT count(*) FROM feedback_counts") == [(0,)]


async def test_which_addresses_receive(tmp_path: Path) -> None:
    async with receiving(tmp_path) as world:
        for address in ("Support@in.example.com", "in2.example.com"):
            await world.store.receiving.add(world.account_id, address.lower())
        taken = "support@in.example.com SUPPORT+ticket-7@IN.example.com x@in2.example.com postmaster@in2.example.com"
        for address in taken.split():
            assert (await world.send(address))[0] == TAKEN, address
        for address in ("other@in.example.com", "support@x.in2.example.com", "postmaster@in.example.com"):
            (reply,) = await world.send(address)
            assert reply.startswith(("550 5.1.1", "550 5.7.1")), address
        assert await world.send("other@in.example.com") == [listener.NO_MAILBOX.decode().rstrip()]
        for foreign in ("ada@example.net", "a%example.net@in.example.org", "support@example.com"):
            assert await world.send(foreign) == [listener.NO_RELAY.decode().rstrip()]
        await world.settle()
        assert len(await world.received()) == 4


async def test_one_message_for_each_account(tmp_path: Path) -> None:
    """Also with feedback addresses in the same transaction; each account sees its own recipients only."""
    async with receiving(tmp_path) as world:
        other = await stored_mail.account(world.store, "other")
        await world.store.access.add_domain(other, "example.org", usable=True)
        await world.store.receiving.add(world.account_id, DOMAIN)
        await world.store.receiving.add(other, "example.org")
        recipients = ("a@in.example.com", "b@in.example.com", "c@example.org", "abuse@bounces.example.com")
        assert len(await world.send(*recipients)) == 5
        await world.settle()
        (mine,), (theirs,) = await world.received(), await world.received(other)
        assert mine.envelope.recipients == recipients[:2]
        assert theirs.envelope.recipients == recipients[2:3]
        assert await world.rows("SELECT addresses FROM feedback_mail") == [(recipients[3],)]
        assert await world.store.received.find(other, mine.id) is None


async def test_a_large_message_is_written_once_in_parts(tmp_path: Path) -> None:
    async with receiving(tmp_path) as world:
        await world.store.receiving.add(world.account_id, DOMAIN)
        mime = MAIL + b"0123456789abcdef\r\n" * (2 * INLINE // 18)
        assert (await world.send("a@in.example.com", mime=mime))[-1].startswith("250 2.0.0 queued as inb_")
        parts = await world.rows("SELECT count(*) FROM message_body_parts")
        await world.settle()
        (message,) = await world.received()
        assert await world.store.received.mime(world.account_id, message.id) == mime
        assert await world.rows("SELECT count(*) FROM message_body_parts") == parts != [(0,)]
        assert await world.rows("SELECT count(*) FROM loose_parts") == [(0,)]
        (event,) = await world.events()
        assert event["data"]["truncated"] is True
        assert len(event["data"]["text"].encode()) == 256 * 1024


async def test_old_messages_leave_with_their_posts(tmp_path: Path) -> None:
    """And give their bytes back; a post that is still retried keeps its message."""
    now = Environment().now()
    env = Environment(now=lambda: now)
    async with receiving(tmp_path, env=env) as world:
        await world.store.receiving.add(world.account_id, DOMAIN)
        await world.send("a@in.example.com", mime=MAIL + b"x" * (2 * INLINE) + b"\r\n")
        await world.settle()
        now += 2 * DAY
        assert (await world.store.received.forget(now - DAY, 1_000)).deleted == 0
        await world.store.engine.change("UPDATE webhook_deliveries SET status = 'failed', next_attempt_at = NULL", {})
        assert (await world.store.received.forget(now - 3 * DAY, 1_000)).deleted == 0
        assert (await world.store.received.forget(now - DAY, 1_000)).deleted == 1
        assert await world.received() == []
        assert await world.events() == []
        assert await world.stored_bytes() == 0
        while (await world.store.body_parts.clear(1_000)).more:
            pass
        assert await world.rows("SELECT count(*) FROM message_body_parts") == [(0,)]


async def test_the_sender_is_checked(tmp_path: Path) -> None:
    key = generate(Algorithm.ED25519)
    zone = {
        "example.net": {"TXT": [f'"v=spf1 ip4:{CLIENT} -all"']},
        "_dmarc.example.net": {"TXT": ['"v=DMARC1; p=reject"']},
        "s._domainkey.example.net": {"TXT": [f'"{record_value(key)}"']},
    }
    async with receiving(tmp_path, zone) as world:
        await world.store.receiving.add(world.account_id, DOMAIN)
        signed = sign(MAIL, [SigningKey("example.net", "s", Algorithm.ED25519, key)], now_seconds=1) + MAIL
        await world.send("a@in.example.com", mime=signed)
        await world.settle()
        await world.send("a@in.example.com", mime=signed.replace(b"How", b"Who"), client="198.51.100.1")
        await world.settle()
        forged, honest = await world.received()
        assert (honest.spf, honest.dkim, honest.dmarc) == ("pass", "pass", "pass")
        assert (forged.spf, forged.dkim, forged.dmarc) == ("fail", "fail", "fail")
        assert forged.facts.authentication.dmarc.policy == "reject"


async def test_messages_whose_lookups_are_cached_are_stored_together(tmp_path: Path) -> None:
    """Without asking the DNS. One whose check raises an error does not stop the others, and is tried again."""

    class Broken(ZoneResolver):
        def remembered(self, name: str, kind: str) -> DnsAnswer[Any] | LookupFailed | None:
            if "bad.example" in name:
                raise RuntimeError("broken")
            return super().remembered(name, kind)

    async with receiving(tmp_path, {"example.net": {"TXT": [f'"v=spf1 ip4:{CLIENT} -all"']}}) as world:
        await world.store.receiving.add(world.account_id, DOMAIN)
        await world.send("a@in.example.com")
        await world.settle()
        asked = world.resolver.asked.copy()
        world.receiver.resolver = Broken(world.resolver.zone)
        world.receiver.resolver.asked = asked.copy()
        for sender in ("a@example.net", "b@bad.example", "c@example.net"):
            await world.send("a@in.example.com", sender=sender)
        writes = world.store.engine.ordinary_writes
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.receiver.run)
            with trio.fail_after(30):
                while len(world.receiver._failed) < 1:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        assert world.store.engine.ordinary_writes == writes + 2  # one claim; both stored in one transaction
        assert [item.spf for item in await world.received()] == ["pass"] * 3
        assert world.receiver.resolver.asked == asked
        assert await world.rows("SELECT tries FROM feedback_mail") == [(1,)]


async def test_a_recipient_is_looked_up_at_once(tmp_path: Path) -> None:
    """With the same reply as in a task of its own, and counted once."""
    async with receiving(tmp_path) as world:
        for address in ("a@in.example.com", "b@in.example.com"):
            await world.store.receiving.add(world.account_id, address)
        for recipient in ("a@in.example.com", "c@in.example.com", "a@example.org", "abuse@bounces.example.com"):
            action = FindRecipient(CLIENT, recipient)
            slow, quick = await world.listener.find_recipient(action), world.listener.find_at_once(action)
            assert str(slow) == str(quick), recipient
        session = world.session()
        pipelined = b"".join(b"RCPT TO:<%b@in.example.com>\r\n" % name for name in (b"a", b"b", b"c"))
        replies = await world.say(session, b"EHLO x\r\nMAIL FROM:<ada@example.net>\r\n" + pipelined)
        assert [reply[:3] for reply in replies[2:]] == ["250", "250", "550"]


# ---- limits


async def test_a_full_mailbox_is_452(tmp_path: Path) -> None:
    """At RCPT when it is full, at the end of the message when that would fill it; nothing of it is stored."""
    async with receiving(tmp_path) as world:
        await world.store.receiving.add(world.account_id, DOMAIN)
        world.intake.may_store = RECORD + len(MAIL) - 1
        assert (await world.send("a@in.example.com"))[-1].startswith("452 ")
        assert await world.stored_bytes() == 0
        assert await world.rows(
            "SELECT (SELECT count(*) FROM feedback_mail), (SELECT count(*) FROM feedback_counts)"
        ) == [(0, 0)]
        big = MAIL + b"x" * (2 * INLINE) + b"\r\n"
        assert (await world.send("a@in.example.com", mime=big))[-1].startswith("452 ")
        assert await world.rows("SELECT count(*) FROM message_body_parts") == [(0,)]
        world.intake.may_store = 0
        assert await world.send("a@in.example.com") == [listener.MAILBOX_FULL.decode().rstrip()]


async def test_a_suspended_account_receives_later(tmp_path: Path) -> None:
    async with receiving(tmp_path) as world:
        await world.store.receiving.add(world.account_id, DOMAIN)
        await world.store.accounts.set_suspended(world.account_id, True)
        assert await world.send("a@in.example.com") == [listener.SUSPENDED.decode().rstrip()]


async def test_too_large_is_552(tmp_path: Path) -> None:
    async with receiving(tmp_path) as world:
        await world.store.receiving.add(world.account_id, DOMAIN)
        session = world.session()
        assert (await world.say(session, b"EHLO x\r\nMAIL FROM:<> SIZE=10485761\r\n"))[-1].startswith("552 5.3.4")
        replies = await world.send("a@in.example.com", mime=MAIL + b"x" * 10_485_760 + b"\r\n")
        assert replies[-1].startswith("552 5.3.4")


async def test_limits_of_a_message(tmp_path: Path) -> None:
    """As docs/receiving.md has them; the other recipients of a message are for another transaction."""
    async with receiving(tmp_path) as world:
        await world.store.receiving.add(world.account_id, DOMAIN)
        replies = await world.send(*(f"{number}@in.example.com" for number in range(11)))
        assert [reply[:9] for reply in replies] == ["250 2.1.5"] * 10 + ["452 4.5.3", "250 2.0.0"]
        wide = b"X-A: " + b"x" * 990 + b"\r\n"
        too_much = (MAIL + b"a\nb\r\n", MAIL + b"a\rb\r\n", wide * 265 + MAIL, b"X: y\r\n" * 5_000 + MAIL)
        for mime in too_much:
            assert (await world.send("a@in.example.com", mime=mime))[-1].startswith("554 5.6.0")
        assert len(await world.rows("SELECT id FROM feedback_mail")) == 1


async def test_a_network_fills_half_of_an_accounts_share(tmp_path: Path) -> None:
    """Another network, and another account, still have room; feedback, too."""
    async with receiving(tmp_path) as world:
        await world.store.receiving.add(world.account_id, DOMAIN)
        force_setattr(world.store.feedback, "limits", feedback.QueueLimits(mails=64))
        for number in range(4):
            assert len(await world.send(f"{number}@in.example.com")) == 2
        assert (await world.send("5@in.example.com"))[-1].startswith("451 ")
        assert len(await world.send("5@in.example.com", client="198.51.100.1")) == 2
        assert len(await world.send("abuse@bounces.example.com", client="198.51.100.1")) == 2
        await world.settle()
        assert len(await world.send("5@in.example.com")) == 2


async def test_an_address_has_a_share_too(tmp_path: Path) -> None:
    """Several networks can fill it together; it is refused at RCPT, and the account's other addresses have room."""
    async with receiving(tmp_path) as world:
        await world.store.receiving.add(world.account_id, DOMAIN)
        force_setattr(world.store.feedback, "limits", feedback.QueueLimits(mails=64))
        for network in ("192.0.2.1", "198.51.100.1", "203.0.113.1", "203.0.114.1"):
            assert len(await world.send("busy@in.example.com", client=network)) == 2
        assert [reply[:4] for reply in await world.send("busy@in.example.com", client="203.0.115.1")] == ["451 "]
        assert len(await world.send("quiet@in.example.com", client="203.0.115.1")) == 2


async def test_turns_of_networks_and_accounts(tmp_path: Path) -> None:
    """A network with much mail does not delay another's; a turn and an account have some of the places."""
    async with receiving(tmp_path) as world:
        other = await stored_mail.account(world.store, "other")
        await world.store.access.add_domain(other, "example.org", usable=True)
        for account_id, address in ((world.account_id, DOMAIN), (other, "example.org")):
            await world.store.receiving.add(account_id, address)
        for number in range(4):
            for _ in range(20):
                await world.send("a@in.example.com", client=f"192.0.2.{number}")
        await world.send("a@example.org")
        chosen = await world.receiver._next()
        networks = Counter(item.turn for item in chosen)
        assert networks[f"{other} {CLIENT}"] == 1
        assert max(networks.values()) == receiver.TURN_PLACES
        assert len(chosen) == receiver.ACCOUNT_PLACES + 1
        world.receiver._checked |= {item.id: item for item in chosen}
        assert await world.receiver._next() == []
        await world.store.received.claim([item.id for item in chosen], large=False)
        for item in chosen:
            if item.turn.endswith(".1"):  # done
                del world.receiver._checked[item.id]
        assert await world.receiver._next()


async def test_large_messages_take_more_places(tmp_path: Path) -> None:
    async with receiving(tmp_path) as world:
        await world.store.receiving.add(world.account_id, DOMAIN)
        for number in range(3):
            for size in (7 * MIB, 2 * INLINE - 1_000, INLINE - 1_000):
                await world.send("a@in.example.com", mime=MAIL + b"x" * size + b"\r\n", client=f"192.0.2.{number}")
        chosen = await world.receiver._next()
        assert sum(item.size for item in chosen) <= receiver.ACCOUNT_PLACES * receiver.BYTES_PER_PLACE
        assert len(chosen) == 9


async def test_a_message_that_may_have_ended_the_process_is_checked_alone(tmp_path: Path) -> None:
    """So the messages beside it are not given up with it. The walk waits for it: another flood does not starve it."""
    async with receiving(tmp_path) as world:
        await world.store.receiving.add(world.account_id, DOMAIN)
        for number in range(4):
            await world.send("a@in.example.com", client=f"192.0.2.{number}")
        mails = [mail_id for (mail_id,) in await world.rows("SELECT id FROM feedback_mail ORDER BY turn")]
        await world.store.engine.change(
            "UPDATE feedback_mail SET tries = :tries WHERE id = :id", {"tries": receiver.ALONE_FROM, "id": mails[1]}
        )
        (before,) = await world.receiver._next()
        assert before.id == mails[0]
        world.receiver._checked[before.id] = before
        assert await world.receiver._next() == []
        world.receiver._checked.clear()
        (suspect,) = await world.receiver._next()
        assert suspect.id == mails[1]
        world.receiver._checked[suspect.id] = suspect
        assert await world.receiver._next() == []
        world.receiver._checked.clear()
        world.receiver._failed.add(suspect.id)  # its check raised an error: the process did not end
        assert len(await world.receiver._next()) == 4


async def test_a_message_that_ends_the_process_is_stored_unread(tmp_path: Path) -> None:
    async with receiving(tmp_path) as world:
        await world.store.receiving.add(world.account_id, DOMAIN)
        await world.send("a@in.example.com")
        await world.store.engine.change("UPDATE feedback_mail SET tries = 5", {})
        await world.settle()
        (message,) = await world.received()
        assert (message.spf, message.dmarc, message.subject) == ("temperror", "temperror", "")
        assert await world.store.received.mime(world.account_id, message.id) == MAIL


# ---- addresses


async def test_addresses_of_an_account(tmp_path: Path) -> None:
    async with receiving(tmp_path) as world:
        store, account_id = world.store, world.account_id
        other = await stored_mail.account(store, "other")
        for domain, usable in (("example.com", True), ("example.org", False)):
            await store.access.add_domain(other, domain, usable=usable)
        addresses = ReceivingAddresses(store.engine, store.receiving.env, most=2)
        added = [(await addresses.add(account_id, item)).address for item in ("a@in.example.com", "in2.example.com")]
        assert [item.address for item in await addresses.page(account_id, "", 10)] == added
        refusals = [
            (account_id, "in.example.net", Code.FORBIDDEN),  # not below a domain of the account
            (account_id, "notexample.com", Code.FORBIDDEN),
            (other, "example.org", Code.FORBIDDEN),  # not verified
            (other, "in.example.com", Code.CONFLICT),  # receives for the first account
            (account_id, "b@example.com", Code.CONFLICT),  # one too many
        ]
        for whose, address, code in refusals:
            with pytest.raises(Refused) as refused:
                await addresses.add(whose, address)
            assert refused.value.code is code, address
        with pytest.raises(Refused):
            await addresses.remove(other, added[0])
        await store.domains.remove(account_id, "example.com")
        assert await addresses.page(account_id, "", 10) == []


def test_a_link_is_good_for_an_hour() -> None:
    links = ReceivedLinks(bytes(32), "https://mail.example.com/")
    token = links.url("acc_1", "inb_1", 2, 1_000).removeprefix("https://mail.example.com/inbound/")
    assert links.read(token, 999 + HOUR) is not None
    assert links.read(token, 1_000 + HOUR) is None
    for at in range(len(token)):
        forged = token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :]
        assert links.read(forged, 1_000) is None or base64.urlsafe_b64decode(
            forged + "=" * (-len(forged) % 4)
        ) == base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    assert ReceivedLinks(bytes(31) + b"x", "https://mail.example.com").read(token, 1_000) is None


def test_every_share_of_received_mail_has_a_part() -> None:
    parts = feedback.SHARE_PARTS
    assert parts[ShareScope.RECEIVED_FROM] == 2 * parts[ShareScope.RECEIVED_ACCOUNT]
