"""Puts the HTTP service together: the edge, the routes of the API, and the dashboard."""

import trio

from appliance.config.settings import Config
from appliance.intake.accept import IntakeServices
from appliance.keys.dkim_keys import SigningKeys
from appliance.keys.keyfile import derive
from appliance.keys.passwords import PasswordHasher
from appliance.keys.webhook_secrets import WebhookSecrets
from appliance.outside import Outside
from appliance.store import Store
from appliance.system import memory
from appliance.web import openapi, pages
from appliance.web.api import warnings
from appliance.web.api.account import AccountRoutes
from appliance.web.api.admin_accounts import AdminAccountRoutes
from appliance.web.api.admin_queue import AdminQueueRoutes
from appliance.web.api.credentials import ApiKeyRoutes, SmtpCredentialRoutes
from appliance.web.api.domains import DomainLookups, DomainRoutes
from appliance.web.api.emails import EmailRoutes
from appliance.web.api.login import LoginRoutes, SessionRoutes
from appliance.web.api.message_body import MessageBodies
from appliance.web.api.send_test import SendTestRoutes
from appliance.web.api.stats import StatsRoutes
from appliance.web.api.suppressions import SuppressionRoutes
from appliance.web.api.templates import TemplateRoutes
from appliance.web.api.webhook import CheckUrl, WebhookRoutes
from appliance.web.api.webhook_deliveries import WebhookDeliveryRoutes, replay_rate
from appliance.web.app import ApiServices, create_app
from appliance.web.auth import Authenticator
from appliance.web.body import BodyBudgets
from appliance.web.edge import Edge
from appliance.web.health import HealthRoutes
from appliance.web.session_cookie import SessionCookies
from appliance.web.tokens import Tokens


def build(
    config: Config,
    outside: Outside,
    store: Store,
    key: bytes,
    stopping: trio.Event,
    intake_services: IntakeServices,
    check_webhook_url: CheckUrl,
) -> Edge:
    intake, tokens = intake_services.intake, Tokens(derive(key, "dashboard tokens"), outside)
    auth = Authenticator(store, outside, tokens, intake_services.credentials, intake_services.known)
    cookies = SessionCookies(derive(key, "dashboard cookies"), config.http.base_url)
    services, hashing = ApiServices(store, outside, auth), PasswordHasher()
    post_attempts = len(config.webhooks.retry_delays) + 1
    mail_attempts = len(config.delivery.retry_delays) + 1
    routes = (
        HealthRoutes(store, intake, stopping),
        LoginRoutes(services, tokens, cookies, guesses=intake_services.guesses, hashing=hashing),
        SessionRoutes(services),
        AccountRoutes(services, config, warnings.warner(store, intake.free_space), intake.quota),
        DomainRoutes(services, DomainLookups(services, config, SigningKeys(store, outside, key))),
        SmtpCredentialRoutes(services),
        ApiKeyRoutes(services),
        SendTestRoutes(services, intake),
        EmailRoutes(services, MessageBodies(store), intake.workers, config.warmup, max_attempts=mail_attempts),
        StatsRoutes(services),
        AdminAccountRoutes(services, hashing),
        AdminQueueRoutes(services, config.warmup),
        TemplateRoutes(services, intake.quota),
        SuppressionRoutes(services, intake.quota),
        WebhookRoutes(services, WebhookSecrets(key, outside), check_webhook_url, post_attempts),
        WebhookDeliveryRoutes(services, intake.workers, post_attempts, replay_rate(outside)),
    )
    app = create_app(services, routes, (openapi.blueprint(config.http.base_url), pages.blueprint()))
    budgets = BodyBudgets(memory.for_messages(config.http.body_memory))
    return Edge(
        intake=intake,
        store=store,
        outside=outside,
        auth=auth,
        rate=intake_services.rate,
        settings=config.http,
        stopping=stopping,
        pages=app,
        budgets=budgets,
    )
