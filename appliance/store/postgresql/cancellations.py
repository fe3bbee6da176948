"""Cancellations across nodes: the owner of mail is asked, by a row, and answers in that row.

The answer is committed with what it tells of, so that it is true whenever it is there; and a request that was withdrawn
before that cancels nothing.
"""

import psycopg

from appliance.errors import Code, Refused
from appliance.store.engine import CancelAnswer, CancelRequest, Row, Tx, changed
from appliance.store.postgresql.connection import run

_OWNERS = """SELECT DISTINCT r.owner FROM recipients r JOIN nodes n ON n.owner = r.owner AND n.adopted_by IS NULL
    WHERE r.message_id = %s AND r.next_attempt_at IS NOT NULL AND r.owner <> current_setting('appliance.owner')
    ORDER BY 1"""
_ASK = """INSERT INTO cancellations (id, owner, message_id, account_id, reason, asked_at)
    VALUES (%s, %s, %s, %s, %s, %s)"""
_ASKED = """SELECT id, message_id, account_id, reason FROM cancellations
    WHERE owner = current_setting('appliance.owner') AND cancelled IS NULL ORDER BY asked_at LIMIT 100"""
_ANSWER = """UPDATE cancellations SET cancelled = :cancelled, refusal = :refusal
    WHERE id = :id AND cancelled IS NULL"""
_ANSWERED = "SELECT count(*) FROM cancellations WHERE id = ANY(%s) AND cancelled IS NOT NULL"
_WITHDRAW = "DELETE FROM cancellations WHERE id = ANY(%s) RETURNING cancelled, refusal"


def owners(connection: psycopg.Connection[Row], message_id: str) -> list[str]:
    """The other nodes that deliver something of a message."""
    return [owner for (owner,) in run(connection, _OWNERS, (message_id,))]


def ask(connection: psycopg.Connection[Row], owner: str, request: CancelRequest, now: int) -> None:
    run(connection, _ASK, (request.id, owner, request.message_id, request.account_id, request.reason, now))


def answered(connection: psycopg.Connection[Row], ids: list[str]) -> int:
    """Count the replies so far."""
    ((count,),) = run(connection, _ANSWERED, (ids,))
    return int(count)


def withdraw(connection: psycopg.Connection[Row], ids: list[str]) -> list[CancelAnswer]:
    """Withdraw the requests; return the replies that arrived, including one that is being committed."""
    return [CancelAnswer(*row) for row in run(connection, _WITHDRAW, (ids,)) if row[0] is not None]


def asked(connection: psycopg.Connection[Row]) -> list[CancelRequest]:
    """What this node is asked for."""
    return [CancelRequest(*row) for row in run(connection, _ASKED)]


def answer(request_id: str, tx: Tx, reply: CancelAnswer) -> None:
    """Answer, in the transaction that cancels. Raises Refused if the request was withdrawn."""
    if not changed(tx, _ANSWER, {"cancelled": reply.cancelled, "refusal": reply.refusal, "id": request_id}):
        raise Refused(Code.NOT_FOUND, "the request to cancel was withdrawn")
