"""The bytes of messages on their way out: signed, dot-stuffed, and re-encoded for servers without 8BITMIME or SMTPUTF8.

A message in several sessions at once has one copy in memory.
"""

from dataclasses import dataclass, field
from functools import partial
from weakref import WeakValueDictionary

import trio

from appliance.concurrency.ttl_cache import SingleFlight
from appliance.deliver.preparing import Ready
from appliance.deliver.smtp.sending import MailTransaction, Payload, prepare
from appliance.environment import Environment
from appliance.message.dkim import sign
from appliance.message.seven_bit import CannotEncode, seven_bit
from appliance.store import Store

THREAD_BYTES = 256 * 1024  # size from which a payload is made on a thread


@dataclass(frozen=True, slots=True)
class Payloads:
    store: Store
    env: Environment
    _limiter: trio.CapacityLimiter = field(default_factory=partial(trio.CapacityLimiter, 1))
    _shared: WeakValueDictionary[str, Payload] = field(default_factory=WeakValueDictionary)  # by message
    _making: SingleFlight[str, Payload] = field(default_factory=SingleFlight)

    async def of(self, ready: Ready) -> Payload:
        """The payload of a message; one copy for all its recipients."""
        envelope = ready.routed.envelope
        if envelope.recipients[0].recipient_count == 1:
            return await self._make(ready)
        if (payload := self._shared.get(envelope.message_id)) is None:
            payload = await self._making.run(envelope.message_id, partial(self._make, ready))
            self._shared[envelope.message_id] = payload
        return payload

    async def seven_bit(self, ready: Ready, transaction: MailTransaction) -> MailTransaction:
        """The transaction with its message re-encoded in seven bits and signed again.

        Nearly every server accepts the message as it is, so the encoding happens only once a server does not.
        """
        mime, keys, now = await self._mime(ready), ready.routed.keys, self.env.now() // 1_000_000

        def encode() -> Payload:
            encoded = seven_bit(mime)
            return prepare(sign(encoded, keys, now_seconds=now) + encoded)

        try:
            payload = await trio.to_thread.run_sync(encode, limiter=self._limiter)
        except CannotEncode as cannot:
            return transaction._replace(unencodable=str(cannot))
        return transaction._replace(payload=payload, needs_smtputf8=False)

    async def _make(self, ready: Ready) -> Payload:
        signature, mime = ready.signature, await self._mime(ready)
        if len(mime) < THREAD_BYTES:
            return prepare(signature + mime)
        return await trio.to_thread.run_sync(lambda: prepare(signature + mime), limiter=self._limiter)

    async def _mime(self, ready: Ready) -> bytes:
        messages, message_id = self.store.messages, ready.routed.envelope.message_id
        return ready.routed.mime or (await messages.to_send(message_id)).mime or await messages.content(message_id)
