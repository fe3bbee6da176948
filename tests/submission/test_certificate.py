"""The certificate's files: made when there are none, read again when they change, refused with a reason."""

import ssl
from pathlib import Path

import pytest
import trio
import trustme
from cryptography.hazmat.primitives import serialization

from appliance.config.load import parse
from appliance.config.settings import Config, ConfigError
from appliance.submission.server import load_certificate
from appliance.tls.certificate import CERTIFICATE, CERTIFICATE_CHECK_INTERVAL, Certificate, generate


def settings(directory: Path, smtp: str = "", hostname: str = "mail.example.com") -> Config:
    """A configuration whose data directory is there."""
    text = f'[server]\nhostname = "{hostname}"\ndata_dir = "{directory}"\n[smtp]\n{smtp}'
    return parse(text, directory / "config.toml")


def named(directory: Path, chain: bytes, key: bytes) -> Config:
    """A configuration that names a certificate with this content."""
    (directory / "chain.pem").write_bytes(chain)
    (directory / "key.pem").write_bytes(key)
    return settings(directory, f'tls_cert = "{directory}/chain.pem"\ntls_key = "{directory}/key.pem"\n')


def issued() -> tuple[bytes, bytes]:
    """A chain and its key, as an authority gives them out."""
    made = trustme.CA().issue_cert("mail.example.com")
    return b"".join(blob.bytes() for blob in made.cert_chain_pems), made.private_key_pem.bytes()


def encrypted(key: bytes) -> bytes:
    """The same key under a password."""
    loaded = serialization.load_pem_private_key(key, None)
    return loaded.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"password"),
    )


def test_one_is_made_for_each_host_name(tmp_path: Path) -> None:
    """The generated one stays as long as the host is called so, and is made anew when it is damaged."""
    load_certificate(settings(tmp_path))
    first = (tmp_path / CERTIFICATE).read_bytes()
    load_certificate(settings(tmp_path))
    assert (tmp_path / CERTIFICATE).read_bytes() == first
    load_certificate(settings(tmp_path, hostname="other.example.com"))
    second = (tmp_path / CERTIFICATE).read_bytes()
    assert second != first
    (tmp_path / CERTIFICATE).write_bytes(second[:100])
    load_certificate(settings(tmp_path, hostname="other.example.com"))
    assert len((tmp_path / CERTIFICATE).read_bytes()) > 100


@pytest.mark.parametrize("fault", ["nonsense", "another's key", "an encrypted key"])
def test_files_that_cannot_be_used_stop_the_start(tmp_path: Path, fault: str) -> None:
    """The error names the key and both files, and no password is asked for."""
    chain, key = issued()
    wrong = {"nonsense": b"x", "another's key": issued()[1], "an encrypted key": encrypted(key)}[fault]
    with pytest.raises(ConfigError, match=r"smtp\.tls_cert: .*chain\.pem and .*key\.pem cannot be used"):
        load_certificate(named(tmp_path, chain, wrong))


async def test_a_change_is_seen(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """New files make a new context within a look; while one is missing or wrong, the old one stays."""
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    generate(chain, key, "mail.example.com")
    certificate = Certificate(chain, key)
    seen: list[ssl.SSLContext] = [certificate.context]

    async def look() -> ssl.SSLContext:
        await trio.sleep(CERTIFICATE_CHECK_INTERVAL * 1.5)
        return certificate.context

    async with trio.open_nursery() as nursery:
        nursery.start_soon(certificate.watch)
        assert await look() is seen[0]
        kept = key.read_bytes()
        key.unlink()
        assert await look() is seen[0]
        key.write_bytes(b"not a key")
        assert await look() is seen[0]
        key.write_bytes(kept)
        assert (await look()) is not seen[0]
        nursery.cancel_scope.cancel()
