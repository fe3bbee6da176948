"""Debian's Postfix and OpenDKIM on loopback ports, from a directory of their own: the peers of the delivery benchmark.

Needs root and `apt-get install postfix opendkim`; the system's own Postfix and its queue are not touched.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.e2e.delivery.postfix import DIRECT, MASTER
from tests.ports import free_port

NEEDED = ("postfix", "smtp-sink", "smtp-source", "opendkim")
START_TIMEOUT = 20.0  # seconds

# As Debian has it, but: one listener, no local delivery, everything to the sink over kept connections, as many sessions
# as the other side has from the start, and no pause between taking mail in and sending it on.
MAIN = """
compatibility_level = 3.6
config_directory = {config}
queue_directory = {queue}
data_directory = {data}
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
myhostname = peer.example.com
mydestination =
local_transport = error:no local delivery
mynetworks = 127.0.0.0/8
smtpd_relay_restrictions = permit_mynetworks, reject
relayhost = [127.0.0.1]:{sink_port}
smtp_tls_security_level = none
smtpd_tls_security_level = none
smtp_dns_support_level = disabled
smtp_host_lookup = native
smtp_connection_cache_destinations = [127.0.0.1]:{sink_port}
initial_destination_concurrency = {sessions}
default_destination_concurrency_limit = {sessions}
default_process_limit = 200
smtpd_client_connection_count_limit = 0
in_flow_delay = 0
{milter}
"""
MILTER = """
smtpd_milters = inet:127.0.0.1:{port}
milter_default_action = tempfail
milter_protocol = 6
"""
OPENDKIM = """
Socket inet:{port}@127.0.0.1
Mode s
Domain example.com
Selector bench
KeyFile {key}
Canonicalization relaxed/relaxed
OversignHeaders From
Syslog no
UserID root
RequireSafeKeys no
"""


def missing() -> list[str]:
    return [name for name in NEEDED if shutil.which(name) is None]


def wait_for(port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"nothing listens on port {port}")


@contextmanager
def opendkim(directory: Path) -> Iterator[int]:
    """OpenDKIM with a fresh RSA-2048 key, as a milter on the port given."""
    port, key, settings = free_port(), directory / "bench.private", directory / "opendkim.conf"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    settings.write_text(OPENDKIM.format(port=port, key=key))
    process = subprocess.Popen(["opendkim", "-f", "-x", str(settings)])
    try:
        wait_for(port)
        yield port
    finally:
        process.terminate()
        process.wait(10)


@contextmanager
def postfix(sink_port: int, *, sessions: int, signed: bool, further: str = "") -> Iterator[int]:
    """A Postfix that passes everything on to the sink; the port at which it takes mail. `further`: more settings."""
    with ExitStack() as stack:
        # Not readable only for root, for Postfix gives up its rights before it looks at its files.
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-postfix-")))
        directory.chmod(0o755)
        milter = MILTER.format(port=stack.enter_context(opendkim(directory))) if signed else ""
        config, queue, data = (directory / name for name in ("config", "queue", "data"))
        for each in (config, queue, data):
            each.mkdir()
        shutil.chown(data, "postfix")
        port = free_port()
        paths = {"config": config, "queue": queue, "data": data}
        (config / "main.cf").write_text(
            MAIN.format(sink_port=sink_port, sessions=sessions, milter=milter, **paths) + further
        )
        (config / "master.cf").write_text(DIRECT.format(address="127.0.0.1", port=port) + MASTER)
        environment = {**os.environ, "MAIL_CONFIG": str(config)}
        subprocess.run(["postfix", "-c", str(config), "start"], check=True, env=environment, capture_output=True)
        try:
            wait_for(port)
            yield port
        finally:
            subprocess.run(["postfix", "-c", str(config), "abort"], env=environment, capture_output=True)
