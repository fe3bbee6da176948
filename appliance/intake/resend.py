"""Accepts a stored message as a new one, with its own id and Date."""

from collections.abc import Sequence
from functools import partial
from hashlib import sha256

from msgspec.structs import replace

from appliance.errors import Code, Refused
from appliance.intake.accept import Begun, MessageIntake, Submitted, check_domains
from appliance.message.submitted import SubmittedMessage, cost_of_submission, read, repeated
from appliance.model.accounts import Caller
from appliance.model.dashboard import MessageFacts
from appliance.model.mail import Source, StoredTemplate
from appliance.times import SECOND


async def resend(
    intake: MessageIntake,
    caller: Caller,
    repeats: str,
    facts: MessageFacts,
    recipients: Sequence[str],
    *,
    named: bool,
    key: str,
    request_id: str,
) -> Submitted:
    """Resend the message `repeats`. Unless `named`, a retry may come after more recipients failed."""
    intake.check_open(caller)
    request = "\0".join(("resend", repeats, *(sorted(recipients) if named else ())))
    message = intake.begin(caller, Source.API, request_id, key, sha256(request.encode()).digest())
    first = partial(_resend_new, intake, message, repeats, facts, recipients)
    return await intake.once(message, first, lambda earlier: Submitted(earlier.message_id, replayed=True))


async def _resend_new(
    intake: MessageIntake, message: Begun, repeats: str, facts: MessageFacts, recipients: Sequence[str]
) -> Submitted:
    account_id, template = message.caller.account_id, None
    if facts.template_alias is not None:
        template = StoredTemplate(facts.template_alias, facts.template_version or 0, None, None, None, 0, 0)
    async with intake.turn(account_id, facts.size):
        stored = await intake.store.mail_log.mime(account_id, repeats)
        if stored is None:
            raise Refused(Code.NOT_FOUND, "The body of this message is no longer stored. Send a new message.")
        estimate = cost_of_submission(stored, recipients)
        resent = await intake.workers.run(
            account_id, estimate, _repeat, stored, repeats, message, facts.envelope_from, recipients
        )
        check_domains(message.caller, resent)
        resent = replace(resent, tags=facts.tags, metadata=facts.metadata, stream=facts.stream)
        new = intake.new_message(message, resent, resent.envelope_from, resent.data, template=template)
        await intake.accept(message.caller, new, resent, template)
    return Submitted(message.id)


def _repeat(
    stored: bytes, repeats: str, message: Begun, envelope_from: str, recipients: Sequence[str]
) -> SubmittedMessage:
    """Runs on a worker thread when expensive."""
    domain = envelope_from.rpartition("@")[2]
    data = repeated(stored, repeats, message.id, domain, message.created_at // SECOND)
    return read(envelope_from, recipients, data)
