"""In charge of putting webhooks together: which parts there are, and what each is given."""

from dataclasses import dataclass

import trio

from appliance.config.settings import Config
from appliance.dns.resolver import DnsResolver
from appliance.keys.webhook_secrets import WebhookSecrets
from appliance.outside import Outside
from appliance.store import Store
from appliance.webhook.dispatcher import Dispatcher
from appliance.webhook.from_settings import poster
from appliance.webhook.post import Poster

CLOSE_EVERY = 5.0  # seconds between two looks for connections that nobody needs


@dataclass(frozen=True, slots=True)
class Office:
    """Who posts, and who has it done."""

    poster: Poster
    dispatcher: Dispatcher

    async def run(self) -> None:
        """Post whatever is due, for ever; close the connections at the end."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._close_idle)
                await self.dispatcher.run()
        finally:
            with trio.CancelScope(shield=True):
                await self.poster.aclose()

    async def _close_idle(self) -> None:
        while True:
            await trio.sleep(CLOSE_EVERY)
            await self.poster.close_idle()


def build(config: Config, outside: Outside, store: Store, key: bytes) -> Office:
    """Webhooks, ready to run; raises ConfigError when the settings cannot be used."""
    posts = poster(config, DnsResolver(config.dns.resolvers), outside)
    secrets = WebhookSecrets(key, outside)
    return Office(posts, Dispatcher(store, outside, secrets, posts, config.webhooks.retry_delays))
