"""`appliance queue …` and `appliance explain`, on a database with mail in it."""

import re
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
import trio
from click.testing import CliRunner

from appliance.cli import main
from appliance.config.settings import WarmupSettings
from appliance.environment import Environment
from appliance.model.mail import BounceClass, LateBounce, NewMessage, RecipientStatus
from appliance.model.queue import PoolState, SlowedAccount
from appliance.model.warmup import begin
from appliance.report.explain import clock
from appliance.store import Store, open_store
from appliance.times import DAY, HOUR, microseconds, rfc3339
from tests import stored_mail
from tests.cli.shell import Shell, fields
from tests.docs.test_cli import documented

OUTSIDE = Environment()


def changed(shell: Shell, change: Callable[[Store, str], Awaitable[Any]]) -> Any:
    """What a change of the store by the server, or by a sender, gives back; it is told acme's id."""

    async def opened() -> Any:
        async with open_store(shell.data_dir, OUTSIDE, inline=True) as store:
            return await change(store, (await store.accounts.named("acme")).id)

    return trio.run(opened)


def accept(shell: Shell, *addresses: str, **options: Any) -> NewMessage:
    made = changed(shell, lambda store, account: stored_mail.accept(store, OUTSIDE, account, *addresses, **options))
    assert isinstance(made, NewMessage)
    return made


def deferred(shell: Shell, *addresses: str) -> NewMessage:
    message = accept(shell, *addresses)
    changed(shell, lambda store, _: stored_mail.defer(store, OUTSIDE, message))
    return message


def say(shell: Shell, *states: PoolState, **destinations: str) -> None:
    """What the server knows of its pools; `gmail_com="google"` for a domain."""
    known = {domain.replace("_", "."): pool for domain, pool in destinations.items()}
    changed(shell, lambda store, _: store.pools.say(states, known))


def due(shell: Shell) -> list[str]:
    found = shell.stored(lambda store: store.queue.due(simulated=False, most=100))
    return sorted(recipient.address for recipient in found)


# ---- the queue


def test_an_empty_queue_says_so(acme: Shell) -> None:
    assert acme.text("queue") == acme.text("queue", "show") == "The queue is empty.\n"
    assert acme.json("queue") == {"pools": [], "more": False, "sandbox": 0, "due": 0, "deferred": 0, "scheduled": 0}


def test_the_queue_is_shown_by_pool_and_destination(acme: Shell) -> None:
    """Amounts, the sessions in use, and why a pool waits, in a table and as the documented JSON."""
    say(acme, PoolState("google", 5, 20, None, None, 0), gmail_com="google", example_net="example.net")
    accept(acme, "a@gmail.com", "b@gmail.com")
    deferred(acme, "c@example.net")
    accept(acme, "d@new.example")
    acme.json("queue", "pause", "example.net", "--reason", "they move")
    answer = acme.json("queue", "show")
    assert fields(answer) == fields(documented("queue show"))
    google, unknown, net = answer["pools"][0], answer["pools"][-1], answer["pools"][1]
    assert (google["pool"], google["waiting"], google["in_use"], google["allowed"]) == ("google", 2, 5, 20)
    assert [each["domain"] for each in google["destinations"]] == ["gmail.com"]
    assert {unknown["pool"], net["pool"]} == {None, "example.net"}
    held = next(pool for pool in answer["pools"] if pool["pool"] == "example.net")
    assert (held["waiting"], held["deferred"], held["held_because"]) == (0, 1, "they move")
    lines = acme.text("queue").splitlines()
    assert lines[0].startswith("POOL")
    assert lines[0].endswith("STATE")
    assert lines[1].split()[:3] == ["google", "2", "0"]
    assert "5 of 20" in lines[1]
    assert lines[2].split()[:2] == ["gmail.com", "2"]
    assert any(line.startswith("(not looked up)") for line in lines)
    (held_line,) = (line for line in lines if line.startswith("example.net"))
    assert held_line.endswith("held: they move")
    assert re.search(r" 0 +1 +\d s +in \d+ (s|min) ", held_line), held_line
    assert max(map(len, lines)) <= 80 + len("held: they move")


