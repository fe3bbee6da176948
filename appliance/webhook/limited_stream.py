"""In charge of the plain bytes beneath TLS: how many a receiver may send for one answer, and whether it has hung up.

What is read of an answer is counted above, after decryption. This counts what nobody sees there, such as an endless row
of session tickets, which would keep the process busy for as long as an attempt may last.
"""

import trio

from appliance.net.socket_stream import FastSocketStream, faster

RECEIVED_LIMIT = 128 * 1024  # bytes for one answer or handshake; OpenSSL takes certificates of 100 KiB at most


class Flooded(trio.BrokenResourceError):
    """The receiver sent more than anybody needs to."""


class Transport(trio.abc.Stream):
    """A dialled stream with an allowance of bytes to receive."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = faster(stream)
        self._left = RECEIVED_LIMIT

    def begin(self) -> None:
        """Allow for one more answer."""
        self._left = RECEIVED_LIMIT

    @property
    def silent(self) -> bool:
        """Whether nothing has come, not even the end, since the last answer; True where that cannot be told."""
        return not isinstance(self._stream, FastSocketStream) or not self._stream.has_come()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """As the stream does, until the allowance is used up."""
        if self._left <= 0:
            raise Flooded(f"the receiver sent over {RECEIVED_LIMIT // 1024} KiB")
        data = await self._stream.receive_some(max_bytes)
        self._left -= len(data)
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """As the stream does."""
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """As the stream does."""
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()
