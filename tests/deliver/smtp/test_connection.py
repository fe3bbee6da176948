"""The driver: a whole session against a scripted server, and everything a server can do to it."""

import socket
import tracemalloc

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from appliance.deliver.smtp.connection import WATCH_EVERY, DeadlineWatch, Progress, SmtpConnection, Timeouts
from appliance.deliver.smtp.protocol import Cause, NotOpened, ResultKind, Stage, TransactionResult, Verdict
from appliance.deliver.smtp.sending import MailTransaction, prepare
from tests.fakes.mx import EXTENSIONS, Answer, FakeMx, drip, endless, hang_up, say_and_hang_up, silence, wait_and_say

BODY = b"Subject: x\r\n\r\n.hello\r\n"
STEPWISE = tuple(extension for extension in EXTENSIONS if extension != "PIPELINING")
BEFORE_MAIL = {"greeting": Stage.GREETING, "EHLO": Stage.EHLO}
IN_MAIL = {"MAIL": Stage.MAIL, "RCPT": Stage.RCPT, "DATA": Stage.DATA, ".": Stage.END_OF_DATA}

both = pytest.mark.parametrize("extensions", [EXTENSIONS, STEPWISE], ids=["pipelined", "stepwise"])


def transaction(*recipients: str, body: bytes = BODY) -> MailTransaction:
    return MailTransaction("from@x.example", recipients or ("a@x.example",), prepare(body))


async def opened(stream: trio.abc.Stream) -> SmtpConnection:
    return await SmtpConnection.open(stream, "me.example", watch=DeadlineWatch())


async def connect(port: int) -> SmtpConnection:
    return await opened(await trio.open_tcp_stream("127.0.0.1", port))


async def send(mx: FakeMx, mail: MailTransaction | None = None, timeouts: Timeouts | None = None) -> TransactionResult:
    async with mx.memory() as stream:
        watch = DeadlineWatch()
        connection = await SmtpConnection.open(stream, "me.example", watch=watch, timeouts=timeouts)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.run)
            result = await connection.send(mail or transaction())
            nursery.cancel_scope.cancel()
        assert connection.reusable is result.reusable
        await connection.quit()
        return result


async def fail_to_open(mx: FakeMx, timeouts: Timeouts | None = None) -> Verdict:
    async with mx.memory() as stream:
        with pytest.raises(NotOpened) as caught:
            await SmtpConnection.open(stream, "me.example", watch=DeadlineWatch(), timeouts=timeouts)
        with pytest.raises(trio.ClosedResourceError):
            await stream.send_all(b"x")
    return caught.value.verdict


@both
async def test_a_message_arrives_as_it_was(extensions: tuple[str, ...]) -> None:
    mx = FakeMx(extensions)
    result = await send(mx, transaction("a@x.example", "b@x.example"))
    assert [got.data for got in mx.messages] == [BODY]
    assert mx.messages[0].recipients == ("a@x.example", "b@x.example")
    assert mx.messages[0].mail == f"<from@x.example> SIZE={len(BODY)}"
    assert [each.kind for each in result.verdicts] == [ResultKind.ACCEPTED] * 2
    assert result.reusable
    assert not result.stale
    assert mx.commands[-1] == "QUIT"
    assert result.dialogues[0][-1].text == "250 2.0.0 queued"