def test_a_slowed_pool_tells_until_when_and_why(acme: Shell) -> None:
    soon, past = OUTSIDE.now() + 60_000_000, OUTSIDE.now() - 60_000_000
    states = (PoolState("slow", 0, 2, soon, "421 too fast", 0), PoolState("was-slow", 0, 2, past, "421 too fast", 0))
    say(acme, *states, a_example="slow", b_example="was-slow")
    accept(acme, "u@a.example", "u@b.example")
    slow, was_slow = (line for line in acme.text("queue").splitlines() if "of 2" in line)
    assert "slowed until " in slow
    assert slow.endswith(": 421 too fast")
    assert "slowed" not in was_slow


def test_mail_that_waits_for_a_warm_up_says_so(acme: Shell) -> None:
    """The table tells which address is new, what may go and when; JSON the same in numbers. Off, nothing is told."""
    now, settings = OUTSIDE.now(), WarmupSettings(enabled=True)
    new = begin("google", "192.0.2.1", now).take(settings, now, 2)
    say(acme, PoolState("google", 0, 20, None, None, 0), gmail_com="google")
    changed(acme, lambda store, _: store.warmups.keep([new]))
    message = accept(acme, "u@gmail.com")
    assert "warmups" not in acme.json("queue")
    assert "warm-up" not in acme.text("queue")
    acme.config.write_text(f"{acme.config.read_text()}[warmup]\nenabled = true\n")
    wait = f"from 192.0.2.1: 20 an hour on day 1, 2 used; next at {clock(now + 180_000_000, now)}"
    (line,) = (line for line in acme.text("queue").splitlines() if line.startswith("google"))
    assert line.endswith(f"warm-up of pool google {wait}")
    (told,) = acme.json("queue")["warmups"]
    assert (told["pool"], told["address"], told["day"], told["days"]) == ("google", "192.0.2.1", 1, 30)
    assert (told["per_hour"], told["used"], told["next_at"]) == (20, 2, rfc3339(now + 180_000_000))
    (recipient,) = acme.json("explain", message.id)["recipients"]
    assert recipient["explanation"] == f"waiting: warm-up of pool google {wait}"


def test_a_held_pool_is_shown_without_any_mail(acme: Shell) -> None:
    acme.json("queue", "pause", "google")
    (pool,) = acme.json("queue")["pools"]
    assert (pool["pool"], pool["waiting"], pool["held_because"]) == ("google", 0, "paused by the operator")
    assert " ".join(acme.text("queue").splitlines()[1].split()) == "google 0 0 held: paused by the operator"


def test_a_pool_that_holds_itself_tells_when_it_is_probed(acme: Shell) -> None:
    """In the table, in JSON and in the explanation of a message; not when the operator wants it held as well."""
    soon = OUTSIDE.now() + 600_000_000
    say(acme, gmail_com="google")
    changed(acme, lambda store, _: store.pools.hold("google", "they refuse us", soon))
    message = accept(acme, "u@gmail.com")
    (line,) = (line for line in acme.text("queue").splitlines() if line.startswith("google"))
    assert line.endswith(f"held: they refuse us; next probe at {rfc3339(soon)[11:19]}")
    (pool,) = acme.json("queue")["pools"]
    assert pool["next_probe_at"] == rfc3339(soon)
    (recipient,) = acme.json("explain", message.id)["recipients"]
    told = f"waiting: pool google is held: they refuse us; next probe at {clock(soon, OUTSIDE.now())}"
    assert recipient["explanation"] == told
    assert acme.json("queue", "pause", "google")["reason"] == "they refuse us"
    (pool,) = acme.json("queue")["pools"]
    assert pool["next_probe_at"] is None


