"""How much mail the listener accepts from one client network, and for one token, feedback address and account.

Two limits work together. A rate, counted on this node, keeps a flood from taking the time of the event loop and of the
storage. A share of the queue, counted in the store for all nodes, keeps a flood from filling the queue while the worker
is slow. Either refuses with a temporary reply, so an honest server delivers its mail later.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from appliance.environment import Environment
from appliance.feedback.return_path import FeedbackAddress
from appliance.intake.limits import RequestRate
from appliance.model.feedback import QueueShare, ShareScope

# Mails a second, and at once. A relay that sends all mail returns all its bounces from one address.
RATES: Final = {
    ShareScope.NETWORK: (20.0, 200.0),
    ShareScope.ACCOUNT: (30.0, 500.0),
    ShareScope.ADDRESS: (1.0, 50.0),  # from each network, so that a flood does not keep honest reports out
    ShareScope.TOKEN: (1 / 60, 20.0),  # one recipient of one message: a bounce, delays, automatic replies
}
RATE_REFUSAL: Final = "Too much mail for this address, or from your network. Try again later."


@dataclass(slots=True)
class FeedbackRates:
    env: Environment
    _buckets: dict[ShareScope, RequestRate] = field(init=False)

    def __post_init__(self) -> None:
        rate = partial(RequestRate, env=self.env, refusal=RATE_REFUSAL)
        self._buckets = {scope: rate(per_second, burst=burst) for scope, (per_second, burst) in RATES.items()}

    def take(self, network: str, shares: Iterable[QueueShare]) -> None:
        """Count one mail of a network for each share with a rate; raises Refused when one of them has had too many."""
        for scope, name in shares:
            if (bucket := self._buckets.get(scope)) is not None:
                bucket.take(f"{network} {name}" if scope is ShareScope.ADDRESS else name)


def network_share(network: str) -> QueueShare:
    return QueueShare(ShareScope.NETWORK, network)


def address_shares(address: FeedbackAddress, owners: Iterable[str]) -> list[QueueShare]:
    """What mail to an address is counted by; `owners` are the accounts with that return path.

    The tokens and feedback addresses of a return path that has no owner, or several, count for its name.
    """
    accounts = sorted(set(owners))
    owner = accounts[0] if len(accounts) == 1 else address.domain
    if address.token is not None:
        return [QueueShare(ShareScope.TOKEN, address.token), QueueShare(ShareScope.ACCOUNT, owner)]
    return [
        QueueShare(ShareScope.ADDRESS, f"{address.report}@{address.domain}"),
        QueueShare(ShareScope.ACCOUNT_WITHOUT_TOKEN, owner),
    ]