@pytest.mark.parametrize("size", [100, 64 * 1024, 5_000_000])
async def test_a_message_of_any_size_goes_over_a_socket(size: int) -> None:
    """Small or in many blocks, with dots: the same bytes arrive."""
    line = b".dots at the beginning of every line\r\n"
    body = line * (size // len(line) + 1)
    mx = FakeMx()
    async with mx.listening() as port:
        connection = await connect(port)
        result = await connection.send(transaction(body=body))
        await connection.quit()
    assert result.verdicts[0].kind is ResultKind.ACCEPTED
    assert mx.messages[0].data == body


async def test_pipelined_commands_and_the_message_are_one_write_each() -> None:
    mx = FakeMx()
    await send(mx)
    assert [chunk.split(b" ")[0].split(b":")[0] for chunk in mx.chunks] == [b"EHLO", b"MAIL", b"Subject", b"QUIT\r\n"]
    assert mx.chunks[1].endswith(b"DATA\r\n")


@both
async def test_a_connection_carries_many_messages(extensions: tuple[str, ...]) -> None:
    mx = FakeMx(extensions, answers={"RCPT": [b"250 ok\r\n", b"550 no\r\n", b"250 ok\r\n"]})
    async with mx.memory() as stream:
        connection = await opened(stream)
        kinds = [(await connection.send(transaction())).verdicts[0].kind for _ in range(4)]
        await connection.quit()
    assert kinds == [ResultKind.ACCEPTED, ResultKind.REJECTED, ResultKind.ACCEPTED, ResultKind.ACCEPTED]
    assert connection.transactions == 4
    assert len(mx.messages) == 3
    assert mx.sessions == 1
    verbs = [command.split()[0] for command in mx.commands]
    assert verbs.count("RSET") == 1
    assert verbs[verbs.index("RSET") + 1] == "MAIL"
    assert verbs[: verbs.index("RSET")].count("MAIL") == 2


@both
async def test_a_mixture_of_answers_reaches_each_recipient(extensions: tuple[str, ...]) -> None:
    mx = FakeMx(extensions, {"RCPT b@x.example": b"451 4.7.1 greylisted\r\n", "RCPT c@x.example": b"550 5.1.1 who\r\n"})
    result = await send(mx, transaction("a@x.example", "b@x.example", "c@x.example"))
    assert [each.code for each in result.verdicts] == [250, 451, 550]
    assert mx.messages[0].recipients == ("a@x.example",)


async def test_data_accepted_for_no_recipient_leaves_the_connection_in_step() -> None:
    """354 though every RCPT was refused: a lone dot, and the next message goes through."""
    mx = FakeMx(answers={"RCPT": [b"550 no\r\n", b"250 ok\r\n"], "DATA": b"354 go\r\n"})
    async with mx.memory() as stream:
        connection = await opened(stream)
        first = await connection.send(transaction())
        second = await connection.send(transaction())
        await connection.quit()
    assert first.verdicts[0].code == 550
    assert first.reusable
    assert second.verdicts[0].kind is ResultKind.ACCEPTED
    assert [got.data for got in mx.messages] == [b"", BODY]


async def test_helo_is_enough() -> None:
    """A server that knows no EHLO gets the mail without any extension."""
    mx = FakeMx(answers={"EHLO": b"502 what\r\n"})
    result = await send(mx)
    assert result.verdicts[0].kind is ResultKind.ACCEPTED
    assert mx.messages[0].mail == "<from@x.example>"


# ---- at every point


@pytest.mark.parametrize("point", list(BEFORE_MAIL))
@pytest.mark.parametrize(
    ("answer", "kind", "cause"),
    [
        (hang_up, ResultKind.LOST, Cause.CONNECTION_LOST),
        (say_and_hang_up(b"220-half"), ResultKind.LOST, Cause.CONNECTION_LOST),
        (b"421 4.3.2 no\r\n", ResultKind.DEFERRED, None),
        (b"450 later\r\n", ResultKind.DEFERRED, None),
        (endless(b"220-more\r\n"), ResultKind.LOST, Cause.PROTOCOL_FAULT),
        (endless(b"220 " + b"x" * 65_536), ResultKind.LOST, Cause.PROTOCOL_FAULT),
        (b"250-a\r\n220 b\r\n", ResultKind.LOST, Cause.PROTOCOL_FAULT),
        (b"\xff\xfe\r\n", ResultKind.LOST, Cause.PROTOCOL_FAULT),
        (b"554 caf\xe9\r\n" * 2, ResultKind.LOST, Cause.PROTOCOL_FAULT),
    ],
)
async def test_a_server_that_fails_before_mail_is_not_opened(
    point: str, answer: Answer, kind: ResultKind, cause: Cause | None
) -> None:
    verdict = await fail_to_open(FakeMx(answers={point: answer}))
    assert (verdict.kind, verdict.cause, verdict.stage) == (kind, cause, BEFORE_MAIL[point])


async def test_a_server_that_refuses_us_is_left_politely() -> None:
    """A 554 greeting gets a QUIT (RFC 5321 3.1), and the reply is the verdict."""
    mx = FakeMx(answers={"greeting": b"554 5.7.1 not \xe2\x98\xba you\r\n"})
    verdict = await fail_to_open(mx)
    assert (verdict.kind, verdict.stage) == (ResultKind.REJECTED, Stage.GREETING)
    assert verdict.text == "554 5.7.1 not ☺ you"
    assert mx.commands == ["QUIT"]


@both
@pytest.mark.parametrize("point", list(IN_MAIL))
@pytest.mark.parametrize(
    ("answer", "kind", "cause"),
    [
        (hang_up, ResultKind.LOST, Cause.CONNECTION_LOST),
        (say_and_hang_up(b"250-half"), ResultKind.LOST, Cause.CONNECTION_LOST),
        (say_and_hang_up(b"421 4.3.2 no\r\n"), ResultKind.DEFERRED, None),
        (endless(b"250-more\r\n"), ResultKind.LOST, Cause.PROTOCOL_FAULT),
        (endless(b"250 " + b"x" * 65_536), ResultKind.LOST, Cause.PROTOCOL_FAULT),
        (b"250-a\r\n550 b\r\n", ResultKind.LOST, Cause.PROTOCOL_FAULT),
        (b"\xff\xfe\r\n", ResultKind.LOST, Cause.PROTOCOL_FAULT),
    ],
)
async def test_a_server_that_fails_in_mail_loses_no_recipient(
    extensions: tuple[str, ...], point: str, answer: Answer, kind: ResultKind, cause: Cause | None
) -> None:
    result = await send(FakeMx(extensions, {point: answer}), transaction("a@x.example", "b@x.example"))
    assert {each.kind for each in result.verdicts} == {kind}
    assert {each.cause for each in result.verdicts} == {cause}
    assert {each.stage for each in result.verdicts} == {IN_MAIL[point]}
    assert not result.reusable
    assert not result.stale


async def test_a_reply_of_50_mb_takes_no_memory() -> None:
    """A line that never ends is cut off after 2 KiB."""
    mx = FakeMx(answers={"MAIL": b"250 " + b"x" * 50_000_000 + b"\r\n"})
    async with mx.listening() as port:
        connection = await connect(port)
        tracemalloc.start()
        result = await connection.send(transaction())
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert result.verdicts[0].cause is Cause.PROTOCOL_FAULT
    assert peak < 1_000_000


async def test_two_answers_to_one_message_end_the_connection() -> None:
    result = await send(FakeMx(answers={".": b"250 queued\r\n250 queued\r\n"}))
    assert result.verdicts[0].kind is ResultKind.ACCEPTED
    assert not result.reusable


async def test_a_refusal_in_the_middle_of_a_big_message_is_heard() -> None:
    body = b"x" * 70 + b"\r\n"

    async def refuse(stream: trio.SocketStream) -> None:
        for answer in (b"220 mx\r\n", b"250 mx\r\n", b"250 ok\r\n", b"250 ok\r\n", b"354 go\r\n"):
            await stream.send_all(answer)
            await stream.receive_some()
        await stream.send_all(b"552 5.3.4 enough\r\n")
        await trio.aclose_forcefully(stream)  # with most of the message unread, so that writing breaks

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, refuse, listeners)
        stream = await trio.open_tcp_stream(*listeners[0].socket.getsockname()[:2])
        connection = await opened(stream)
        result = await connection.send(transaction(body=body * 200_000))
        nursery.cancel_scope.cancel()
    assert (result.verdicts[0].code, result.verdicts[0].stage) == (552, Stage.END_OF_DATA)
    assert not result.reusable