def test_accounts_whose_mail_alone_is_slowed_are_told(acme: Shell) -> None:
    """The table and JSON count them; the explanation of such an account's message says until when and why."""
    message = accept(acme, "u@gmail.com")
    account, soon = acme.json("account", "show", "acme"), OUTSIDE.now() + 60_000_000
    account_id = acme.stored(lambda store: store.accounts.named(account["name"])).id
    slowed = (SlowedAccount(account_id, soon, "421 too fast"), SlowedAccount("acc_other", soon, "421 too fast"))
    say(acme, PoolState("google", 0, 20, None, None, 0, slowed_accounts=slowed), gmail_com="google")
    (line,) = (line for line in acme.text("queue").splitlines() if line.startswith("google"))
    assert line.endswith("0 of 20 in use; 2 accounts' mail slowed down")
    assert acme.json("queue")["pools"][0]["slowed_accounts"] == 2
    (recipient,) = acme.json("explain", message.id)["recipients"]
    until = clock(soon, OUTSIDE.now())
    told = f"waiting: this account's mail to pool google is slowed down until {until} because 421 too fast"
    assert recipient["explanation"] == told


def test_an_unknown_pool_is_not_held_by_a_typing_error(acme: Shell) -> None:
    """The name that was meant is told, or the pool of a domain; with --force it is held all the same."""
    say(acme, gmail_com="google", example_net="example.net")
    assert "Did you mean google?" in acme.refused("queue", "pause", "gogle")
    assert "Did you mean example.net?" in acme.refused("queue", "pause", "exmaple.net")
    assert "uses pool google" in acme.refused("queue", "pause", "gmail.com")
    assert "There is no pool zzz. Use --force" in acme.refused("queue", "pause", "zzz")
    assert acme.json("queue")["pools"] == []
    assert acme.json("queue", "pause", "zzz", "--force")["held"] is True
    assert acme.json("queue", "pause", "exmaple.net", "--force")["held"] is True
    assert acme.json("queue", "pause", "new.test")["held"] is True  # mail may go there one day
    acme.config.write_text(f'{acme.config.read_text()}[delivery.pools.partner]\nsuffixes = ["partner.example"]\n')
    assert acme.json("queue", "pause", "partner")["held"] is True


def test_a_long_queue_is_cut(acme: Shell) -> None:
    """Only as many pools and destinations as asked for, and a word that there are more."""
    say(acme, a_example="p", b_example="p", c_example="q")
    accept(acme, "u@a.example", "u@b.example", "v@b.example", "u@c.example")
    answer = acme.json("queue", "show", "--pools", "1", "--destinations", "1")
    assert [pool["pool"] for pool in answer["pools"]] == ["p"]
    assert [each["domain"] for each in answer["pools"][0]["destinations"]] == ["b.example"]
    assert answer["more"] is True
    assert "More pools exist" in acme.text("queue", "show", "--pools", "1")
    acme.misused("queue", "show", "--pools", "0")


def test_simulated_mail_is_not_in_the_queue(acme: Shell) -> None:
    accept(acme, "a@gmail.com", simulated=True)
    assert acme.json("queue")["pools"] == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], ["a@gmail.com", "b@example.net", "c@example.net"]),
        (["--pool", "google"], ["a@gmail.com"]),
        (["--domain", "Example.NET."], ["b@example.net", "c@example.net"]),
        (["--message", "MESSAGE"], ["b@example.net", "c@example.net"]),
        (["--recipient", "RECIPIENT"], ["c@example.net"]),
        (["--recipient", "B@example.net"], ["b@example.net"]),
    ],
)
def test_a_retry_makes_due_what_it_names(acme: Shell, options: list[str], expected: list[str]) -> None:
    """By pool, domain, message, recipient or address; without an option everything."""
    say(acme, gmail_com="google", example_net="example.net")
    deferred(acme, "a@gmail.com")
    message = deferred(acme, "b@example.net", "c@example.net")
    names = {"MESSAGE": message.id, "RECIPIENT": message.recipients[1].id}
    answer = acme.json("queue", "retry", *(names.get(option, option) for option in options))
    assert answer == {"retried": len(expected)}
    assert fields(answer) == fields(documented("queue retry"))
    assert due(acme) == expected


def test_a_retry_is_told_in_words(acme: Shell) -> None:
    assert acme.text("queue", "retry") == "No deferred mail matches.\n"
    deferred(acme, "a@gmail.com")
    assert acme.text("queue", "retry") == "1 recipient is due now.\n"
    deferred(acme, "a@gmail.com", "b@gmail.com")
    assert acme.text("queue", "retry") == "2 recipients are due now.\n"


