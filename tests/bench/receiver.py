"""An HTTPS receiver in a process of its own, as quick as can be: it answers every POST with 200, and counts them.

python -m tests.bench.receiver CERTIFICATE.pem        # prints its port, then how many posts there were, and when
"""

import asyncio
import re
import ssl
import sys
import time

ADDRESS = "127.0.0.2"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
TELL_EVERY = 0.02  # seconds

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class Counter(asyncio.Protocol):
    """One connection; all of them count together."""

    count = 0
    at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.data = transport, b""

    def data_received(self, data: bytes) -> None:
        self.data += data
        while (end := self.data.find(b"\r\n\r\n")) >= 0:
            found = _LENGTH.search(self.data, 0, end)
            whole = end + 4 + (int(found[1]) if found else 0)
            if len(self.data) < whole:
                return
            self.data = self.data[whole:]
            self.transport.write(OK)
            Counter.count, Counter.at = Counter.count + 1, time.perf_counter()


async def serve(certificate: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = await asyncio.get_running_loop().create_server(Counter, ADDRESS, 0, ssl=context)
    print(server.sockets[0].getsockname()[1], flush=True)
    told = 0
    while True:
        await asyncio.sleep(TELL_EVERY)
        if Counter.count != told:
            told = Counter.count
            print(told, Counter.at, flush=True)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
