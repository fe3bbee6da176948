"""Signs messages with DKIM in threads, with the keys of their From domain; each message is signed once."""

import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import trio

from appliance.concurrency.ttl_cache import TtlCache
from appliance.keys.dkim_keys import SigningKeys
from appliance.message.dkim import SigningKey, sign
from appliance.outside import Outside

KEYS_KEPT = 1_000  # domains whose unsealed keys are held in memory
KEYS_FRESH = 1_000_000  # microseconds until a rotation from the shell is noticed
SIGNATURES_KEPT = 1_000  # of messages that go to several domains one after the other


class Unsigned(NamedTuple):
    message_id: str
    mime: bytes
    keys: list[SigningKey]


@dataclass(slots=True)
class Signer:
    """Signs messages with the keys of their From domain, several per thread hop: a hop costs as much as one."""

    keys: SigningKeys
    outside: Outside
    # An RSA signature takes a core for milliseconds: as many at once as there are cores, and none waits for I/O.
    threads: int = field(default_factory=lambda: os.cpu_count() or 1)
    _limiter: trio.CapacityLimiter = field(init=False)
    _making: trio.Lock = field(default_factory=trio.Lock)
    _known: TtlCache[tuple[str, str], list[SigningKey]] = field(init=False)
    _made: OrderedDict[str, bytes] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self._limiter = trio.CapacityLimiter(self.threads)
        self._known = TtlCache(KEYS_KEPT, KEYS_FRESH, self.outside.now)

    def made(self, message_id: str) -> bytes | None:
        """The DKIM-Signature fields of a message that was signed not long ago."""
        return self._made.get(message_id)

    async def sign(self, messages: Sequence[Unsigned]) -> list[bytes | Exception]:
        """The DKIM-Signature fields of each message, to be written in front of it, or why there are none."""
        now = self.outside.now() // 1_000_000
        results = await trio.to_thread.run_sync(_sign_all, messages, now, limiter=self._limiter)
        for message, result in zip(messages, results, strict=True):
            if isinstance(result, bytes):
                self._made[message.message_id] = result
        while len(self._made) > SIGNATURES_KEPT:
            self._made.popitem(last=False)
        return results

    def known_keys(self, account_id: str, domain: str) -> list[SigningKey] | None:
        """The keys of a domain, if they were read a moment ago."""
        return self._known.get((account_id, domain))

    async def find_keys(self, account_id: str, domain: str) -> list[SigningKey]:
        """The keys of a domain; one that has none yet gets new ones, which takes a while."""
        if (keys := self.known_keys(account_id, domain)) is not None:
            return keys
        async with self._making:  # a domain's first keys are made once, though a hundred messages may want them
            if (keys := self.known_keys(account_id, domain)) is not None:
                return keys
            keys = await self.keys.in_use(account_id, domain)
        self._known.put((account_id, domain), keys)
        return keys


def _sign_all(messages: Sequence[Unsigned], now_seconds: int) -> list[bytes | Exception]:
    results: list[bytes | Exception] = []
    for message in messages:
        try:
            results.append(sign(message.mime, message.keys, now_seconds=now_seconds))
        except Exception as error:
            results.append(error)
    return results