# ---- reuse of a connection the server gave up


@pytest.mark.parametrize("goodbye", [hang_up, say_and_hang_up(b"421 4.4.2 idle too long\r\n")])
async def test_a_reused_connection_that_was_given_up_is_called_stale(goodbye: Answer) -> None:
    """The second message meets a closed connection: the caller learns that nothing was tried."""
    mx = FakeMx(answers={"MAIL": [b"250 ok\r\n", goodbye]})
    async with mx.memory() as stream:
        connection = await opened(stream)
        assert not (await connection.send(transaction())).stale
        result = await connection.send(transaction())
    assert result.stale
    assert not result.reusable


async def test_a_refused_rset_is_stale_too() -> None:
    mx = FakeMx(answers={"RCPT": b"550 no\r\n", "RSET": b"502 what\r\n"})
    async with mx.memory() as stream:
        connection = await opened(stream)
        await connection.send(transaction())
        result = await connection.send(transaction())
    assert result.stale
    assert result.verdicts[0].kind is ResultKind.LOST


async def test_a_closed_connection_takes_nothing_more() -> None:
    async with FakeMx().memory() as stream:
        connection = await opened(stream)
        await connection.quit()
        await connection.quit()
        with pytest.raises(trio.ClosedResourceError):
            await connection.send(transaction())


