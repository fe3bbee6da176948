"""In charge of a certificate that listeners show: its files are looked at for ever, and read again when they change."""

import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import trio
from cryptography import x509

from appliance.telemetry.log import get_logger

LOOK_EVERY = 1.0  # seconds between two looks at the files

Stamp = tuple[tuple[int, int, int], ...]

log = get_logger("certificate")


def tls_context(chain: Path, key: Path) -> ssl.SSLContext:
    """TLS 1.2 and later, as a server."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(chain, key, password="")  # lest OpenSSL ask a terminal for the key's
    return context


@dataclass(slots=True)
class Certificate:
    """The TLS context of new handshakes, made of two files; OSError if they cannot be used."""

    chain: Path
    key: Path
    make: Callable[[Path, Path], ssl.SSLContext] = tls_context
    context: ssl.SSLContext = field(init=False)
    expires: float | None = field(init=False)  # seconds since 1970; None where that cannot be told
    _stamp: Stamp | None = field(init=False)

    def __post_init__(self) -> None:
        self.replacement(self.chain, self.key)()

    def replacement(self, chain: Path, key: Path) -> Callable[[], None]:
        """Read these files now (OSError if they cannot be used); what is returned has them shown from then on."""
        stamp = _stamp(chain, key)  # first: a change while they are read is seen later
        context, expires = self.make(chain, key), _expiry(chain)

        def show() -> None:
            self.chain, self.key, self.context, self._stamp = chain, key, context, stamp
            self.expires = expires

        return show

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
            self.replacement(self.chain, self.key)()
        except OSError as error:  # ssl.SSLError is one; half of a change looks like this, too
            log.warning("the new certificate cannot be used", file=str(self.chain), reason=str(error))
        else:
            log.info("the certificate was read again", file=str(self.chain))


def _expiry(chain: Path) -> float | None:
    try:
        return x509.load_pem_x509_certificates(chain.read_bytes())[0].not_valid_after_utc.timestamp()
    except (OSError, ValueError):  # one that OpenSSL can show, and this library cannot read
        return None


def _stamp(*files: Path) -> Stamp | None:
    """What tells one version of the files from another; None while one of them is missing."""
    try:
        # The time of the last change of any kind: permissions that were put right count, too.
        return tuple((each.st_ctime_ns, each.st_size, each.st_ino) for each in map(os.stat, files))
    except OSError:
        return None
