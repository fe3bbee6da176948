"""In charge of the certificate that submission shows: the operator's, read again when it changes, or one made here."""

import datetime
import ipaddress
import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path

import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from appliance.config import Config, ConfigError
from appliance.log import get_logger

LOOK_EVERY = 1.0  # seconds between two looks at the files
LIFETIME = datetime.timedelta(days=3650)  # of a generated one: nobody trusts it, so nobody gains from a short life
RENEWED_BEFORE = datetime.timedelta(days=30)
CERTIFICATE, KEY = "smtp-certificate.pem", "smtp-key.pem"

Stamp = tuple[tuple[int, int, int], ...]

log = get_logger("submission")


@dataclass(slots=True)
class Certificate:
    """The TLS context of new handshakes."""

    chain: Path
    key: Path
    context: ssl.SSLContext = field(init=False)
    _stamp: Stamp | None = field(init=False)

    def __post_init__(self) -> None:
        """Read the files; raises OSError when they cannot be used."""
        self._stamp = _stamp(self.chain, self.key)  # first: a change while they are read is seen later
        self.context = tls_context(self.chain, self.key)

    async def watch(self) -> None:
        """Look at the files for ever; a change that cannot be used is told once, and the old one stays."""
        while True:
            await trio.sleep(LOOK_EVERY)
            stamp = _stamp(self.chain, self.key)
            if stamp != self._stamp:
                self._stamp = stamp
                self._read_again()

    def _read_again(self) -> None:
        try:
            self.context = tls_context(self.chain, self.key)
        except OSError as error:  # ssl.SSLError is one; half of a change looks like this, too
            log.warning("the new certificate cannot be used", file=str(self.chain), reason=str(error))
        else:
            log.info("the certificate was read again", file=str(self.chain))


def _stamp(*files: Path) -> Stamp | None:
    """What tells one version of the files from another; None while one of them is missing."""
    try:
        # The time of the last change of any kind: permissions that were put right count, too.
        return tuple((each.st_ctime_ns, each.st_size, each.st_ino) for each in map(os.stat, files))
    except OSError:
        return None


def tls_context(chain: Path, key: Path) -> ssl.SSLContext:
    """TLS 1.2 and later, as a server."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(chain, key, password="")  # lest OpenSSL ask a terminal for the key's
    return context


def of_settings(config: Config) -> Certificate:
    """The certificate the settings name, or a generated one, kept in the data directory."""
    if config.smtp.tls_cert is not None and config.smtp.tls_key is not None:
        chain, key = config.smtp.tls_cert, config.smtp.tls_key
    else:
        chain, key = config.server.data_dir / CERTIFICATE, config.server.data_dir / KEY
        if not _is_usable(chain, key, config.server.hostname):
            generate(chain, key, config.server.hostname)
    try:
        return Certificate(chain, key)
    except OSError as error:
        wanted = "expected a PEM chain and its PEM key, not encrypted"
        raise ConfigError("smtp.tls_cert", f"{chain} and {key} cannot be used ({error}); {wanted}") from error


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
