"""In charge of having a good certificate at all times: asking in time, asking again, and telling how it went."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec
import trio
from cryptography.hazmat.primitives.asymmetric import ec

from appliance.acme import schedule
from appliance.acme.crypto import new_key
from appliance.acme.files import Drawer, Held, State
from appliance.acme.issuance import Conversation
from appliance.acme.messages import LONGEST_WAIT, shown_time
from appliance.acme.problems import NotIssued
from appliance.config.settings import AcmeSettings
from appliance.outside import SLEEP_LIMIT, Outside, Wake
from appliance.telemetry.log import get_logger
from appliance.times import SECOND

ATTEMPT_LIMIT = 600.0  # seconds for all of one attempt
ERROR_FROM = 3  # failures in a row from which on it is no passing trouble

Issue = Callable[[Conversation, ec.EllipticCurvePrivateKey], Awaitable[bytes]]

log = get_logger("acme")


@dataclass(slots=True)
class Keeper:
    """Keeps one certificate. `issue` goes through with a conversation, and returns the chain."""

    settings: AcmeSettings
    drawer: Drawer
    issue: Issue
    outside: Outside
    aside: Callable[..., Awaitable[None]] = trio.to_thread.run_sync  # writing to disk may take its time
    wake: Wake = field(default_factory=Wake)
    _spread: float = field(init=False)
    _state: State = field(default_factory=State)

    def __post_init__(self) -> None:
        self._spread = self.outside.random()

    async def run(self) -> None:
        """Look after it for ever; nothing that goes wrong ends this."""
        self._state = self.drawer.state()
        while True:
            try:
                await self._look()
            except Exception:  # a certificate that no library of ours was made for, or a bug
                log.exception("looking after the certificate failed")
                await trio.sleep(SLEEP_LIMIT)

    async def _look(self) -> None:
        """Wait, if there is time, or ask for a certificate."""
        held, now = self.drawer.held(), self._now()
        due = due_at(self.settings, self._state, held, now, self._spread)
        if due > now:
            await self.wake.wait(due - now)
        else:
            await self._attempt(held)

    def try_now(self) -> None:
        """Forget that it has failed, as an operator who has mended something wants; the authority's own wish counts."""
        if self._state.failures:
            self._state = msgspec.structs.replace(self._state, next_try=0)
            self.wake.set()

    async def _attempt(self, held: Held | None) -> None:
        try:
            with trio.fail_after(ATTEMPT_LIMIT):
                await self._renew()
        except NotIssued as failed:
            await self._failed(failed, held)
        except trio.TooSlowError:
            await self._failed(NotIssued(f"the authority took over {ATTEMPT_LIMIT:g} s"), held)
        except OSError as error:
            trouble = NotIssued(f"{self.drawer.directory} cannot be written: {error}", "Look at the disk.")
            await self._failed(trouble, held)
        except Exception as error:
            log.exception("asking for a certificate failed")
            await self._failed(NotIssued(f"an error of this program: {error!r}", "Look at the log."), held)

    async def _renew(self) -> None:
        settings, state = self.settings, self._state
        self.drawer.open()
        account_key, is_new = self.drawer.account_key()
        known = not is_new and state.account_at == settings.directory
        conversation = Conversation(
            settings.directory, account_key, state.account if known else "", settings.email, settings.names
        )
        key = new_key()
        try:
            chain = await self.issue(conversation, key)
        finally:
            account, at = conversation.account, settings.directory
            self._state = state = msgspec.structs.replace(state, account=account, account_at=at)
        if conversation.terms:
            log.info("an account was made; its terms are agreed to", directory=at, terms=conversation.terms)
        await self.aside(self.drawer.keep_certificate, key, chain)
        self._spread = self.outside.random()
        await self._keep(
            State(state.account, state.account_at, issued_for=certificate_wanted(settings), issued_at=int(self._now()))
        )
        self._tell_success()

    def _tell_success(self) -> None:
        held = self.drawer.held()
        until = shown_time(held.not_after) if held else ""
        log.info("a certificate has come", names=list(self.settings.names), until=until)

    async def _failed(self, failed: NotIssued, held: Held | None) -> None:
        failures, now = self._state.failures + 1, self._now()
        wait = schedule.retry(failures, self.outside.random())
        state = msgspec.structs.replace(
            self._state,
            failures=failures,
            error=str(failed),
            advice=failed.advice,
            tried_for=wanted(self.settings),
            tried_at=int(now),
            next_try=int(now + wait),
            not_before=int(now + failed.retry_after) if failed.retry_after else 0,
        )
        fields = {"reason": state.error, "advice": state.advice, "next_try": shown_time(_next_try(state))}
        event = "there is no certificate yet" if held is None or held.own else "the certificate could not be renewed"
        (log.warning if failures < ERROR_FROM else log.error)(event, names=list(self.settings.names), **fields)
        await self._keep(state)

    async def _keep(self, state: State) -> None:
        """Remember it, and on disk, too, if that can be: the next start should not ask too soon."""
        self._state = state
        try:
            await self.aside(self.drawer.keep_state, state)
        except OSError as error:
            log.warning("the state of ACME cannot be kept", reason=str(error))

    def _now(self) -> float:
        return self.outside.now() / SECOND


def certificate_wanted(settings: AcmeSettings) -> str:
    """What a certificate is asked for with: for another wish another one is needed."""
    return " ".join((settings.directory, *settings.names))


def wanted(settings: AcmeSettings) -> str:
    """All that is said to the authority: another wish has not failed yet."""
    return f"{certificate_wanted(settings)} {settings.email}"


def is_good(settings: AcmeSettings, state: State, held: Held | None) -> bool:
    """Whether the certificate is the one that the settings ask for, whatever its age."""
    return held is not None and not held.own and state.issued_for == certificate_wanted(settings)


def due_at(settings: AcmeSettings, state: State, held: Held | None, now: float, spread: float) -> float:
    """When to ask next. A time too far away was written under a wrong clock, and does not count. PURE."""
    asked_to_wait = state.not_before if state.not_before <= now + LONGEST_WAIT else 0
    if state.failures and state.tried_for == wanted(settings):
        farthest = now + schedule.RETRY_DELAYS[-1] * 2
        return max(state.next_try if state.next_try <= farthest else 0, asked_to_wait)
    life = held.not_after - held.not_before if held else schedule.LEAST_GAP
    due = min(state.issued_at, now) + schedule.gap(life) if state.issued_for == certificate_wanted(settings) else 0
    if held is not None and is_good(settings, state, held):
        due = max(due, schedule.renewal(held.not_before, held.not_after, settings.renew_before, spread))
    return max(due, asked_to_wait)


def _next_try(state: State) -> float:
    return max(state.next_try, state.not_before)
