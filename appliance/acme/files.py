"""The ACME files: the account's key, the state of issuance, and the certificate.

If they are lost, the server creates a new account and requests a new certificate. On a node of a cluster, state and
certificate are copies of the database records (`shared.py`).
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from appliance.acme.crypto import names_of, new_key, read_key
from appliance.system.private_file import write_private_file
from appliance.tls.certificate_files import ACME_FILE
from appliance.tls.self_signed import private_pem

ACCOUNT_KEY, STATE = "account.key", "state.json"


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
    tried_at: int = 0
    next_try: int = 0
    not_before: int = 0  # Retry-After of the authority


@dataclass(frozen=True, slots=True)
class HeldCertificate:
    """The certificate in use; `self_signed` until the authority issues one."""

    names: frozenset[str]
    not_before: float
    not_after: float
    self_signed: bool


def read_state(content: bytes) -> AcmeState:
    """Parse a saved state; return an empty one if that fails."""
    try:
        return msgspec.json.decode(content, type=AcmeState)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return AcmeState()


def state_content(state: AcmeState) -> bytes:
    return msgspec.json.format(msgspec.json.encode(state)) + b"\n"


def read_certificate(pem: bytes) -> HeldCertificate | None:
    """Parse a certificate; return None if that fails."""
    try:
        leaf = x509.load_pem_x509_certificates(pem)[0]
        names, self_signed = names_of(leaf), leaf.issuer == leaf.subject
    except ValueError:
        return None
    not_before, not_after = leaf.not_valid_before_utc.timestamp(), leaf.not_valid_after_utc.timestamp()
    return HeldCertificate(names, not_before, not_after, self_signed)


@dataclass(frozen=True, slots=True)
class AcmeFiles:
    directory: Path

    @property
    def certificate(self) -> Path:
        return self.directory / ACME_FILE

    def state(self) -> AcmeState:
        try:
            return read_state((self.directory / STATE).read_bytes())
        except OSError:
            return AcmeState()

    def save_state(self, state: AcmeState) -> None:
        write_private_file(self.directory / STATE, state_content(state))

    def account_key(self) -> tuple[ec.EllipticCurvePrivateKey, bool]:
        """Return the account's key, and whether it is new."""
        file = self.directory / ACCOUNT_KEY
        try:
            return read_key(file.read_bytes()), False
        except (FileNotFoundError, ValueError):
            key = new_key()
            write_private_file(file, private_pem(key))
            return key, True

    def held(self) -> HeldCertificate | None:
        try:
            return read_certificate(self.certificate.read_bytes())
        except OSError:
            return None

    def save_certificate(self, pem: bytes) -> None:
        """Replace the certificate and its key; listeners notice the changed file."""
        write_private_file(self.certificate, pem)
