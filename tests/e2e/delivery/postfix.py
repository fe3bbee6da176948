"""Debian's Postfix as a mail server of this world: takes mail for one domain and keeps it in a Maildir.

It runs from a directory of its own; the system's Postfix and its queue are not touched. It needs root, because Postfix
does: it gives up its rights by itself.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio

from tests.programs import find

START_TIMEOUT = 30.0  # seconds
Relays = Mapping[str, tuple[str, int]]  # servers by the domains whose mail they take
POSTFIX = find("postfix")

# As Debian has it, but: no DNS, no local users, and one domain whose whole mail is one Maildir.
MAIN = """
compatibility_level = 3.6
config_directory = {directory}/config
queue_directory = {directory}/queue
data_directory = {directory}/data
inet_protocols = ipv4
myhostname = receiver.example.net
mydestination =
mynetworks = 127.0.0.0/8
smtpd_relay_restrictions = reject_unauth_destination
smtpd_peername_lookup = no
smtpd_tls_security_level = none
smtputf8_enable = yes
maillog_file_prefixes = {directory}
maillog_file = {directory}/log
virtual_mailbox_domains = {domain}
virtual_mailbox_base = {directory}
virtual_mailbox_maps = static:mail/
virtual_minimum_uid = 1
virtual_uid_maps = static:{uid}
virtual_gid_maps = static:{gid}
"""
# Passes mail on instead of keeping it, for each domain to the server that takes it.
RELAYING = """
virtual_mailbox_domains =
relay_domains = {domain}
transport_maps = inline:{{ {transports} }}
smtp_tls_security_level = {tls}
"""
# Tests that are passed only by talking to the end: then every RCPT is answered 450, and the next connection is taken.
SCREENING = """
postscreen_access_list =
postscreen_greet_wait = 1s
postscreen_pipelining_enable = yes
postscreen_non_smtp_command_enable = yes
postscreen_bare_newline_enable = yes
"""
DIRECT = "{address}:{port} inet n - n - - smtpd"
SCREENED = """{address}:{port} inet n - n - 1 postscreen
smtpd     pass  - - n - - smtpd
dnsblog   unix  - - n - 0 dnsblog
tlsproxy  unix  - - n - 0 tlsproxy"""
MASTER = """
pickup    unix  n - n 60    1 pickup
cleanup   unix  n - n -     0 cleanup
qmgr      unix  n - n 300   1 qmgr
tlsmgr    unix  - - n 1000? 1 tlsmgr
rewrite   unix  - - n -     - trivial-rewrite
bounce    unix  - - n -     0 bounce
defer     unix  - - n -     0 bounce
trace     unix  - - n -     0 bounce
verify    unix  - - n -     1 verify
flush     unix  n - n 1000? 0 flush
proxymap  unix  - - n -     - proxymap
smtp      unix  - - n -     - smtp
relay     unix  - - n -     - smtp
showq     unix  n - n -     - showq
error     unix  - - n -     - error
retry     unix  - - n -     - error
discard   unix  - - n -     - discard
virtual   unix  - n n -     - virtual
anvil     unix  - - n -     1 anvil
scache    unix  - - n -     1 scache
postlog   unix-dgram n - n - 1 postlogd
"""


class Mailbox:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def files(self) -> list[bytes]:
        """Every message as it lies there, with LF line ends and the fields that Postfix puts before it."""
        return [file.read_bytes() for file in (self._directory / "mail" / "new").glob("*")]

    def log(self) -> str:
        file = self._directory / "log"
        return file.read_text() if file.exists() else ""


def _prepare(
    directory: Path, domain: str, address: str, port: int, *, screening: bool, relays: Relays, tls: str
) -> None:
    directory.chmod(0o755)  # not readable only for root: Postfix reads its files as another user
    user = pwd.getpwnam("nobody")
    for name in ("config", "queue", "data", "mail"):
        (directory / name).mkdir()
    shutil.chown(directory / "data", "postfix")
    shutil.chown(directory / "mail", user.pw_uid, user.pw_gid)
    settings = MAIN.format(directory=directory, domain=domain, uid=user.pw_uid, gid=user.pw_gid)
    listener = SCREENED if screening else DIRECT
    if relays:
        transports = ", ".join(f"{{ {name} = smtp:[{host}]:{number} }}" for name, (host, number) in relays.items())
        settings += RELAYING.format(domain=domain, transports=transports, tls=tls)
    (directory / "config" / "main.cf").write_text(settings + (SCREENING if screening else ""))
    (directory / "config" / "master.cf").write_text(listener.format(address=address, port=port) + MASTER)


def _run(directory: Path, command: str) -> None:
    config = directory / "config"
    done = subprocess.run(
        [str(POSTFIX), "-c", str(config), command],
        env={**os.environ, "MAIL_CONFIG": str(config)},
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT,
    )
    assert done.returncode == 0, done.stderr


async def listens(address: str, port: int) -> None:
    with trio.fail_after(START_TIMEOUT):
        while True:
            try:
                stream = await trio.open_tcp_stream(address, port)
            except OSError:
                await trio.sleep(0.05)
            else:
                await trio.aclose_forcefully(stream)
                return


@asynccontextmanager
async def postfix(
    domain: str, address: str, port: int, *, screening: bool = False, relays: Relays | None = None, secure: bool = False
) -> AsyncIterator[Mailbox]:
    """A Postfix that takes mail for this domain there, meanwhile; `screening` puts postscreen before it.

    With `relays` it passes the mail of these domains on, with those of bounces, and keeps none; `secure`: with TLS.
    """
    with tempfile.TemporaryDirectory(prefix="receiving-postfix-") as name:
        directory = Path(name)
        tls = "encrypt" if secure else "none"
        _prepare(directory, domain, address, port, screening=screening, relays=relays or {}, tls=tls)
        await trio.to_thread.run_sync(partial(_run, directory, "start"))
        try:
            await listens(address, port)
            yield Mailbox(directory)
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(partial(_run, directory, "abort"))
