"""Networks from which a client has authenticated lately: the connection tables keep room for them."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from appliance.net.address_policy import client_network

REMEMBERED = 10_000  # networks; the longest unseen are forgotten first
LIFETIME = 24 * 60 * 60.0  # seconds


@dataclass(slots=True)
class KnownNetworks:
    """Shared by HTTP and SMTP. In memory: after a restart a network is known with its first authenticated request."""

    clock: Callable[[], float] = time.monotonic
    _seen: OrderedDict[str, float] = field(default_factory=OrderedDict)

    def note(self, address: str) -> None:
        """A client has authenticated from this address."""
        network = client_network(address)
        self._seen[network] = self.clock()
        self._seen.move_to_end(network)
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)

    def __contains__(self, network: str) -> bool:
        """Whether that was so within the last day."""
        seen = self._seen.get(network)
        return seen is not None and self.clock() - seen < LIFETIME

    @property
    def any(self) -> bool:
        """Whether there has been one at all."""
        return bool(self._seen)
