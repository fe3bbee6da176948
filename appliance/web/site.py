"""In charge of putting the HTTP side together: which parts there are, and what each is given."""

import trio

from appliance.accept import FrontDoor
from appliance.config import Config, Mode
from appliance.disk import FreeSpace
from appliance.guesses import Guesses
from appliance.keyfile import derive
from appliance.outside import Outside, Wake
from appliance.rates import RequestRate
from appliance.store import Store
from appliance.web import health, openapi, session, suppressions, templates
from appliance.web.app import Services, create_app
from appliance.web.auth import Authenticator
from appliance.web.edge import Edge
from appliance.web.tokens import Tokens


def build(
    config: Config, outside: Outside, store: Store, key: bytes, stopping: trio.Event, wake_delivery: Wake
) -> Edge:
    """The ASGI application, ready to be served."""
    limits = config.limits
    free_space = FreeSpace(config.server.data_dir, limits.min_free_disk, limits.min_free_disk_percent, outside)
    guesses, tokens = Guesses(outside), Tokens(derive(key, "dashboard tokens"), outside)
    auth = Authenticator(store, outside, tokens, guesses)
    door = FrontDoor(store, outside, wake_delivery, free_space, sandbox=config.delivery.mode is Mode.SANDBOX)
    services = Services(store, outside, auth, stopping)
    blueprints = [
        health.blueprint(stopping, store.check_writable),
        openapi.blueprint(config.http.base_url),
        session.blueprint(services, tokens, guesses),
        templates.blueprint(services),
        suppressions.blueprint(services),
    ]
    rate = RequestRate(limits.requests_per_second, outside)
    return Edge(door, store, outside, auth, rate, config.http, stopping, create_app(blueprints))