# ---- time


@pytest.mark.parametrize(
    ("point", "seconds"), [("greeting", 300), ("EHLO", 300), ("MAIL", 300), ("RCPT", 300), ("DATA", 120), (".", 600)]
)
@pytest.mark.parametrize("answer", [silence, drip(b"250-" + b"x" * 2_000, 1)], ids=["silent", "dripping"])
async def test_each_reply_has_the_time_of_the_rfc(
    point: str, seconds: int, answer: Answer, autojump_clock: MockClock
) -> None:
    """A tarpit is left after the time of RFC 5321 4.5.3.2, however it drips."""
    mx = FakeMx(answers={point: answer})
    begin = trio.current_time()
    if point in BEFORE_MAIL:
        verdict = await fail_to_open(mx)
    else:
        verdict = (await send(mx)).verdicts[0]
    assert seconds - 0.1 <= trio.current_time() - begin <= seconds + WATCH_EVERY
    assert (verdict.kind, verdict.cause) == (ResultKind.LOST, Cause.TIMEOUT)
    assert verdict.stage == (BEFORE_MAIL | IN_MAIL)[point]


async def test_a_slow_server_has_time_for_every_reply(autojump_clock: MockClock) -> None:
    late = {"MAIL": wait_and_say(299, b"250 ok\r\n"), "RCPT": wait_and_say(299, b"250 ok\r\n")}
    result = await send(FakeMx(STEPWISE, late), transaction("a@x.example", "b@x.example"))
    # Without a record of who was accepted the fake refuses DATA; what counts is that every answer was waited for.
    assert result.verdicts[0].stage is Stage.DATA
    assert result.dialogues[0][-1].milliseconds == pytest.approx(3 * 299_000)


async def test_a_transaction_has_an_end(autojump_clock: MockClock) -> None:
    mx = FakeMx(answers={"RCPT": wait_and_say(299, b"250 ok\r\n")})
    begin = trio.current_time()
    result = await send(mx, transaction(*(f"r{number}@x.example" for number in range(50))))
    assert 3_600 <= trio.current_time() - begin <= 3_600 + WATCH_EVERY
    assert {each.cause for each in result.verdicts} == {Cause.TIMEOUT}


async def test_a_server_that_does_not_read_is_left(autojump_clock: MockClock) -> None:
    """A block that cannot be sent within 180 seconds is given up."""

    async def unread(stream: trio.abc.Stream) -> None:
        await stream.send_all(b"354 go\r\n")
        await trio.sleep_forever()

    ours, theirs = trio.testing.lockstep_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(FakeMx(answers={"DATA": unread}).serve, ours)
        watch = DeadlineWatch()
        nursery.start_soon(watch.run)
        connection = await SmtpConnection.open(theirs, "me.example", watch=watch)
        begin = trio.current_time()
        result = await connection.send(transaction(body=b"x\r\n" * 100_000))
        nursery.cancel_scope.cancel()
    assert 180 <= trio.current_time() - begin <= 180 + WATCH_EVERY
    assert (result.verdicts[0].cause, result.verdicts[0].stage) == (Cause.TIMEOUT, Stage.END_OF_DATA)


