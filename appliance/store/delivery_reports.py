"""Writes delivery status notifications that SMTP clients asked for (RFC 3461), with the result that they tell of.

A report is a message of the account with an empty envelope sender: free of charge, without events, and not reported on.
It goes only to the envelope sender, while that address is at a domain that the account may send from, is not
suppressed, and the account is not suspended. So a report never reaches a stranger.
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple

import msgspec

from appliance.environment import Environment, identifier_time
from appliance.errors import Refused
from appliance.message.addresses import parse
from appliance.message.system_mail import SUBJECTS, OriginalMessage, ReportedRecipient, delivery_report, reporter
from appliance.model.mail import DsnCondition, DsnRequest
from appliance.store.body_parts import write_system_message
from appliance.store.engine import Tx, first
from appliance.store.suppressions import suppressed
from appliance.telemetry.log import get_logger

RETURNED_BYTES = 32 * 1024  # of a message; only the header of a longer one is returned

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
    """Write one report per message and condition; return the stored bytes by account, which the caller counts."""
    stored: Counter[str] = Counter()
    for _, together in groupby(sorted(results, key=lambda item: item.group), lambda item: item.group):
        items = list(together)
        try:
            pairs = [(item, _requests.decode(item.dsn)) for item in items]
            asked = [(item, request) for item, request in pairs if item.condition in request.notify]
            if asked:
                stored[items[0].account_id] += _report(tx, env, asked)
        except (Refused, msgspec.DecodeError) as error:  # the result must still be recorded
            log.warning("delivery report not written", message_id=items[0].message_id, reason=str(error))
    return stored


def _report(tx: Tx, env: Environment, asked: Sequence[tuple[Reportable, DsnRequest]]) -> int:
    result = asked[0][0]
    sender = parse(result.envelope_from, "MAIL FROM")
    may_get = first(tx, _MAY_GET, {"account_id": result.account_id, "domain": sender.domain})
    if may_get is None or suppressed(tx, [(result.account_id, sender.key)]):
        return 0
    beginning, size = first(tx, _ORIGINAL, {"message_id": result.message_id}) or (b"", 0)
    message_id = env.identifier("msg")
    recipients = []
    for item, request in asked:
        last = item.code, item.response, item.remote_host, item.attempted_at, item.expired
        recipients.append(ReportedRecipient(item.address, request, *last))
    original = OriginalMessage(bytes(beginning), whole=size <= RETURNED_BYTES)
    times = {"accepted_at": identifier_time(result.message_id), "now": result.at}
    mime = delivery_report(message_id, sender, result.condition, recipients, original, **times)
    write = partial(write_system_message, sender=reporter(sender).text, recipient=sender, simulated=result.simulated)
    return write(tx, env, result.account_id, message_id, subject=SUBJECTS[result.condition], mime=mime, now=result.at)
