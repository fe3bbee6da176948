"""The stream that an open dashboard page reads: one line per second shows that the server is up, at a hundredth of the
bytes of a request per second. A non-empty line means that this process accepted mail of the account.

A stream holds only its connection. Streams are limited in total, per account and per network; a page without a stream
polls instead. A stream ends when its client disconnects, its login or API key is revoked, after STREAM_SECONDS, and
when the process stops.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

import trio
from msgspec import Struct, field

from appliance.errors import Code, Refused, StorageUnavailable
from appliance.store import translated
from appliance.web.exchange import Peer

LIVE_PATH = "/dashboard/live"
BEAT_SECONDS = 1.0
STREAM_SECONDS = 300.0
RECHECK_SECONDS = 10.0  # the next beat sees a logout in this process; this limit is for other nodes
STREAMS_PART = 4  # a quarter of all connections may be streams
STREAMS_PER_ACCOUNT = STREAMS_PER_NETWORK = 50

_BEAT, _MAIL = b"\n", b":\n"  # an empty line and an empty comment, both ignored in an event stream


class LiveStreams(Struct):
    accepted: Mapping[str, int]  # messages by account
    stopping: trio.Event
    by_account: Counter[str] = field(default_factory=Counter)
    by_network: Counter[str] = field(default_factory=Counter)

    async def serve(
        self,
        account_id: str,
        network: str,
        peer: Peer,
        most: int,
        write: Callable[[bytes, bool], Awaitable[None]],
        is_valid: Callable[[], Awaitable[bool]],
        changes: Callable[[], int],
    ) -> None:
        """Write until the stream ends. `write` gets the bytes to send, and whether more follow.

        `is_valid` reads the store. It is called when `changes` (of logins and keys in this process) grows, and every
        RECHECK_SECONDS.
        """
        if (
            self.by_account.total() >= most
            or self.by_account[account_id] >= STREAMS_PER_ACCOUNT
            or self.by_network[network] >= STREAMS_PER_NETWORK
        ):
            text = "Too many dashboard pages are open. Close some, or retry in a minute."
            raise Refused(Code.SERVICE_UNAVAILABLE, text, retry_after=60)
        counted = ((self.by_account, account_id), (self.by_network, network))
        for counter, name in counted:
            counter[name] += 1
        try:
            ends, seen = trio.current_time() + STREAM_SECONDS, self.accepted.get(account_id, 0)
            checked_at, checked_changes = trio.current_time(), changes()
            while not (self.stopping.is_set() or peer.gone) and trio.current_time() < ends:
                if changes() != checked_changes or trio.current_time() >= checked_at + RECHECK_SECONDS:
                    checked_at, checked_changes = trio.current_time(), changes()
                    if not await _is_known_valid(is_valid):
                        break
                before, seen = seen, self.accepted.get(account_id, 0)
                await write(_BEAT if seen == before else _MAIL, True)
                with trio.move_on_after(BEAT_SECONDS):
                    await self.stopping.wait()
            await write(b"", False)
        finally:
            for counter, name in counted:
                counter[name] -= 1
                if not counter[name]:
                    del counter[name]


async def _is_known_valid(is_valid: Callable[[], Awaitable[bool]]) -> bool:
    """False also during a storage outage: the response has started, so an error can no longer be sent."""
    try:
        return await is_valid()
    except Exception as error:
        if isinstance(translated(error), StorageUnavailable):
            return False
        raise
