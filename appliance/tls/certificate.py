"""The certificate of a listener, reloaded when its files change; a change that cannot be used keeps the old one."""

import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import trio
from cryptography import x509

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
            self.chain, self.key, self.context, self._stamp = chain, key, context, stamp
            self.expires = expires

        return use

    async def watch(self) -> None:
        """Check the files until cancelled; a change that cannot be used is logged once."""
        while True:
            await trio.sleep(CERTIFICATE_CHECK_INTERVAL)
            stamp = _stamp(self.chain, self.key)
            if stamp != self._stamp:
                self._stamp = stamp
                self._reload()

    def _reload(self) -> None:
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
