"""In charge of putting the HTTP side together: which parts there are, and what each is given."""

from functools import partial

import trio

from appliance.accept import Deliveries, FrontDoor
from appliance.config import Config, Mode
from appliance.disk import FreeSpace
from appliance.guesses import Guesses
from appliance.keyfile import derive
from appliance.outside import Outside
from appliance.rates import RequestRate
from appliance.store import Store
from appliance.web import health, openapi, session, suppressions, templates
from appliance.web.app import Services, create_app
from appliance.web.auth import Authenticator
from appliance.web.edge import Edge
from appliance.web.tokens import Tokens


async def _check_ready(door: FrontDoor, store: Store) -> None:
    """Raise unless mail could be stored right now."""
    door.check_disk()
    await store.check_writable()


def build(
    config: Config, outside: Outside, store: Store, key: bytes, stopping: trio.Event, deliveries: Deliveries
) -> Edge:
    """The ASGI application, ready to be served."""
    limits = config.limits
    free_space = FreeSpace(config.server.data_dir, limits.min_free_disk, limits.min_free_disk_percent, outside)
    guesses, tokens = Guesses(outside), Tokens(derive(key, "dashboard tokens"), outside)
    auth = Authenticator(store, outside, tokens, guesses)
    door = FrontDoor(store, outside, deliveries, free_space, sandbox=config.delivery.mode is Mode.SANDBOX)
    services = Services(store, outside, auth, stopping)
    blueprints = [
        health.blueprint(stopping, partial(_check_ready, door, store)),
        openapi.blueprint(config.http.base_url),
        session.blueprint(services, tokens, guesses),
        templates.blueprint(services),
        suppressions.blueprint(services),
    ]
    rate = RequestRate(limits.requests_per_second, outside)
    return Edge(door, store, outside, auth, rate, config.http, stopping, create_app(blueprints))
