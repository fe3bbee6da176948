"""Debian's Exim as a mail server that takes mail, and finds out later that there is no such user.

Its package conflicts with Postfix, so it is unpacked and not installed (packaging/install-test-programs). It runs from
a directory of its own, as root until it gives up its rights, and in a mount namespace whose /etc/passwd has the user
that the program was built for.
"""

import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio

from tests.e2e.delivery.postfix import listens
from tests.programs import find

EXIM = find("exim")
Back = tuple[str, str, int]  # the domain of senders, and the server that takes mail for it
USER = "Debian-exim"
STOP_TIMEOUT = 20.0  # seconds

CONFIG = """
exim_user = mail
exim_group = mail
exim_path = {program}
deliver_drop_privilege = true
spool_directory = {directory}/spool
log_file_path = {directory}/log/%slog
pid_file_path = {directory}/pid
local_interfaces = {address}
daemon_smtp_ports = {port}
primary_hostname = receiver.example.net
tls_advertise_hosts =
keep_environment =
acl_smtp_rcpt = accept
begin routers
back:
  driver = manualroute
  domains = {back_name}
  transport = out
  route_list = * {back_host}::{back_port} byname
  self = send
refuse:
  driver = redirect
  data = :fail: 550 5.1.1 User unknown
  allow_fail
begin transports
out:
  driver = smtp
  {tls} = *
"""
RUN = 'mount --bind "$0/passwd" /etc/passwd && mount --bind "$0/group" /etc/group && exec "$1" -C "$0/config" -bdf'


def _start(directory: Path, address: str, port: int, bounces: Back, secure: bool) -> subprocess.Popen[bytes]:
    directory.chmod(0o755)
    for part in ("spool", "log"):
        (directory / part).mkdir()
        shutil.chown(directory / part, "mail", "mail")
    back_name, back_host, back_port = bounces
    settings = CONFIG.format(
        program=EXIM,
        directory=directory,
        address=address,
        port=port,
        back_name=back_name,
        back_host=back_host,
        back_port=back_port,
        tls="hosts_require_tls" if secure else "hosts_avoid_tls",
    )
    (directory / "config").write_text(settings)
    for file, line in (("passwd", f"{USER}:x:8:8::/nonexistent:/usr/sbin/nologin"), ("group", f"{USER}:x:8:")):
        (directory / file).write_text(f"{Path('/etc', file).read_text()}{line}\n")
    words = ["unshare", "--mount", "sh", "-c", RUN, str(directory), str(EXIM)]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@asynccontextmanager
async def exim(address: str, port: int, bounces: Back, *, secure: bool = True) -> AsyncIterator[None]:
    """An Exim that takes all mail there and knows no user; what it took it sends back to that server."""
    async with mail_server(partial(_start, address=address, port=port, bounces=bounces, secure=secure), address, port):
        yield


@asynccontextmanager
async def mail_server(start: Callable[[Path], subprocess.Popen[bytes]], address: str, port: int) -> AsyncIterator[None]:
    """A mail server with a directory of its own, which listens there."""
    with tempfile.TemporaryDirectory(prefix="mail-server-") as name:
        process = await trio.to_thread.run_sync(start, Path(name))
        try:
            await listens(address, port)
            yield
        finally:
            process.terminate()
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(partial(process.wait, STOP_TIMEOUT))
