"""In charge of which certificate submission shows: the operator's, or one that is made here."""

import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from appliance.certificate import Certificate, tls_context
from appliance.config import Config, ConfigError

LIFETIME = datetime.timedelta(days=3650)  # of a generated one: nobody trusts it, so nobody gains from a short life
RENEWED_BEFORE = datetime.timedelta(days=30)
CERTIFICATE, KEY = "smtp-certificate.pem", "smtp-key.pem"


def of_settings(config: Config) -> Certificate:
    """The certificate to begin with."""
    chain, key = files(config)
    try:
        return Certificate(chain, key)
    except OSError as error:
        wanted = "expected a PEM chain and its PEM key, not encrypted"
        raise ConfigError("smtp.tls_cert", f"{chain} and {key} cannot be used ({error}); {wanted}") from error


def files(config: Config) -> tuple[Path, Path]:
    """The chain and the key that the settings name, or generated ones, kept in the data directory."""
    if config.smtp.tls_cert is not None and config.smtp.tls_key is not None:
        return config.smtp.tls_cert, config.smtp.tls_key
    chain, key = config.server.data_dir / CERTIFICATE, config.server.data_dir / KEY
    if not _is_usable(chain, key, config.server.hostname):
        generate(chain, key, config.server.hostname)
    return chain, key


def _is_usable(chain: Path, key: Path, hostname: str) -> bool:
    """Whether the generated one is there, for this name, and for a while yet."""
    try:
        tls_context(chain, key)
        certificate = x509.load_pem_x509_certificate(chain.read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound):
        return False
    fresh = certificate.not_valid_after_utc - RENEWED_BEFORE > datetime.datetime.now(datetime.UTC)
    return fresh and hostname in names.get_values_for_type(x509.DNSName)


def generate(chain: Path, key: Path, hostname: str) -> None:
    """Make a key and a certificate that it signs itself, for this name and for whoever is on the same machine."""
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
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.SubjectAlternativeName([*hosts, *loopback]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(private, hashes.SHA256())
    )
    pem = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write(key, pem)
    _write(chain, certificate.public_bytes(serialization.Encoding.PEM))


def _write(file: Path, content: bytes) -> None:
    """All of it or nothing, and for nobody else to read."""
    draft = file.with_name(f".{file.name}.new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
    draft.rename(file)
