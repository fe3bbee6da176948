"""When to request a certificate: in time before the current one expires, and less often after each failure. No I/O.

Times are seconds since 1970. `doctor` uses it as well.
"""

from appliance.acme.messages import MAX_RETRY_AFTER
from appliance.acme.records import AcmeState, HeldCertificate
from appliance.config.settings import AcmeSettings

# Seconds after each consecutive failure; the last one repeats. Authorities limit failures per hour: Let's Encrypt
# allows five per name, and these delays make four in the first hour.
RETRY_DELAYS = (60.0, 300.0, 1800.0, 3600.0, 21600.0)
RETRY_SPREAD = 0.1  # share of a delay, either way, so that servers that failed together do not retry together
RENEWAL_SPREAD = 0.1  # share of the time before expiry, earlier: likewise for servers that started together
LEAST_GAP, LEAST_LIFETIME_SHARE = 3600.0, 0.4  # minimum between two certificates: seconds, and share of a lifetime
OVERDUE = 0.5  # share of the time before expiry, at which renewal should have succeeded


def time_before(not_before: float, not_after: float, renew_before: float | None) -> float:
    """Return how long before expiry to renew: a third of the lifetime, or acme.renew_before up to half of it."""
    life = max(not_after - not_before, 0.0)
    return life / 3 if renew_before is None else min(renew_before, life / 2)


def renewal(not_before: float, not_after: float, renew_before: float | None, spread: float) -> float:
    """Return when to renew a certificate; `spread` is a random number from 0 to 1, fixed per certificate."""
    return not_after - time_before(not_before, not_after, renew_before) * (1 + RENEWAL_SPREAD * spread)


def gap(life: float) -> float:
    """Return the minimum seconds between two certificates, even if the first seems wrong: the clock may be wrong."""
    return min(LEAST_GAP, max(life, 0.0) * LEAST_LIFETIME_SHARE)


def overdue(not_before: float, not_after: float, renew_before: float | None) -> float:
    """Return the time from which on a certificate that was not renewed is a warning."""
    return not_after - time_before(not_before, not_after, renew_before) * OVERDUE


def retry(failures: int, spread: float) -> float:
    """Return the seconds to the next attempt after this many consecutive failures; `spread` is from 0 to 1."""
    delay = RETRY_DELAYS[min(failures, len(RETRY_DELAYS)) - 1]
    return delay * (1 + RETRY_SPREAD * (2 * spread - 1))


def certificate_settings(settings: AcmeSettings) -> str:
    """Return the settings that a certificate depends on; if they change, a new one is requested."""
    return " ".join((settings.directory, *settings.names))


def is_issued(settings: AcmeSettings, state: AcmeState, *, at_least: bool) -> bool:
    """Whether the certificate matches the settings; with `at_least` it may have more names."""
    if not at_least:
        return state.issued_for == certificate_settings(settings)
    directory, *names = state.issued_for.split(" ")
    return directory == settings.directory and names != [] and set(settings.names) <= set(names)


def request_settings(settings: AcmeSettings) -> str:
    """Return all settings that a request depends on; if they change, earlier failures no longer count."""
    return f"{certificate_settings(settings)} {settings.email}"


def due_at(
    settings: AcmeSettings,
    state: AcmeState,
    held: HeldCertificate | None,
    now: float,
    spread: float,
    *,
    at_least: bool = False,
) -> float:
    """Return when to send the next request. A time too far ahead was saved under a wrong clock, and is ignored."""
    retry_after = state.not_before if state.not_before <= now + MAX_RETRY_AFTER else 0
    if state.failures and state.tried_for == request_settings(settings):
        farthest = now + RETRY_DELAYS[-1] * 2
        return max(state.next_try if state.next_try <= farthest else 0, retry_after)
    if not is_issued(settings, state, at_least=at_least):
        return retry_after
    due = min(state.issued_at, now) + gap(held.not_after - held.not_before if held else LEAST_GAP)
    if held is not None and not held.self_signed:
        due = max(due, renewal(held.not_before, held.not_after, settings.renew_before, spread))
    return max(due, retry_after)