def test_a_retry_of_nothing_known_is_refused(acme: Shell) -> None:
    """A message or recipient that is not there; two options at once are wrong usage."""
    assert "there is no message 'msg_0'" in acme.refused("queue", "retry", "--message", "msg_0")
    assert "there is no recipient 'rcp_0'" in acme.refused("queue", "retry", "--recipient", "rcp_0")
    assert "not a domain name" in acme.refused("queue", "retry", "--domain", "a..b")
    acme.misused("queue", "retry", "--pool", "a", "--domain", "b.example")


def test_a_cancelled_message_fails_with_its_credits_returned(acme: Shell) -> None:
    """What still waited is failed, the answer says how many, and a second time there is nothing left to cancel."""
    message = deferred(acme, "a@gmail.com", "b@gmail.com")
    assert acme.json("account", "show", "acme")["credits"] == 98
    answer = acme.json("queue", "cancel", message.id)
    assert answer == {"message": message.id, "cancelled": 2}
    assert fields(answer) == fields(documented("queue cancel"))
    assert acme.json("account", "show", "acme")["credits"] == 100
    assert "left to cancel" in acme.refused("queue", "cancel", message.id)
    assert "there is no message" in acme.refused("queue", "cancel", "msg_0")
    again = accept(acme, "a@gmail.com")
    assert acme.text("queue", "cancel", again.id) == f"Cancelled 1 recipient of {again.id}.\n"


def test_a_scheduled_message_is_listed_moved_and_cancelled(acme: Shell) -> None:
    ahead = OUTSIDE.now() + DAY
    message, now = accept(acme, "a@gmail.com", scheduled_at=ahead), accept(acme, "b@gmail.com")
    assert acme.text("queue").splitlines()[-1].startswith("1 message scheduled for later")
    (listed,) = acme.json("messages", "--scheduled")["messages"]
    assert (listed["id"], listed["scheduled_at"]) == (message.id, rfc3339(ahead))
    acme.misused("message", "list", "--scheduled", "--outcome", "queued")
    answer = acme.json("reschedule", message.id, "2h")
    assert fields(answer) == fields(documented("queue reschedule"))
    (listed,) = acme.json("message", "list", "--outcome", "scheduled")["messages"]
    assert (listed["id"], listed["scheduled_at"]) == (message.id, answer["scheduled_at"])
    assert answer["scheduled_at"][:16].replace("T", " ") in acme.text("messages", "--scheduled", "--wide")
    at = rfc3339(microseconds(answer["scheduled_at"]) + HOUR)
    assert acme.text("queue", "reschedule", message.id, at) == f"{message.id} is scheduled for {at}.\n"
    assert "at most 30 days ahead" in acme.refused("reschedule", message.id, "31d")
    acme.misused("reschedule", message.id, "2020-11-15")
    acme.misused("reschedule", message.id)
    assert "there is no message 'msg_0'" in acme.refused("reschedule", "msg_0", "2h")
    assert "is not scheduled" in acme.refused("reschedule", now.id, "2h")
    assert acme.json("cancel", message.id) == {"message": message.id, "cancelled": 1}
    assert "is not scheduled" in acme.refused("reschedule", message.id, "2h")
    assert acme.json("messages", "--scheduled")["messages"] == []
    found = {(line["action"], line["object"]) for line in acme.json("audit")["audit"]}
    assert {("email.rescheduled", message.id), ("email.cancelled", message.id)} <= found


def test_a_pool_is_paused_and_resumed(acme: Shell) -> None:
    """A hold keeps its first reason; resuming what is not held is no error."""
    answer = acme.json("queue", "pause", "google")
    assert answer == {"pool": "google", "held": True, "reason": "paused by the operator"}
    assert fields(answer) == fields(documented("queue pause"))
    assert acme.text("queue", "pause", "google", "--reason", "x") == "Pool google is held: paused by the operator\n"
    answer = acme.json("queue", "resume", "google")
    hold = {"kind": "hold", "by": "operator", "reason": "paused by the operator", "until": None, "account": None}
    assert answer == {"pool": "google", "held": False, "was_held": True, "lifted": [hold]}
    assert fields(answer) == fields(documented("queue resume"))
    assert acme.text("queue", "resume", "google") == "Pool google was not held.\n"
    acme.json("queue", "pause", "google")
    lines = ["Pool google is open again.", "Lifted the hold by the operator: paused by the operator."]
    assert acme.text("queue", "resume", "google").splitlines() == lines


