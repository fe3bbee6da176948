"""Self-signed certificates: no client trusts them, but a listener can offer TLS at once."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from appliance.system.private_file import write_private_file
from appliance.tls.certificate import tls_context

SELF_SIGNED_LIFETIME = datetime.timedelta(days=3650)  # it is not trusted anyway, so a short life would gain nothing
RENEWED_BEFORE = datetime.timedelta(days=30)


def is_usable(chain: Path, key: Path, hostname: str) -> bool:
    """Whether there is one for this name that does not expire soon."""
    try:
        tls_context(chain, key)
        certificate = x509.load_pem_x509_certificate(chain.read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound):
        return False
    fresh = certificate.not_valid_after_utc - RENEWED_BEFORE > datetime.datetime.now(datetime.UTC)
    return fresh and hostname in names.get_values_for_type(x509.DNSName)


def generate(chain: Path, key: Path, hostname: str) -> None:
    """Write a key and its certificate for this name and localhost to two files or, if they are the same, to one."""
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hostname[:64])])
    now = datetime.datetime.now(datetime.UTC)
    hosts = [x509.DNSName(each) for each in dict.fromkeys((hostname, "localhost"))]
    loopback = [x509.IPAddress(ipaddress.ip_address(each)) for each in ("127.0.0.1", "::1")]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # for clocks that are behind
        .not_valid_after(now + SELF_SIGNED_LIFETIME)
        .add_extension(x509.SubjectAlternativeName([*hosts, *loopback]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(private, hashes.SHA256())
    )
    shown = certificate.public_bytes(serialization.Encoding.PEM)
    if chain != key:
        write_private_file(key, private_pem(private))
    write_private_file(chain, shown if chain != key else private_pem(private) + shown)


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
