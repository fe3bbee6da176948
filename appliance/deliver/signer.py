"""In charge of signing what goes out: the right keys for a message, each signature made once, off the event loop."""

from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial

import trio

from appliance.deliver.desk import Desk
from appliance.joint import Joint
from appliance.log import get_logger
from appliance.message.dkim import SigningKey, sign
from appliance.outside import Outside
from appliance.signing_keys import SigningKeys

KEYS_KEPT = 1_000  # domains whose unsealed keys are held in memory
KEYS_FRESH = 1_000_000  # microseconds until a rotation from the shell is noticed
SIGNATURES_KEPT = 1_000  # of messages that go to several destinations one after the other

log = get_logger("deliver")


@dataclass(slots=True)
class Signer:
    """Signs messages with the keys of their From domain."""

    keys: SigningKeys
    outside: Outside
    # An RSA signature takes a core for three milliseconds: as many at once as there are cores, and none waits for I/O.
    _desk: Desk[bytes] = field(default_factory=Desk)
    _making: trio.Lock = field(default_factory=trio.Lock)
    _known: OrderedDict[tuple[str, str], tuple[list[SigningKey], int]] = field(default_factory=OrderedDict)
    _made: OrderedDict[str, bytes] = field(default_factory=OrderedDict)
    _signing: Joint[str, bytes] = field(default_factory=Joint)  # by message, whose destinations may all come at once

    async def signature(self, message_id: str, account_id: str, domain: str, mime: bytes) -> bytes:
        """The DKIM-Signature fields of a message, to be written in front of it."""
        if (made := self._made.get(message_id)) is not None:
            return made
        return await self._signing.run(message_id, partial(self._sign, message_id, account_id, domain, mime))

    async def _sign(self, message_id: str, account_id: str, domain: str, mime: bytes) -> bytes:
        keys = await self._keys(account_id, domain)
        now = self.outside.now() // 1_000_000
        signature = await self._desk.run(partial(sign, mime, keys, now_seconds=now))
        self._made[message_id] = signature
        while len(self._made) > SIGNATURES_KEPT:
            self._made.popitem(last=False)
        return signature

    async def _keys(self, account_id: str, domain: str) -> list[SigningKey]:
        if (keys := self._fresh(account_id, domain)) is not None:
            return keys
        async with self._making:  # a domain's first keys are made once, though a hundred messages may want them
            if (keys := self._fresh(account_id, domain)) is not None:
                return keys
            keys = await self.keys.in_use(account_id, domain)
        self._known[account_id, domain] = (keys, self.outside.now())
        while len(self._known) > KEYS_KEPT:
            self._known.popitem(last=False)
        return keys

    def _fresh(self, account_id: str, domain: str) -> list[SigningKey] | None:
        known = self._known.get((account_id, domain))
        return known[0] if known is not None and 0 <= self.outside.now() - known[1] < KEYS_FRESH else None
