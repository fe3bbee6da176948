"""Certificates: which ones clients trust, which one each listener shows."""

import datetime
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from appliance.config.load import parse
from appliance.config.settings import Config
from appliance.tls.certificate import (
    CERTIFICATE,
    KEY,
    Certificate,
    by_acme,
    generate,
    http_files,
    smtp_files,
    verifying_context,
)

HOST = "hooks.example.com"


def plain_authority() -> trustme.CA:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Our own")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    key_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return trustme.CA.from_pem(certificate.public_bytes(serialization.Encoding.PEM), key_pem)


def shake_hands(client: ssl.SSLContext, leaf: trustme.LeafCert) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    leaf.configure_cert(server)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname=HOST)
    other = server.wrap_bio(to_server, to_client, server_side=True)
    for side in (one, other, one):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue


@pytest.mark.parametrize("authority", [trustme.CA, plain_authority])
def test_an_authority_of_the_file_is_believed(authority: Callable[[], trustme.CA], tmp_path: Path) -> None:
    made = authority()
    made.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    leaf = made.issue_cert(HOST)
    shake_hands(verifying_context(tmp_path / "ca.pem"), leaf)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(verifying_context(None), leaf)


def test_a_certificate_of_the_file_is_believed_itself(tmp_path: Path) -> None:
    authority = trustme.CA()
    leaf, other = authority.issue_cert(HOST), authority.issue_cert(HOST)
    leaf.cert_chain_pems[0].write_to_path(str(tmp_path / "ca.pem"))
    context = verifying_context(tmp_path / "ca.pem")
    shake_hands(context, leaf)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(context, other)


def test_the_rules_are_the_same_under_every_python() -> None:
    assert not verifying_context(None).verify_flags & ssl.VERIFY_X509_STRICT


def settings(directory: Path, *, acme: str | None = "", http: bool = False, smtp: bool = False) -> Config:
    own = f'tls_cert = "{directory}/own.pem"\ntls_key = "{directory}/own.pem"'
    generate(directory / "own.pem", directory / "own.pem", "own.example.com")
    text = f'[server]\nhostname = "mail.example.com"\ndata_dir = "{directory}"\n[acme]\n'
    text += "" if acme is None else f"enabled = true\n{acme}\n"
    text += f"[http]\n{own if http else ''}\n[smtp]\n{own if smtp else ''}\n"
    return parse(text, directory / "config.toml")


@pytest.mark.parametrize(
    ("options", "http", "smtp"),
    [
        ({"acme": None}, None, CERTIFICATE),
        ({"acme": None, "http": True, "smtp": True}, "own.pem", "own.pem"),
        ({}, "certificate.pem", "certificate.pem"),
        ({"acme": "http = false"}, None, "certificate.pem"),
        ({"http": True}, "own.pem", "certificate.pem"),
        ({"smtp": True}, "certificate.pem", "own.pem"),
    ],
)
def test_who_shows_what(tmp_path: Path, options: dict[str, bool], http: str | None, smtp: str) -> None:
    config = settings(tmp_path, **options)  # type: ignore[arg-type]  # a table of both kinds
    for section, files, wanted in (("http", http_files(config), http), ("smtp", smtp_files(config), smtp)):
        assert (files[0].name if files else None) == wanted
        assert by_acme(config, section) == (wanted == "certificate.pem")
        if files:
            Certificate(*files)  # can be used at once


def test_until_acme_has_one_it_is_made_here_in_one_file(tmp_path: Path) -> None:
    config = settings(tmp_path)
    chain, key = smtp_files(config)
    assert chain == key == tmp_path / "acme" / "certificate.pem"
    made = x509.load_pem_x509_certificate(chain.read_bytes())
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "mail.example.com" in names.get_values_for_type(x509.DNSName)
    assert not any(file.stat().st_mode & 0o077 for file in (chain, chain.parent))
    content = chain.read_bytes()
    assert http_files(config) == (chain, key)
    assert chain.read_bytes() == content
    chain.write_bytes(content[:200])
    http_files(config)
    assert len(chain.read_bytes()) > 200
    assert not (tmp_path / KEY).exists()


def test_when_a_certificate_expires_is_known(tmp_path: Path) -> None:
    file = tmp_path / "both.pem"
    generate(file, file, "mail.example.com")
    shown = Certificate(file, file)
    end = x509.load_pem_x509_certificate(file.read_bytes()).not_valid_after_utc
    assert shown.expires == end.timestamp()
