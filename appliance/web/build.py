"""Assembles the HTTP service: the edge, the API's routes and the dashboard."""

from collections.abc import Awaitable, Callable

import trio

from appliance.config.settings import Config
from appliance.environment import Environment
from appliance.intake.accept import IntakeServices
from appliance.keys.dkim_keys import SigningKeys
from appliance.keys.keyfile import derive
from appliance.keys.secrets import PasswordHasher, TotpSecrets, WebhookSecrets
from appliance.store import Store
from appliance.system import memory
from appliance.web import openapi, pages, unsubscribe
from appliance.web.api.message_body import MessageBodies
from appliance.web.app import ApiServices, create_app, route_classes
from appliance.web.auth import Authenticator
from appliance.web.body import BodyBudgets
from appliance.web.edge import Edge
from appliance.web.live import LiveStreams
from appliance.web.login_check import LoginCheck
from appliance.web.operations import operations_of
from appliance.web.session_proofs import SessionCookies, Tokens


def build(
    config: Config,
    env: Environment,
    store: Store,
    key: bytes,
    stopping: trio.Event,
    intake_services: IntakeServices,
    check_webhook_url: Callable[[str], Awaitable[str | None]],
) -> Edge:
    intake, tokens = intake_services.intake, Tokens(derive(key, "dashboard tokens"), env)
    auth = Authenticator(
        store, env, tokens, intake_services.credentials, intake_services.known, config.dashboard.require_totp
    )
    hashing, routes = PasswordHasher(), route_classes()
    operations = [operation for kind in routes for _, operation in operations_of(kind)]
    services = ApiServices(
        config=config,
        store=store,
        env=env,
        auth=auth,
        intake=intake,
        logins=LoginCheck(store, intake_services.guesses, hashing, TotpSecrets(key, env)),
        hashing=hashing,
        cookies=SessionCookies(derive(key, "dashboard cookies"), config.http.base_url),
        signing_keys=SigningKeys(store, env, key),
        webhook_secrets=WebhookSecrets(key, env),
        bodies=MessageBodies(store),
        operations=operations,
        check_webhook_url=check_webhook_url,
        stopping=stopping,
    )
    site = pages.read_site()
    blueprints = (
        openapi.blueprint(config.http.base_url),
        pages.blueprint(site, sandbox=intake.sandbox),
        unsubscribe.blueprint(site, services),
    )
    app = create_app(auth, [kind(services) for kind in routes], blueprints)
    return Edge(
        intake=intake,
        store=store,
        env=env,
        auth=auth,
        rate=intake_services.rate,
        read_rate=intake_services.read_rate,
        settings=config.http,
        stopping=stopping,
        pages=app,
        open_bodies=frozenset(known.path for known in operations if known.body and not known.permission),
        budgets=BodyBudgets(memory.for_messages(config.http.body_memory)),
        streams=LiveStreams(intake.accepted, stopping),
    )