def test_resume_names_the_slow_downs_that_it_lifts(acme: Shell) -> None:
    """Those of the whole pool and those of single accounts; what a server said of another pool stays."""
    until = OUTSIDE.now() + 600_000_000
    slowed = (SlowedAccount("acc_1", until, "451 4.7.1 not so fast"),)
    say(acme, PoolState("google", 0, 1, until, "421 4.7.28 unusual rate", 0, slowed_accounts=slowed))
    answer = acme.json("queue", "resume", "google")
    assert answer["was_held"] is True
    assert [(each["kind"], each["account"], each["reason"]) for each in answer["lifted"]] == [
        ("slow-down", None, "421 4.7.28 unusual rate"),
        ("slow-down", "acc_1", "451 4.7.1 not so fast"),
    ]
    assert {each["until"] for each in answer["lifted"]} == {rfc3339(until)}
    say(acme, PoolState("google", 0, 1, until, "421 4.7.28 unusual rate", 0))
    text = acme.text("queue", "resume", "google")
    assert f"Lifted the slow-down by the server until {rfc3339(until)}: 421 4.7.28 unusual rate." in text
    say(acme, PoolState("google", 0, 1, OUTSIDE.now() - 1, "421 4.7.28 unusual rate", 0))
    assert acme.text("queue", "resume", "google") == "Pool google was not held.\n"
    assert acme.text("queue", "resume", "yahoo") == "Pool yahoo was not held.\n"


def test_resume_lifts_no_wait_for_a_session(acme: Shell) -> None:
    waits = SlowedAccount("acc_1", 0, "this account has 16 of 20 sessions", slots=0)
    say(acme, PoolState("google", 0, 1, None, None, 0, slowed_accounts=(waits,)))
    assert acme.text("queue", "resume", "google") == "Pool google was not held.\n"
    until = OUTSIDE.now() + 600_000_000
    say(acme, PoolState("google", 0, 1, until, "421 4.7.28 unusual rate", 0, slowed_accounts=(waits,)))
    assert [each["account"] for each in acme.json("queue", "resume", "google")["lifted"]] == [None]


def test_json_before_the_command_is_wrong_usage(acme: Shell) -> None:
    result = CliRunner().invoke(main, ["queue", "--json", "retry", "--config", str(acme.config)])
    assert result.exit_code == 2
    assert "No such option" in result.stderr


def test_the_queue_needs_a_database_to_act_on(shell: Shell) -> None:
    for words in (["retry"], ["cancel", "msg_0"], ["pause", "google"], ["resume", "google"]):
        assert "there is no database" in shell.refused("queue", *words)
    assert "there is no database" in shell.refused("explain", "msg_0")
    assert not shell.data_dir.exists()


# ---- explain


def test_each_recipient_is_explained(acme: Shell) -> None:
    """Where it stands in words, with its pool, its next try and each attempt, as the documented JSON."""
    say(acme, PoolState("example.net", 5, 5, None, None, 0), example_net="example.net")
    message = deferred(acme, "a@example.net", "b@example.net")
    answer = acme.json("explain", message.id)
    assert fields(answer) == fields(documented("explain"))
    assert (answer["id"], answer["account"], answer["status"]) == (message.id, "acme", "queued")
    first = answer["recipients"][0]
    assert (first["email"], first["status"], first["pool"]) == ("a@example.net", "deferred", "example.net")
    assert first["explanation"].startswith("deferred: try 2 of 12 at ")
    assert first["explanation"].endswith(" because mx.example.net said 451 4.7.1 greylisted")
    assert (first["bounce_class"], first["late_bounce"]) == ("temporary", None)
    (attempt,) = first["attempts"]
    assert (attempt["number"], attempt["duration_ms"], attempt["mx_host"]) == (1, 412, "mx.example.net")
    acme.json("queue", "retry")
    explanations = [each["explanation"] for each in acme.json("explain", message.id)["recipients"]]
    assert all(each.startswith("waiting: pool example.net 5 of 5 in use; it is try 2 of 12") for each in explanations)


