"""In charge of one request and its answer on an open connection."""

import trio

from appliance.webhook.answer import ANSWER_LIMIT, AnswerReader, QuickAnswer, read_quickly
from appliance.webhook.attempt import Attempt, NotPosted, Step
from appliance.webhook.connection_pool import Connection
from appliance.webhook.limited_stream import Flooded

RECEIVE_BYTES = 16 * 1024  # at a time: as much as fits into one TLS record
PIECES = 250  # of an answer; each costs its share of a millisecond, however small it is


class Lost(NotPosted):
    """The connection went away before any byte of the answer."""


async def exchange(attempt: Attempt, connection: Connection, request: bytes) -> bool:
    """Send a request and read its answer; whether the connection may carry another. Raises `NotPosted`."""
    connection.begin()
    attempt.awaiting = Step.SENT
    try:
        await connection.stream.send_all(request)
        attempt.awaiting = Step.ANSWERED
        data = bytes(await connection.stream.receive_some(RECEIVE_BYTES))
    except Flooded as flood:
        raise NotPosted(f"{flood} before it answered") from flood
    except trio.BrokenResourceError as broken:
        raise Lost("the receiver broke the connection off before it answered") from broken
    if not data:
        raise Lost("the receiver closed the connection before it answered")
    quick = read_quickly(data)
    if quick is None or quick.missing:
        return await _read_on(attempt, connection, data, quick)
    attempt.status, attempt.body = quick.status, quick.body
    return quick.keep


async def _read_on(attempt: Attempt, connection: Connection, data: bytes, quick: QuickAnswer | None) -> bool:
    """An answer that takes longer: it comes in several pieces, or is no plain one."""
    pieces = 1
    while quick is not None and quick.missing and pieces < PIECES:  # mostly a head first and a body after it
        attempt.awaiting, attempt.status, attempt.body = Step.ENDED, quick.status, quick.body
        more = await _receive(connection, "before the end of its answer")
        if not more:
            raise NotPosted("the receiver closed the connection before the end of its answer")
        data, pieces = data + more, pieces + 1
        quick = read_quickly(data)
    if quick is not None and not quick.missing:
        attempt.status, attempt.body = quick.status, quick.body
        return quick.keep
    return await _read_by_h11(attempt, connection, data, pieces)


async def _read_by_h11(attempt: Attempt, connection: Connection, data: bytes, pieces: int) -> bool:
    reader = AnswerReader()
    while True:
        try:
            reader.receive(data)
        finally:
            attempt.status, attempt.body = reader.status, reader.body
        if reader.done or pieces >= PIECES:
            break
        if reader.status is not None:
            attempt.awaiting = Step.ENDED
        data, pieces = await _receive(connection, reader.before_what), pieces + 1
    if not reader.whole:
        _cut_short(attempt, f"is over {ANSWER_LIMIT // 1024} KiB long" if reader.done else "comes in too many pieces")
    return reader.keep


def _cut_short(attempt: Attempt, why: str) -> None:
    if attempt.status is None:
        raise NotPosted(f"the receiver's answer {why} and yet without a status")
    attempt.overlong = True
    attempt.error = f"the receiver's answer {why}; the rest was not read"


async def _receive(connection: Connection, before_what: str) -> bytes:
    try:
        return bytes(await connection.stream.receive_some(RECEIVE_BYTES))
    except Flooded as flood:
        raise NotPosted(f"{flood} {before_what}") from flood
    except trio.BrokenResourceError as broken:
        raise NotPosted(f"the receiver broke the connection off {before_what}") from broken
