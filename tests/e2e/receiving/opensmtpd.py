"""Debian's OpenSMTPD as a server that passes mail on.

Its package conflicts with Postfix, so it is unpacked and not installed (packaging/install-test-programs). It runs in a
mount namespace with its users, and with empty directories in place of its spool.
"""

import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from tests.e2e.feedback.exim import mail_server
from tests.programs import find

OPENSMTPD = find("opensmtpd")

CONFIG = """
listen on {address} port {port} hostname relay.example.net
action "on" relay host "{scheme}://{to_address}:{to_port}" {options}
match from any for any action "on"
"""
RUN = """
for place in /var/spool /var/lib /run; do mount -t tmpfs none $place; done && mkdir -p /var/lib/opensmtpd/empty &&
for file in passwd group; do mount --bind "$0/$file" /etc/$file; done &&
mount --bind "$0/resolv.conf" "$2" && exec "$1" -d -f "$0/config"
"""


def _start(directory: Path, address: str, port: int, to: tuple[str, int], secure: bool) -> subprocess.Popen[bytes]:
    directory.chmod(0o755)
    scheme, options = ("smtp+tls", "tls no-verify") if secure else ("smtp+notls", "")
    settings = {"address": address, "port": port, "scheme": scheme, "options": options}
    (directory / "config").write_text(CONFIG.format(**settings, to_address=to[0], to_port=to[1]))
    resolver = Path("/etc/resolv.conf").resolve()  # before /run is another
    if resolver.is_relative_to("/run"):
        resolver = Path("/dev/null")
    (directory / "resolv.conf").write_text("nameserver 127.0.0.1\n")  # where nothing answers
    users = {"opensmtpd": 9990, "opensmtpq": 9991}
    for file, line in (
        ("passwd", "{0}:x:{1}:{1}::/var/lib/opensmtpd/empty:/usr/sbin/nologin\n"),
        ("group", "{0}:x:{1}:\n"),
    ):
        added = "".join(line.format(name, number) for name, number in users.items())
        (directory / file).write_text(Path("/etc", file).read_text() + added)
    words = ["unshare", "--mount", "sh", "-c", RUN, str(directory), str(OPENSMTPD), str(resolver)]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@asynccontextmanager
async def opensmtpd(address: str, port: int, to: tuple[str, int], *, secure: bool) -> AsyncIterator[None]:
    """An OpenSMTPD that passes all mail to a server, with STARTTLS or without."""
    async with mail_server(partial(_start, address=address, port=port, to=to, secure=secure), address, port):
        yield