def test_an_explanation_is_readable(acme: Shell) -> None:
    """The message, then each recipient with its sentence and its attempts; the SMTP lines only when asked for."""
    message = deferred(acme, "a@example.net")
    text = acme.text("explain", message.id)
    lines = text.splitlines()
    assert lines[0].startswith(f"{message.id} of acme, accepted at ")
    assert lines[1:4] == ["from Shop <shop@example.com>: Hello", "", "a@example.net"]
    assert lines[4].startswith("  deferred: try 2 of 12 at ")
    assert lines[5] == "  class of bounce: temporary"
    assert lines[6].startswith("    attempt 1 at ")
    assert lines[6].endswith(
        "412 ms, pool example.net: mx.example.net (192.0.2.1) over TLSv1.3, TLS_AES_256_GCM_SHA384, verified by PKIX:"
        " 451 4.7.1 greylisted -> deferred: attempt 2 of 12"
    )
    assert len(lines) == 7
    shown = acme.text("explain", message.id, "--dialogue")
    assert "           3 ms  C  EHLO mail.example.com" in shown.splitlines()
    (recipient,) = acme.json("explain", message.id, "--dialogue")["recipients"]
    assert recipient["attempts"][0]["dialogue"][0] == {"ms": 0, "speaker": "S", "text": "220 mx.example.net ESMTP"}


def test_a_late_bounce_is_explained(acme: Shell) -> None:
    late = LateBounce(1_750_000_000_000_000, 550, "550 5.1.1 no such user", BounceClass.INVALID_RECIPIENT)

    async def deliver(store: Store, _: str) -> None:
        (due,) = await stored_mail.due(store, message)
        await stored_mail.finish(store, OUTSIDE, due, RecipientStatus.DELIVERED, 250)
        stored = {"id": message.id, "late": msgspec.json.encode(late).decode()}
        await store.engine.change(
            "UPDATE recipients SET late_bounce = :late WHERE message_id = :id RETURNING 1", stored
        )

    message = accept(acme, "a@example.net")
    changed(acme, deliver)
    (recipient,) = acme.json("explain", message.id)["recipients"]
    assert (recipient["status"], recipient["bounce_class"]) == ("delivered", None)
    assert recipient["late_bounce"] == {
        "at": "2025-06-15T15:06:40.000Z",
        "code": 550,
        "response": "550 5.1.1 no such user",
        "class": "invalid_recipient",
    }
    assert recipient["explanation"].endswith("; it bounced by mail at 2025-06-15 15:06:40: 550 5.1.1 no such user")


def test_final_recipients_are_explained(acme: Shell) -> None:
    """Delivered, bounced, suppressed, cancelled and simulated ones, each in its own words."""

    async def suppress(store: Store, account: str) -> None:
        await store.suppressions.add(account, "gone@example.net", "by hand")

    async def finish(store: Store, _: str) -> None:
        for status, code in ((RecipientStatus.DELIVERED, 250), (RecipientStatus.BOUNCED, 550)):
            first = (await stored_mail.due(store, message))[0]
            await stored_mail.finish(store, OUTSIDE, first, status, code)

    changed(acme, suppress)
    message = accept(acme, "a@example.net", "b@example.net", "gone@example.net", "last@example.net")
    changed(acme, finish)
    acme.json("queue", "cancel", message.id)
    words = [each["explanation"].partition(" at ")[0] for each in acme.json("explain", message.id)["recipients"]]
    assert words == [
        "delivered",
        "bounced",
        "bounced: never asked a server: suppressed: this address is on the account's suppression list",
        "cancelled: given up by the operator",
    ]
    simulated = accept(acme, "a@example.net", simulated=True)
    (recipient,) = acme.json("explain", simulated.id)["recipients"]
    assert (recipient["explanation"], recipient["pool"]) == ("waiting: the sandbox takes it next", None)


def test_a_message_that_is_not_there_is_not_explained(acme: Shell) -> None:
    assert acme.refused("explain", "msg_0") == "Error: there is no message 'msg_0'\n"
