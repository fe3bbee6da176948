"""The stream beneath TLS: how many bytes a receiver may send for one answer."""

import pytest
import trio
from trio.testing import MemoryReceiveStream, MemorySendStream

from appliance.webhook.connect import RECEIVED_LIMIT, LimitedStream


async def test_bytes_of_one_answer_are_limited() -> None:
    """A stream gives up at its limit, and has it anew for the next answer."""
    receiver = MemoryReceiveStream()
    transport = LimitedStream(trio.StapledStream(MemorySendStream(), receiver))
    receiver.put_data(bytes(RECEIVED_LIMIT))
    assert len(await transport.receive_some()) == RECEIVED_LIMIT
    receiver.put_data(b"more")
    with pytest.raises(trio.BrokenResourceError, match="over 128 KiB"):
        await transport.receive_some()
    transport.left = RECEIVED_LIMIT
    assert await transport.receive_some() == b"more"
