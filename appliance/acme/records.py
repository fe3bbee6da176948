"""The interface between the renewer and its records, and its implementation with files, for a single server."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import trio
from cryptography.hazmat.primitives.asymmetric import ec

from appliance.acme.files import AcmeFiles, AcmeState, HeldCertificate
from appliance.acme.problems import NotIssued
from appliance.concurrency.wake import SLEEP_LIMIT
from appliance.config.settings import AcmeSettings
from appliance.telemetry.log import get_logger

log = get_logger("acme")


@dataclass(frozen=True, slots=True)
class AcmeView:
    """The settings, the state and the certificate in use."""

    settings: AcmeSettings
    state: AcmeState
    held: HeldCertificate | None
    at_least: bool = False  # a certificate with more names is good until it is renewed


class AcmeRecords(Protocol):
    @property
    def patience(self) -> float:
        """Seconds between two calls of `look`."""

    async def look(self) -> AcmeView | None:
        """Return None if nothing is to be requested now."""

    async def alone(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Run `work` unless another node runs it; return whether it ran."""

    async def account_key(self) -> tuple[ec.EllipticCurvePrivateKey, bool]:
        """Return the account's key, and whether it is new. Raises NotIssued."""

    async def issued(self, pem: bytes, state: AcmeState) -> None:
        """Put a certificate with its key into use. Raises NotIssued."""

    async def save_state(self, state: AcmeState) -> None:
        """Save the state, durably if possible: the next start should not send a request too soon."""


@dataclass(slots=True)
class FileRecords:
    settings: AcmeSettings
    files: AcmeFiles
    in_thread: Callable[..., Awaitable[None]] = trio.to_thread.run_sync  # for writing to disk
    patience: float = SLEEP_LIMIT
    _state: AcmeState | None = None

    async def look(self) -> AcmeView:
        if self._state is None:
            self._state = self.files.state()
        return AcmeView(self.settings, self._state, self.files.held())

    async def alone(self, work: Callable[[], Awaitable[None]]) -> bool:
        await work()
        return True

    async def account_key(self) -> tuple[ec.EllipticCurvePrivateKey, bool]:
        try:
            self.files.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            return self.files.account_key()
        except OSError as error:
            raise self._unwritable(error) from error

    async def issued(self, pem: bytes, state: AcmeState) -> None:
        try:
            await self.in_thread(self.files.save_certificate, pem)
        except OSError as error:
            raise self._unwritable(error) from error
        await self.save_state(state)

    async def save_state(self, state: AcmeState) -> None:
        self._state = state
        try:
            await self.in_thread(self.files.save_state, state)
        except OSError as error:
            log.warning("ACME state not saved", reason=str(error))

    def _unwritable(self, error: OSError) -> NotIssued:
        return NotIssued(f"{self.files.directory} cannot be written: {error}", "Check the disk.")
