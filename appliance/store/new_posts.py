"""In charge of telling the webhook dispatcher whose posts have just been written, so that it need not search for them.

The store stays the truth: the dispatcher also looks there by itself, so nothing depends on this but time.
"""

from collections.abc import Iterable

from appliance.concurrency.wake import Wake


class Bell:
    """Accounts that have something to be posted since somebody last looked."""

    def __init__(self) -> None:
        self._wake = Wake()
        self._rung: set[str] = set()

    def ring(self, accounts: Iterable[str]) -> None:
        """Something of these accounts is on disk, to be posted at once."""
        self._rung.update(accounts)
        self._wake.set()

    def stir(self) -> None:
        """Let the waiter go on, without a look at anybody."""
        self._wake.set()

    def take(self) -> set[str]:
        """Those who rang since the last time."""
        rung, self._rung = self._rung, set()
        return rung

    async def wait(self, seconds: float) -> None:
        """Return after `seconds`, or as soon as there is something to do."""
        await self._wake.wait(seconds)
