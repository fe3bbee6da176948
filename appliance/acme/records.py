"""The ACME records: the account's key, the state of issuance, and the certificate; in files, for a single server.

If they are lost, the server creates a new account and requests a new certificate. On a node of a cluster, the files of
state and certificate are copies of the database records (`shared.py`).
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import trio
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec import Struct

from appliance.acme.messages import NotIssued, names_of, new_key, read_key
from appliance.concurrency.wake import SLEEP_LIMIT
from appliance.config.settings import AcmeSettings
from appliance.system.data_directory import write_private_file
from appliance.telemetry.log import get_logger
from appliance.tls.certificate import ACME_FILE, private_pem

ACCOUNT_KEY, STATE = "account.key", "state.json"

log = get_logger("acme")


class AcmeState(msgspec.Struct, frozen=True):
    """The result of the last attempts; times are whole seconds since 1970."""

    account: str = ""  # the account's URL
    account_at: str = ""  # the directory it belongs to
    issued_for: str = ""  # the settings of the certificate, see `schedule.certificate_settings`
    issued_at: int = 0
    failures: int = 0  # in a row
    error: str = ""
    advice: str = ""
    tried_for: str = ""  # the settings of the failed request, see `schedule.request_settings`
    next_try: int = 0
    not_before: int = 0  # Retry-After of the authority


class HeldCertificate(Struct, frozen=True):
    """The certificate in use; `self_signed` until the authority issues one."""

    names: frozenset[str]
    not_before: float
    not_after: float
    self_signed: bool


class AcmeView(Struct, frozen=True):
    settings: AcmeSettings
    state: AcmeState
    held: HeldCertificate | None
    at_least: bool = False  # a certificate with more names is good until it is renewed


def read_state(content: bytes) -> AcmeState:
    try:
        return msgspec.json.decode(content, type=AcmeState)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return AcmeState()


def state_content(state: AcmeState) -> bytes:
    return msgspec.json.format(msgspec.json.encode(state)) + b"\n"


def read_certificate(pem: bytes) -> HeldCertificate | None:
    try:
        leaf = x509.load_pem_x509_certificates(pem)[0]
        names, self_signed = names_of(leaf), leaf.issuer == leaf.subject
    except ValueError:
        return None
    not_before, not_after = leaf.not_valid_before_utc.timestamp(), leaf.not_valid_after_utc.timestamp()
    return HeldCertificate(names, not_before, not_after, self_signed)


def read_files(directory: Path) -> tuple[AcmeState, HeldCertificate | None]:
    contents = {STATE: b"", ACME_FILE: b""}
    for name in contents:
        with suppress(OSError):
            contents[name] = (directory / name).read_bytes()
    return read_state(contents[STATE]), read_certificate(contents[ACME_FILE])


class FileRecords(Struct):
    settings: AcmeSettings
    directory: Path
    in_thread: Callable[..., Awaitable[None]] = trio.to_thread.run_sync  # for writing to disk
    patience: float = SLEEP_LIMIT  # seconds between two calls of `look`
    _state: AcmeState | None = None

    async def look(self) -> AcmeView:
        state, held = read_files(self.directory)
        self._state = self._state or state
        return AcmeView(self.settings, self._state, held)

    async def alone(self, work: Callable[[], Awaitable[None]]) -> bool:
        await work()
        return True

    async def account_key(self) -> tuple[ec.EllipticCurvePrivateKey, bool]:
        """Return the account's key, and whether it is new. Raises NotIssued."""
        file = self.directory / ACCOUNT_KEY
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileNotFoundError, ValueError):
                return read_key(file.read_bytes()), False
            key = new_key()
            write_private_file(file, private_pem(key))
        except OSError as error:
            raise self._unwritable(error) from error
        return key, True

    async def issued(self, pem: bytes, state: AcmeState) -> None:
        """Put a certificate with its key into use: listeners notice the changed file. Raises NotIssued."""
        try:
            await self.in_thread(write_private_file, self.directory / ACME_FILE, pem)
        except OSError as error:
            raise self._unwritable(error) from error
        await self.save_state(state)

    async def save_state(self, state: AcmeState) -> None:
        """Save the state, durably if possible: the next start should not send a request too soon."""
        self._state = state
        try:
            await self.in_thread(write_private_file, self.directory / STATE, state_content(state))
        except OSError as error:
            log.warning("ACME state not saved", reason=str(error))

    async def publish(self, token: str, text: str) -> None:
        """Do nothing: this server answers its own challenges."""

    async def withdraw(self) -> None:
        pass

    def _unwritable(self, error: OSError) -> NotIssued:
        return NotIssued(f"{self.directory} cannot be written: {error}", "Check the disk.")
