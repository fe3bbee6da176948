"""The world around a machine of the tests' own: a DNS server on port 53 and a mail server on port 25.

Run as `python -m tests.packaging.outside_world DIRECTORY DNS_ADDRESS MX_ADDRESS` in the machine's network. The zone is
read from `zone.json` in the directory whenever that changes; each message that is accepted is written beside it, as
`1.eml` and so on, after all that was said to the mail server, in `commands`.
"""

import json
import sys
from pathlib import Path

import trio

from tests.fakes.dns import DnsServer
from tests.fakes.mx import FakeMx

LOOK_EVERY = 0.1  # seconds


async def main(directory: Path, dns_address: str, mx_address: str) -> None:
    dns, mx = DnsServer({}, ttl=0, negative_ttl=0), FakeMx()

    async def follow_zone() -> None:
        while True:
            dns.zone = json.loads((directory / "zone.json").read_text())
            written = {"commands": "\n".join(mx.commands).encode()}
            written |= {f"{number}.eml": message.data for number, message in enumerate(mx.messages, 1)}
            for name, data in written.items():
                (directory / "unfinished").write_bytes(data)
                (directory / "unfinished").rename(directory / name)
            await trio.sleep(LOOK_EVERY)

    async with trio.open_nursery() as nursery:
        await nursery.start(dns.run, dns_address, 53)
        listeners = await trio.open_tcp_listeners(25, host=mx_address)
        nursery.start_soon(trio.serve_listeners, mx.serve, listeners)
        nursery.start_soon(follow_zone)
        (directory / "ready").touch()


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), sys.argv[2], sys.argv[3])
