"""In charge of what is kept between two certificates: the account's key, how the last try went, the certificate itself.

All of it can be lost: another account is made, and another certificate asked for.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from appliance.acme.crypto import new_key, read_key
from appliance.acme.csr import names_of
from appliance.system import private_file
from appliance.tls.certificate_files import ACME_FILE
from appliance.tls.self_signed import private_pem

ACCOUNT_KEY, STATE = "account.key", "state.json"


class State(msgspec.Struct, frozen=True):
    """How it stands; times are whole seconds since 1970."""

    account: str = ""  # the account's URL
    account_at: str = ""  # the directory it is with
    issued_for: str = ""  # what the certificate was asked for with
    issued_at: int = 0
    failures: int = 0  # in a row
    error: str = ""
    advice: str = ""
    tried_for: str = ""  # what was asked for when it failed
    tried_at: int = 0
    next_try: int = 0
    not_before: int = 0  # the authority does not want to be asked earlier


@dataclass(frozen=True, slots=True)
class Held:
    """A certificate that is there; `own` when it was made here, for want of a better one."""

    names: frozenset[str]
    not_before: float
    not_after: float
    own: bool


@dataclass(frozen=True, slots=True)
class Drawer:
    """The files in one directory."""

    directory: Path

    @property
    def certificate(self) -> Path:
        """Chain and key, in one file."""
        return self.directory / ACME_FILE

    def open(self) -> None:
        """Have the directory there, for nobody else to read."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def state(self) -> State:
        """How it stood when it was last kept; as at the beginning, when that cannot be read."""
        try:
            return msgspec.json.decode((self.directory / STATE).read_bytes(), type=State)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return State()

    def keep_state(self, state: State) -> None:
        """Keep how it stands; readable as it is for an operator, too."""
        private_file.write(self.directory / STATE, msgspec.json.format(msgspec.json.encode(state)) + b"\n")

    def account_key(self) -> tuple[ec.EllipticCurvePrivateKey, bool]:
        """The account's key, and whether it was made just now."""
        file = self.directory / ACCOUNT_KEY
        try:
            return read_key(file.read_bytes()), False
        except (FileNotFoundError, ValueError):
            key = new_key()
            private_file.write(file, private_pem(key))
            return key, True

    def held(self) -> Held | None:
        """The certificate that is there; None when there is none that could be read."""
        try:
            leaf = x509.load_pem_x509_certificates(self.certificate.read_bytes())[0]
            names, own = names_of(leaf), leaf.issuer == leaf.subject
        except (OSError, ValueError):
            return None
        return Held(names, leaf.not_valid_before_utc.timestamp(), leaf.not_valid_after_utc.timestamp(), own)

    def keep_certificate(self, key: ec.EllipticCurvePrivateKey, chain: bytes) -> None:
        """Have this certificate shown from the next look at the file on."""
        private_file.write(self.certificate, private_pem(key) + chain)
