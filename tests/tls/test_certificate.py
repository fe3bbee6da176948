"""The certificates that are trusted: those under the operator's file, made with any tool, and no others."""

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

from appliance.tls.certificate import verifying_context

HOST = "hooks.example.com"


def plain_authority() -> trustme.CA:
    """An authority as `openssl req -x509` makes it: it says that it is one, and nothing of what its key is for."""
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
    """A handshake with a server that has this certificate; raises what the client raises."""
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
    """However plainly it was made; and without the file it is not trusted."""
    made = authority()
    made.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    leaf = made.issue_cert(HOST)
    shake_hands(verifying_context(tmp_path / "ca.pem"), leaf)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(verifying_context(None), leaf)


def test_a_certificate_of_the_file_is_believed_itself(tmp_path: Path) -> None:
    """A server's own certificate is enough, without that of its authority; another of that authority is not."""
    authority = trustme.CA()
    leaf, other = authority.issue_cert(HOST), authority.issue_cert(HOST)
    leaf.cert_chain_pems[0].write_to_path(str(tmp_path / "ca.pem"))
    context = verifying_context(tmp_path / "ca.pem")
    shake_hands(context, leaf)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(context, other)


def test_the_rules_are_the_same_under_every_python() -> None:
    """Python 3.13 has stricter ones, which turn away authorities that every other program takes."""
    assert not verifying_context(None).verify_flags & ssl.VERIFY_X509_STRICT
