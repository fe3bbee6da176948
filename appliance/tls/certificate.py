"""TLS contexts: of listeners, with a certificate that is reloaded when its files change (a change that cannot be used
keeps the old one); and of clients, which trust the system's authorities and those of the operator's file.
"""

import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import trio
from cryptography import x509

from appliance.config.settings import Config, ConfigError
from appliance.telemetry.log import get_logger

CERTIFICATE_CHECK_INTERVAL = 1.0  # seconds between two checks of the files

Stamp = tuple[tuple[int, int, int], ...]

log = get_logger("certificate")


def tls_context(chain: Path, key: Path) -> ssl.SSLContext:
    """TLS 1.2 and later, as a server."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(chain, key, password="")  # else OpenSSL prompts on the terminal for an encrypted key
    return context


def verifying_context(ca_file: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    # The same under every Python, and as other programs have it: 3.13 refuses an authority without a key usage, as
    # `openssl req -x509` makes it, and older ones refuse a certificate that is trusted itself but not a root.
    context.verify_flags = (context.verify_flags & ~ssl.VERIFY_X509_STRICT) | ssl.VERIFY_X509_PARTIAL_CHAIN
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    return context


def https_context(config: Config, key: str, ca_file: Path | None) -> ssl.SSLContext:
    """The same for HTTPS; raises ConfigError, with the setting `key` of the file, when it cannot be used."""
    try:
        context = verifying_context(ca_file)
    except OSError as fault:  # ssl.SSLError is one
        raise ConfigError(str(config.source), key, f"holds no usable certificates: {fault}") from fault
    context.set_alpn_protocols(["http/1.1"])
    return context


@dataclass(slots=True)
class Certificate:
    """The TLS context for new handshakes, from two files; OSError if they cannot be used."""

    chain: Path
    key: Path
    make: Callable[[Path, Path], ssl.SSLContext] = tls_context
    context: ssl.SSLContext = field(init=False)
    expires: float | None = field(init=False)  # seconds since 1970; None where the certificate cannot be parsed
    _stamp: Stamp | None = field(init=False)

    def __post_init__(self) -> None:
        self.replacement(self.chain, self.key)()

    def replacement(self, chain: Path, key: Path) -> Callable[[], None]:
        """Read these files now (OSError if they cannot be used); calling the result puts them into use."""
        stamp = _stamp(chain, key)  # first, so that a change during reading is noticed later
        context, expires = self.make(chain, key), _expiry(chain)

        def use() -> None:
            self.chain, self.key, self.context, self.expires, self._stamp = chain, key, context, expires, stamp

        return use

    async def watch(self) -> None:
        """Check the files until cancelled; a change that cannot be used is logged once."""
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


def _expiry(chain: Path) -> float | None:
    try:
        return x509.load_pem_x509_certificates(chain.read_bytes())[0].not_valid_after_utc.timestamp()
    except (OSError, ValueError):  # one that OpenSSL accepts and this library does not
        return None


def _stamp(*files: Path) -> Stamp | None:
    """Identifies a version of the files; None while one of them is missing."""
    try:
        # ctime, so that corrected permissions count as a change, too.
        return tuple((each.st_ctime_ns, each.st_size, each.st_ino) for each in map(os.stat, files))
    except OSError:
        return None
