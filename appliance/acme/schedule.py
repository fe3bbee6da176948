"""In charge of when to ask for a certificate: in time before the old one ends, ever more rarely after failures. PURE.

Times are seconds since 1970.
"""

# Seconds after each failure in a row; the last ever after. Authorities count failures by the hour: Let's Encrypt allows
# five for a name, and these are four in the first one.
RETRY_DELAYS = (60.0, 300.0, 1800.0, 3600.0, 21600.0)
RETRY_SPREAD = 0.1  # of a delay, either way, so that not all who failed come back at the same time
RENEWAL_SPREAD = 0.1  # of the time before the end, earlier: the same for those who began at the same time
LEAST_GAP, LEAST_SHARE = 3600.0, 0.4  # seconds, or share of a life, that lie between two certificates at least
OVERDUE = 0.5  # of the time before the end: who has not renewed by then has trouble


def time_before(not_before: float, not_after: float, wanted: float | None) -> float:
    """How long before its end a certificate is renewed: a third of its life, or what the operator wants.

    That is half of its life at most: else a short-lived one would be renewed as soon as it is there, for ever.
    """
    life = max(not_after - not_before, 0.0)
    return life / 3 if wanted is None else min(wanted, life / 2)


def renewal(not_before: float, not_after: float, wanted: float | None, spread: float) -> float:
    """When to renew a certificate; `spread` is a random number from 0 to 1, the same for as long as one looks."""
    return not_after - time_before(not_before, not_after, wanted) * (1 + RENEWAL_SPREAD * spread)


def gap(life: float) -> float:
    """Seconds for which no other is asked for, whatever is wrong with a certificate: the clock may be."""
    return min(LEAST_GAP, max(life, 0.0) * LEAST_SHARE)


def overdue(not_before: float, not_after: float, wanted: float | None) -> float:
    """From when on a certificate that has not been renewed is worth a word."""
    return not_after - time_before(not_before, not_after, wanted) * OVERDUE


def retry(failures: int, spread: float) -> float:
    """Seconds until the next try after so many failures in a row, at least one; `spread` is from 0 to 1."""
    delay = RETRY_DELAYS[min(failures, len(RETRY_DELAYS)) - 1]
    return delay * (1 + RETRY_SPREAD * (2 * spread - 1))
