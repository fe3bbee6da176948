"""When to ask for a certificate: in time before the current one expires, and ever more rarely after failures. No I/O.

Times are seconds since 1970. `doctor` uses it as well.
"""

from appliance.acme.files import AcmeState, HeldCertificate
from appliance.acme.messages import MAX_RETRY_AFTER
from appliance.config.settings import AcmeSettings

# Seconds after each failure in a row; the last one repeats. Authorities count failures by the hour: Let's Encrypt
# allows five for a name, and these are four in the first one.
RETRY_DELAYS = (60.0, 300.0, 1800.0, 3600.0, 21600.0)
RETRY_SPREAD = 0.1  # of a delay, either way, so that servers that failed together do not retry together
RENEWAL_SPREAD = 0.1  # of the time before the end, earlier: likewise for servers that began together
LEAST_GAP, LEAST_LIFETIME_SHARE = 3600.0, 0.4  # seconds, or share of a lifetime: the least between two certificates
OVERDUE = 0.5  # of the time before the end: by then renewal should have succeeded


def time_before(not_before: float, not_after: float, wanted: float | None) -> float:
    """How long before its end a certificate is renewed: a third of its life, or what the operator wants.

    At most half of its lifetime: a short-lived one would otherwise be renewed again and again.
    """
    life = max(not_after - not_before, 0.0)
    return life / 3 if wanted is None else min(wanted, life / 2)


def renewal(not_before: float, not_after: float, wanted: float | None, spread: float) -> float:
    """When to renew a certificate; `spread` is a random number from 0 to 1, fixed for each certificate."""
    return not_after - time_before(not_before, not_after, wanted) * (1 + RENEWAL_SPREAD * spread)


def gap(life: float) -> float:
    """Seconds for which no other is requested, even if this one seems wrong: it may be the clock that is."""
    return min(LEAST_GAP, max(life, 0.0) * LEAST_LIFETIME_SHARE)


def overdue(not_before: float, not_after: float, wanted: float | None) -> float:
    """From when on a certificate that was not renewed deserves a warning."""
    return not_after - time_before(not_before, not_after, wanted) * OVERDUE


def retry(failures: int, spread: float) -> float:
    """Seconds until the next try after so many failures in a row, at least one; `spread` is from 0 to 1."""
    delay = RETRY_DELAYS[min(failures, len(RETRY_DELAYS)) - 1]
    return delay * (1 + RETRY_SPREAD * (2 * spread - 1))


def certificate_wanted(settings: AcmeSettings) -> str:
    """What a certificate is requested with; when it changes, a new certificate is needed."""
    return " ".join((settings.directory, *settings.names))


def is_issued(settings: AcmeSettings, state: AcmeState, *, at_least: bool) -> bool:
    """Whether the certificate is the one that is wanted; with `at_least` it may have more names."""
    if not at_least:
        return state.issued_for == certificate_wanted(settings)
    directory, *names = state.issued_for.split(" ")
    return directory == settings.directory and names != [] and set(settings.names) <= set(names)


def wanted(settings: AcmeSettings) -> str:
    """All settings that a request depends on; when they change, earlier failures no longer count."""
    return f"{certificate_wanted(settings)} {settings.email}"


def due_at(
    settings: AcmeSettings,
    state: AcmeState,
    held: HeldCertificate | None,
    now: float,
    spread: float,
    *,
    at_least: bool = False,
) -> float:
    """When to send the next request. A time too far away was saved under a wrong clock, and does not count."""
    retry_after = state.not_before if state.not_before <= now + MAX_RETRY_AFTER else 0
    if state.failures and state.tried_for == wanted(settings):
        farthest = now + RETRY_DELAYS[-1] * 2
        return max(state.next_try if state.next_try <= farthest else 0, retry_after)
    if not is_issued(settings, state, at_least=at_least):
        return retry_after
    due = min(state.issued_at, now) + gap(held.not_after - held.not_before if held else LEAST_GAP)
    if held is not None and not held.self_signed:
        due = max(due, renewal(held.not_before, held.not_after, settings.renew_before, spread))
    return max(due, retry_after)