async def test_leave_is_short(autojump_clock: MockClock) -> None:
    """QUIT waits five seconds for its answer and no longer."""
    async with FakeMx(answers={"QUIT": silence}).memory() as stream:
        connection = await opened(stream)
        begin = trio.current_time()
        await connection.quit()
        assert trio.current_time() - begin == pytest.approx(5)
        assert not connection.reusable


async def test_timeouts_can_be_shortened(autojump_clock: MockClock) -> None:
    begin = trio.current_time()
    await send(FakeMx(answers={"MAIL": silence}), timeouts=Timeouts(mail=7))
    assert 7 <= trio.current_time() - begin <= 7 + WATCH_EVERY


# ---- cancellation


@pytest.mark.parametrize("point", [*BEFORE_MAIL, *IN_MAIL, "QUIT"])
async def test_cancellation_closes_the_connection(point: str, autojump_clock: MockClock) -> None:
    """Cancelled while waiting for any answer: the stream is closed, nothing is swallowed, no task is left."""
    async with FakeMx(answers={point: silence}).memory() as stream:
        before = _tasks()
        with trio.move_on_after(1) as scope:
            connection = await opened(stream)
            await connection.send(transaction())
            await connection.quit()
        assert scope.cancelled_caught
        assert _tasks() == before
        with pytest.raises(trio.ClosedResourceError):
            await stream.send_all(b"x")


async def test_a_pending_cancellation_sends_no_message() -> None:
    mx = FakeMx()
    async with mx.listening() as port:
        connection = await connect(port)
        with trio.CancelScope() as scope:
            scope.cancel()
            await connection.send(transaction())
        assert not connection.reusable
        await trio.testing.wait_all_tasks_blocked(0.01)
    assert mx.messages == []


def _tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_living


# ---- sockets


@pytest.mark.parametrize("reset", [True, False])
async def test_a_reset_connection_is_lost(reset: bool) -> None:
    async def slam(stream: trio.abc.Stream) -> None:
        assert isinstance(stream, trio.SocketStream)
        if reset:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        await trio.aclose_forcefully(stream)
        raise trio.ClosedResourceError

    async with FakeMx(answers={"MAIL": slam}).listening() as port:
        connection = await connect(port)
        result = await connection.send(transaction())
    verdict = result.verdicts[0]
    assert verdict.cause is Cause.CONNECTION_LOST
    assert ("reset" in verdict.text.lower()) is reset


async def test_a_stream_that_is_not_a_socket_is_driven_the_same(autojump_clock: MockClock) -> None:
    ours, theirs = trio.testing.lockstep_stream_pair()
    mx = FakeMx()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mx.serve, ours)
        connection = await opened(theirs)
        result = await connection.send(transaction(body=b"x\r\n" * 100_000))
        await connection.quit()
    assert result.verdicts[0].kind is ResultKind.ACCEPTED


async def test_an_unsafe_address_is_raised_and_the_connection_stays() -> None:
    async with FakeMx().memory() as stream:
        connection = await opened(stream)
        with pytest.raises(ValueError, match="not safe in a command"):
            await connection.send(transaction("a b@x.example"))
        assert (await connection.send(transaction())).verdicts[0].kind is ResultKind.ACCEPTED


class EndedAtTheLastMoment(Progress):
    """A delivery that is ended in the moment in which the server gives its go-ahead for the message."""

    def __init__(self, scope: trio.CancelScope, replies: int) -> None:
        self.scope, self.replies = scope, replies
        super().__init__(0.0)

    @property
    def moved_at(self) -> float:
        return 0.0

    @moved_at.setter
    def moved_at(self, _: float) -> None:
        self.replies -= 1
        if self.replies < 0:
            self.scope.cancel()


async def test_a_delivery_is_ended_before_its_final_dot_or_not_at_all() -> None:
    """Ended when the go-ahead is there already, the message is not sent; a server that has it would have it twice."""
    mx = FakeMx(extensions=())
    async with mx.listening() as port:
        connection = await connect(port)
        with trio.CancelScope() as scope:
            progress = EndedAtTheLastMoment(scope, replies=3)  # the beginning, MAIL and RCPT
            await connection.send(transaction(), progress)
        assert scope.cancelled_caught
        assert not progress.handed_over
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert mx.commands[-1] == "DATA"
        assert mx.messages == []
