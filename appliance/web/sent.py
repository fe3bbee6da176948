"""One sent message for the programs that send: /emails/{id} is read, rescheduled and cancelled.

A credential that may only send may change messages that it sent itself. All others see the messages they may read, and
every other message is not found. The database decides between a change and the due time (`store/scheduled.py`).
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
from msgspec import Struct

from appliance.errors import Code, Refused
from appliance.intake.limits import RequestRate
from appliance.message.schedule import due_time
from appliance.message.schema import ScheduledAt
from appliance.model.accounts import Caller, CredentialKind
from appliance.model.mail import Message, Source
from appliance.store import Store
from appliance.web.api.message_objects import MessageObject, message_json
from appliance.web.app import ApiServices, actor_of
from appliance.web.auth import check_may_send, sees
from appliance.web.exchange import (
    Answer,
    BodyBudgets,
    Exchange,
    RequestBody,
    check_content_type,
    check_encoding,
    declared_length,
    decode_body,
    json_answer,
)
from appliance.web.operations import ALWAYS, MESSAGE_ID, SEND, Operation

RESCHEDULE_BODY = 4 * 1024  # bytes; a new time needs fewer than a hundred
_SUCCESS = (200, MessageObject, "The message.")
_REFUSALS = (Code.UNAUTHORIZED, Code.FORBIDDEN, Code.NOT_FOUND, Code.CONFLICT, Code.RATE_LIMITED, *ALWAYS)


class RescheduleRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The new time of a scheduled message."""

    scheduled_at: ScheduledAt


class SentMessages(Struct):
    services: ApiServices
    rate: RequestRate
    budgets: BodyBudgets

    @Operation(
        "GET /emails/{id}",
        _SUCCESS,
        (Code.UNAUTHORIZED, Code.NOT_FOUND),
        security=SEND,
        parameters=(MESSAGE_ID,),
    )
    async def get_email(self, exchange: Exchange, address: str, message_id: str) -> Answer:
        """Read a message and the status of each recipient.

        `status` is `queued` until every recipient is final, then `delivered`, `failed`, or `partial` for a mix. A
        message of another account is not found. An API key needs the scope `full`, `read` or `manage`.
        """
        try:
            caller = await self.services.auth.caller(exchange.headers.get(b"authorization"), address)
        except Refused as refused:
            if refused.code is not Code.FORBIDDEN:
                raise
            raise Refused(Code.UNAUTHORIZED, refused.text) from refused  # the interface has no 403 for a read
        exchange.peer.authenticated = True
        if not caller.may_read:
            raise Refused(Code.UNAUTHORIZED, "this key may only send")
        return await self._answer(exchange, caller, message_id)

    @Operation(
        "PATCH /emails/{id}",
        _SUCCESS,
        (Code.INVALID_REQUEST, Code.PAYLOAD_TOO_LARGE, *_REFUSALS),
        RescheduleRequest,
        SEND,
        (MESSAGE_ID,),
    )
    async def reschedule_email(self, exchange: Exchange, address: str, message_id: str) -> Answer:
        """Move a scheduled message to another time.

        A message that is due, or was never scheduled, is a `conflict`. An API key with the scope `send` may move the
        messages that it sent itself.
        """
        caller = await self._sender(exchange, address)
        self.rate.take(caller.idempotency_scope)
        length = declared_length(exchange.headers, RESCHEDULE_BODY)
        check_content_type(exchange.headers.get(b"content-type", b""))
        check_encoding(exchange.headers.get(b"content-encoding"))
        memory = self.budgets.of_account(caller.account_id)
        async with RequestBody(exchange.receive, length, RESCHEDULE_BODY, memory) as body:
            request = decode_body(bytes(body), RescheduleRequest)
        caller = await self._sender(exchange, address)  # the key may have been revoked while the body came
        due_at = due_time(request.scheduled_at, self.services.env.now())
        async with self._change(exchange, address, caller, message_id, "email.rescheduled"):
            await self.services.store.scheduled.move(caller.account_id, message_id, due_at)
        return await self._answer(exchange, caller, message_id)

    @Operation("POST /emails/{id}/cancel", _SUCCESS, _REFUSALS, security=SEND, parameters=(MESSAGE_ID,))
    async def cancel_email_delivery(self, exchange: Exchange, address: str, message_id: str) -> Answer:
        """Cancel all recipients of a message that are scheduled, queued or deferred.

        They fail, their credits are returned and their events are posted. A `conflict` means that nothing is left to
        cancel. An API key with the scope `send` may cancel the messages that it sent itself.
        """
        caller = await self._sender(exchange, address)
        self.rate.take(caller.idempotency_scope)
        async with self._change(exchange, address, caller, message_id, "email.cancelled"):
            await self.services.store.queue_control.cancel(message_id, "by its sender", caller.account_id)
        return await self._answer(exchange, caller, message_id)

    async def _sender(self, exchange: Exchange, address: str) -> Caller:
        caller = await self.services.auth.caller(exchange.headers.get(b"authorization"), address)
        exchange.peer.authenticated = True
        check_may_send(caller)
        return caller

    @asynccontextmanager
    async def _change(
        self, exchange: Exchange, address: str, caller: Caller, message_id: str, action: str
    ) -> AsyncIterator[None]:
        """Let a caller change a message that it may change.

        Changes by people and `manage` keys are audited. To programs that send they are a part of sending, and a stolen
        key that may only send could fill the audit log with them.
        """
        await check_may_change(self.services.store, caller, message_id)
        auth, principal = self.services.auth, caller.key
        async with AsyncExitStack() as noted:
            if caller.kind is not CredentialKind.SMTP and (principal is None or principal.permissions):
                user = principal or (await auth.user(exchange.headers.get(b"authorization"), address))[0]
                actor = actor_of(user)
                accounts = [caller.account_id]
                await noted.enter_async_context(auth.store.audit.noting(actor, action, address, accounts, message_id))
            yield

    async def _answer(self, exchange: Exchange, caller: Caller, message_id: str) -> Answer:
        body = message_json(await visible_message(self.services.store, caller, message_id), exchange.request_id)
        return 200, json_answer(body, exchange.request_id), body


async def visible_message(store: Store, caller: Caller, message_id: str) -> Message:
    """Read a message that this caller may see. A key covers its domain; a test key covers only simulated mail."""
    message = await store.messages.read(caller.account_id, message_id)
    if message is None or not sees(caller.key, message):
        raise _unknown()
    if caller.key is not None and caller.key.test:
        facts = await store.mail_log.facts(caller.account_id, message.id)
        if message.source is not Source.TEST or facts is None or not facts.simulated:
            raise _unknown()
    return message


async def check_may_change(store: Store, caller: Caller, message_id: str) -> None:
    message = await visible_message(store, caller, message_id)
    if not caller.may_read and (caller.credential is None or caller.credential != message.credential):
        raise _unknown()


def _unknown() -> Refused:
    return Refused(Code.NOT_FOUND, "No message has this id.")
