"""Writes delivery status notifications to SMTP clients that asked for them (RFC 3461), as a step of the transaction
that records what they tell of: neither is on disk without the other.

A report is an ordinary message of the account with an empty envelope sender, which no caller can give. That is its
mark: it costs no credit, its results make no events, it is not counted, and nothing is reported of it.

It goes to the envelope sender of the message and nowhere else, and only while that address is at a domain which the
account may send from, the account is not suspended, and the address is not on the account's suppression list. So a
report never reaches a stranger.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec

from appliance.environment import Environment, identifier_time
from appliance.errors import Refused
from appliance.message.addresses import parse
from appliance.message.system_mail import SUBJECTS, OriginalMessage, ReportedRecipient, delivery_report, reporter
from appliance.model.mail import DsnCondition, DsnRequest, NewMessage, NewRecipient, Source
from appliance.store.body_parts import insert, of_message
from appliance.store.engine import Tx, first
from appliance.store.suppressions import suppressed
from appliance.telemetry.log import get_logger

RETURNED_BYTES = 32 * 1024  # of a message; of a longer one only the header is returned

_MAY_GET = """SELECT 1 FROM domains d JOIN accounts a ON a.id = d.account_id
    WHERE d.account_id = :account_id AND d.name = :domain AND d.usable = 1 AND a.suspended = 0"""
_ORIGINAL = f"""SELECT substr(mime, 1, {RETURNED_BYTES}), length(mime) + parts_size FROM message_bodies
    WHERE message_id = :message_id"""

_requests = msgspec.json.Decoder(DsnRequest)

log = get_logger("store")


class Reportable(NamedTuple):
    """What a report to the sender may say about one recipient; `dsn` is the sender's request, as it is stored."""

    message_id: str
    account_id: str
    envelope_from: str
    simulated: bool
    condition: DsnCondition
    at: int
    address: str
    dsn: str
    code: int | None
    response: str
    remote_host: str | None = None
    attempted_at: int | None = None
    expired: bool = False

    @property
    def group(self) -> tuple[str, DsnCondition]:
        return self.message_id, self.condition


def write_reports(tx: Tx, env: Environment, results: Sequence[Reportable]) -> Counter[str]:
    """Write the requested reports, one for all recipients of a message that meet one condition.

    Returned is by account how many bytes more it keeps, which the caller has to count.
    """
    stored: Counter[str] = Counter()
    for _, together in groupby(sorted(results, key=lambda item: item.group), lambda item: item.group):
        items = list(together)
        try:
            pairs = [(item, _requests.decode(item.dsn)) for item in items]
            asked = [(item, request) for item, request in pairs if item.condition in request.notify]
            new = _report(tx, env, asked) if asked else None
        except (Refused, msgspec.DecodeError) as error:  # the result itself must be recorded all the same
            log.warning("delivery report not written", message_id=items[0].message_id, reason=str(error))
            continue
        if new is not None:
            insert(tx, [(new, 0)])
            stored[new.account_id] += of_message(new)
    return stored


def _report(tx: Tx, env: Environment, asked: Sequence[tuple[Reportable, DsnRequest]]) -> NewMessage | None:
    result = asked[0][0]
    sender = parse(result.envelope_from, "MAIL FROM")
    if first(tx, _MAY_GET, {"account_id": result.account_id, "domain": sender.domain}) is None:
        return None
    if suppressed(tx, [(result.account_id, sender.key)]):
        return None
    beginning, size = first(tx, _ORIGINAL, {"message_id": result.message_id}) or (b"", 0)
    message_id = env.identifier("msg")
    mime = delivery_report(
        message_id,
        sender,
        result.condition,
        [_reported(item, request) for item, request in asked],
        OriginalMessage(bytes(beginning), whole=size <= RETURNED_BYTES),
        accepted_at=identifier_time(result.message_id),
        now=result.at,
    )
    return NewMessage(
        id=message_id,
        account_id=result.account_id,
        request_id=env.identifier("req"),
        source=Source.SMTP,
        simulated=result.simulated,
        sender=reporter(sender).text,
        envelope_from="",
        subject=SUBJECTS[result.condition],
        tags=(),
        template_alias=None,
        template_version=None,
        mime=mime,
        receipt=None,
        recipients=(NewRecipient(env.identifier("rcp"), sender.spelling, sender.key, sender.domain),),
        credits=0,
        created_at=result.at,
        idempotency=None,
    )


def _reported(result: Reportable, request: DsnRequest) -> ReportedRecipient:
    return ReportedRecipient(
        result.address,
        request,
        result.code,
        result.response,
        result.remote_host,
        result.attempted_at,
        result.expired,
    )
