"""TLS contexts and certificates.

A listener shows the operator's certificate, the ACME certificate, or a generated one, and reloads it when its files
change. If it cannot use the changed files, it keeps the old certificate. Clients trust the authorities of the system
and of the operator's file.
"""

import datetime
import ipaddress
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from appliance.config.settings import Config, ConfigError, HttpSettings, InboundSettings, SmtpSettings
from appliance.system.data_directory import write_private_file
from appliance.telemetry.log import get_logger

CERTIFICATE_CHECK_INTERVAL = 1.0  # seconds between two checks of the files
SELF_SIGNED_LIFETIME = datetime.timedelta(days=3650)  # no client trusts it, so a short life would gain nothing
RENEWED_BEFORE = datetime.timedelta(days=30)
CERTIFICATE, KEY = "smtp-certificate.pem", "smtp-key.pem"  # files of the generated certificate
ACME_DIRECTORY, ACME_FILE = "acme", "certificate.pem"  # with its key in one file, so that both are replaced together

Stamp = tuple[tuple[int, int, int], ...]
Files = tuple[Path, Path]  # chain and key

log = get_logger("certificate")


# ---- contexts


def tls_context(chain: Path, key: Path) -> ssl.SSLContext:
    """Return a server's context: TLS 1.2 and later."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(chain, key, password="")  # else OpenSSL prompts on the terminal for an encrypted key
    return context


def verifying_context(ca_file: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    # The same rules under every Python: 3.13 refuses an authority without a key usage, as `openssl req -x509` makes it,
    # and older versions refuse a trusted certificate that is not a root.
    context.verify_flags = (context.verify_flags & ~ssl.VERIFY_X509_STRICT) | ssl.VERIFY_X509_PARTIAL_CHAIN
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    return context


def https_context(config: Config, key: str, ca_file: Path | None) -> ssl.SSLContext:
    """Return a verifying context for HTTPS; raise ConfigError about the setting `key` if its file is not usable."""
    try:
        context = verifying_context(ca_file)
    except OSError as fault:  # ssl.SSLError is one
        raise ConfigError(str(config.source), key, f"holds no usable certificates: {fault}") from fault
    context.set_alpn_protocols(["http/1.1"])
    return context


# ---- certificates that are reloaded


@dataclass(slots=True)
class Certificate:
    """The TLS context for new handshakes, from two files; OSError if they cannot be used."""

    chain: Path
    key: Path
    make: Callable[[Path, Path], ssl.SSLContext] = tls_context
    context: ssl.SSLContext = field(init=False)
    expires: float | None = field(init=False)  # seconds since 1970; None if the certificate cannot be parsed
    _stamp: Stamp | None = field(init=False)

    def __post_init__(self) -> None:
        self.replacement(self.chain, self.key)()

    def replacement(self, chain: Path, key: Path) -> Callable[[], None]:
        """Read these files now (OSError if they cannot be used); calling the result puts them into use."""
        stamp = _stamp(chain, key)  # first, so that a change during reading is noticed later
        context, expires = self.make(chain, key), expiry(chain)

        def use() -> None:
            self.chain, self.key, self.context, self.expires, self._stamp = chain, key, context, expires, stamp

        return use

    async def watch(self) -> None:
        """Check the files until cancelled; log once if a change cannot be used."""
        while True:
            await trio.sleep(CERTIFICATE_CHECK_INTERVAL)
            stamp = _stamp(self.chain, self.key)
            if stamp == self._stamp:
                continue
            self._stamp = stamp
            try:
                self.replacement(self.chain, self.key)()
            except OSError as error:  # ssl.SSLError is one; a half-written change looks the same
                log.warning("the new certificate cannot be used", file=str(self.chain), reason=str(error))
            else:
                log.info("the certificate was read again", file=str(self.chain))


def load_certificate(section: str, files: Files) -> Certificate:
    chain, key = files
    try:
        return Certificate(chain, key)
    except OSError as error:
        reason = f"{chain} and {key} cannot be used ({error}). Provide a PEM chain and its unencrypted PEM key."
        raise ConfigError(f"{section}.tls_cert", reason) from error


def expiry(chain: Path) -> float | None:
    """Return when a certificate expires, in seconds since 1970; None if it cannot be read."""
    try:
        return x509.load_pem_x509_certificates(chain.read_bytes())[0].not_valid_after_utc.timestamp()
    except (OSError, ValueError):  # one that OpenSSL accepts and this library does not
        return None


def _stamp(*files: Path) -> Stamp | None:
    """Identify a version of the files; None while one of them is missing."""
    try:
        # ctime, so that corrected permissions count as a change, too.
        return tuple((facts.st_ctime_ns, facts.st_size, facts.st_ino) for facts in map(os.stat, files))
    except OSError:
        return None


# ---- the files of each listener


def acme_directory(config: Config) -> Path:
    return config.server.data_dir / ACME_DIRECTORY


def by_acme(config: Config, section: str) -> bool:
    """Whether a listener (`http` or `smtp`) uses the ACME certificate: its own files, if named, come first."""
    if not config.acme.enabled:
        return False
    return config.smtp.tls_cert is None if section == "smtp" else config.http.tls_cert is None and config.acme.http


def _own_files(section: HttpSettings | SmtpSettings | InboundSettings) -> Files | None:
    return (section.tls_cert, section.tls_key) if section.tls_cert and section.tls_key else None


def http_files(config: Config) -> Files | None:
    """Return the files of HTTPS, generated if need be; None for plain HTTP."""
    return _own_files(config.http) or (_acme_files(config) if by_acme(config, "http") else None)


def smtp_files(config: Config) -> Files:
    """Return the files of SMTP submission, generated if need be."""
    if (own := _own_files(config.smtp)) or by_acme(config, "smtp"):
        return own or _acme_files(config)
    chain, key = config.server.data_dir / CERTIFICATE, config.server.data_dir / KEY
    if not is_usable(chain, key, config.server.hostname):
        generate(chain, key, config.server.hostname)
    return chain, key


def inbound_files(config: Config) -> Files:
    """Return the files of the listener for feedback: its own, or those of SMTP submission."""
    return _own_files(config.inbound) or smtp_files(config)


def _acme_files(config: Config) -> Files:
    """Return the file that ACME writes; until then a self-signed one, so that no start waits for an authority."""
    file = acme_directory(config) / ACME_FILE
    try:
        tls_context(file, file)
    except OSError:  # missing or damaged; an expired one is still better than a self-signed one
        acme_directory(config).mkdir(mode=0o700, parents=True, exist_ok=True)
        generate(file, file, config.acme.names[0])
    return file, file


# ---- self-signed certificates: no client trusts them, but a listener can offer TLS at once


def is_usable(chain: Path, key: Path, hostname: str) -> bool:
    """Whether there is a certificate for this name that does not expire soon."""
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
    hosts = [x509.DNSName(host) for host in dict.fromkeys((hostname, "localhost"))]
    loopback = [x509.IPAddress(ipaddress.ip_address(address)) for address in ("127.0.0.1", "::1")]
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
