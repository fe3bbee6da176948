"""With [acme] every listener shows a certificate that clients trust, and the next one without a restart."""

import socket
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from cryptography import x509

from tests import engines
from tests.e2e.certificates.clients import NAME, SITE, anything, certified, events, shown, trusted, wait_until
from tests.fakes.pebble import needs_pebble, pebble
from tests.running_appliance import Running

LISTENERS = ("https", "smtp", "smtps")
LIFE = 16  # seconds that a certificate lasts here; it is renewed after half of that


def place(running: Running, service: str) -> str:
    """Where port 80, or the metrics, are."""
    (ready,) = [line for line in events(running, "appliance.supervisor") if line["event"] == "ready"]
    return str(ready[service][0])


@needs_pebble
@pytest.mark.timeout(180)
def test_a_certificate_comes_and_is_renewed(tmp_path: Path) -> None:
    """Verified by the authority's root on 443, 587 and 465, also after the authority has forgotten all accounts."""
    with (
        pebble(tmp_path, NAME, SITE, certificateValidityPeriod=LIFE, PEBBLE_WFE_NONCEREJECT=30) as authority,
        certified(tmp_path, authority, acme='renew_before = "365d"\nemail = "postmaster@example.com"') as running,
    ):
        root = authority.root()
        wait_until(lambda: all(trusted(running, each, root) for each in LISTENERS), running)
        assert trusted(running, "https", root, SITE)
        assert not trusted(running, "https", root, "other.example.com")
        first = {each: shown(running, each, root) for each in LISTENERS}
        assert len(set(first.values())) == 1
        private_to_us(running)
        port_80_sends_people_on(place(running, "acme"))
        told_to_prometheus(place(running, "metrics"), first["https"])

        authority.stop()
        authority.start()  # with another root and without our account
        root = authority.root()
        # A renewal that comes while it is away is tried again after a minute.
        wait_until(lambda: all(trusted(running, each, root) for each in LISTENERS), running, within=90)
        assert shown(running, "smtps", root) != first["smtps"]
        assert "Configured to reject 30% of good nonces" in authority.log
        assert running.terminate() == 0


def private_to_us(running: Running) -> None:
    directory = running.data_dir / "acme"
    files = [directory, *directory.iterdir()]
    own = {"account.key"} if engines.in_use() is engines.Kind.SQLITE else set()  # on PostgreSQL in the database
    assert {file.name for file in files} == {"acme", "certificate.pem", "state.json"} | own
    assert not any(file.stat().st_mode & 0o077 for file in files)


def port_80_sends_people_on(url: str) -> None:
    moved = httpx.get(f"{url}/v1/account?x=1", trust_env=False)
    assert (moved.status_code, moved.headers["Location"]) == (308, f"https://{SITE}/v1/account?x=1")
    assert httpx.get(f"{url}/.well-known/acme-challenge/abc", trust_env=False).status_code == 404


def told_to_prometheus(address: str, certificate: bytes) -> None:
    page = httpx.get(f"http://{address}/metrics", trust_env=False).text
    ends = x509.load_der_x509_certificate(certificate).not_valid_after_utc.timestamp()
    for listener in ("http", "smtp"):
        assert f'appliance_certificate_expiry_timestamp_seconds{{shown_by="{listener}"}} {ends:.16g}\n' in page


@needs_pebble
def test_a_certificate_outlives_a_restart_and_slow_clients(tmp_path: Path) -> None:
    """The same one is shown at once without asking; port 80 answers the authority while others sit on it."""
    with pebble(tmp_path, NAME, SITE) as authority, certified(tmp_path, authority) as running:
        address = urlsplit(place(running, "acme"))
        assert address.port is not None
        slow = [socket.create_connection(("127.0.0.1", address.port), timeout=10) for _ in range(10)]
        root = authority.root()
        wait_until(lambda: trusted(running, "https", root), running)
        kept = shown(running, "https", root)
        authority.stop()
        assert running.terminate() == 0
        running.start()
        assert shown(running, "https", root) == kept
        assert shown(running, "smtp", anything()) == kept
        assert {line["level"] for line in events(running)} == {"info"}
        for client in slow:
            client.close()
