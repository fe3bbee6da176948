"""The certificate that clients see: a generated one that stays, or the operator's, read again when it changes."""

import socket
import ssl
from pathlib import Path

import trustme

from appliance.tls.certificate import CERTIFICATE, KEY
from tests.e2e.submission.client import Raw, endpoint, smtp
from tests.running_appliance import Running, appliance
from tests.waiting import wait_until


def shown(running: Running, authority: trustme.CA | None = None) -> bytes:
    """The certificate that is shown on the TLS port, DER; trusted if an authority is given."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if authority is not None:
        authority.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    with socket.create_connection(endpoint(running, "smtps"), timeout=10) as plain, context.wrap_socket(plain) as tls:
        found = tls.getpeercert(binary_form=True)
    assert found is not None
    return found


def test_a_generated_one_stays(tmp_path: Path) -> None:
    """It is made at the first start, readable by its owner only, trusted by clients that have it, and kept."""
    with appliance(tmp_path) as running:
        first = shown(running)
        with smtp(running):
            pass
        for name in (CERTIFICATE, KEY):
            assert (running.data_dir / name).stat().st_mode & 0o077 == 0
        assert running.terminate() == 0
        running.start()
        assert shown(running) == first


def write(directory: Path, authority: trustme.CA, name: str) -> tuple[Path, Path]:
    made = authority.issue_cert(name)
    chain, key = directory / "chain.pem", directory / "key.pem"
    made.private_key_pem.write_to_path(key)
    chain.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
    return chain, key


def test_the_operators_is_read_again(tmp_path: Path) -> None:
    """A new certificate is shown within seconds; one that cannot be used is not, and that is told once."""
    authority = trustme.CA()
    chain, key = write(tmp_path, authority, "mail.example.com")
    settings = f'tls_cert = "{chain}"\ntls_key = "{key}"'
    with appliance(tmp_path, smtp=settings) as running:
        first = shown(running, authority)
        with Raw(running, "smtp") as kept:
            key.write_text("not a key")
            wait_until(lambda: bool(running.complaints()))
            assert shown(running, authority) == first
            write(tmp_path, authority, "mail.example.com")
            wait_until(lambda: shown(running, authority) != first)
            assert kept.say(b"NOOP").startswith(b"250 ")
        (complaint,) = running.complaints()
        assert "the new certificate cannot be used" in complaint
