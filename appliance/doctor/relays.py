"""Checks the login at each relay that has a username, in the same way as delivery.

No mail is sent, and the password is sent only over TLS. `names.py` reads the greeting of a relay without login.
"""

import trio

from appliance.config.settings import Config
from appliance.deliver.route import Host, Relay, Route, configured_relays
from appliance.deliver.smtp.connection import DeadlineWatch, SmtpConnection
from appliance.deliver.smtp.protocol import NotOpened, RelayCredentials, ResultKind, Stage, Verdict
from appliance.deliver.tls_policy import NoPolicy, TlsChoice, TlsPolicies
from appliance.dns.check import addresses_of
from appliance.dns.resolver import LookupFailed, Resolver
from appliance.doctor import Finding, fault, not_looked_up, ok, warning
from appliance.environment import Environment
from appliance.errors import error_text
from appliance.net.address_policy import Address
from appliance.report.explain import encryption
from appliance.tls.certificate import verifying_context

LOGIN_TIMEOUT = 10.0  # seconds for a connection, TLS and the login


def with_login(config: Config) -> list[Relay]:
    """Return the relays with a login, without duplicates."""
    known = configured_relays(config.delivery)
    every = [*([known.default] if known.default else []), *known.by_domain.values()]
    return list(dict.fromkeys(relay for relay in every if relay.username))


async def check_login(resolver: Resolver, config: Config, env: Environment, relay: Relay) -> list[Finding]:
    """Log in to a relay, at the first address that answers."""
    try:
        addresses = await addresses_of(resolver, relay.host)
    except LookupFailed as failed:
        return [not_looked_up("relay", relay.host, failed.text)]
    trouble = "it has no address"
    for address in addresses[:2]:
        try:
            with trio.fail_after(LOGIN_TIMEOUT):
                tls = await _log_in(resolver, config, env, relay, address)
        except NotOpened as failure:
            return [judge_login(relay, failure.verdict)]
        except trio.TooSlowError:
            trouble = f"no login at {address} within {LOGIN_TIMEOUT:.0f} s"
        except OSError as error:
            trouble = f"{address}: {error_text(error)}"
        else:
            return [ok("relay", relay.host, f"accepts our login, {encryption(tls)}")]
    return [fault("relay", relay.host, f"login failed: {trouble}", "Check its name, port and firewall.")]


def judge_login(relay: Relay, verdict: Verdict) -> Finding:
    """Judge a session with a relay that could not be opened."""
    if verdict.stage is Stage.AUTH and verdict.kind is ResultKind.REJECTED:
        advice = "Check relay_username and relay_password, or username and password of the domain's relay."
        return fault("relay", relay.host, f"rejects our login: {verdict.text}", advice)
    advice = "Its mail stays queued; check the relay's settings, TLS first."
    kind = warning if verdict.kind is ResultKind.DEFERRED else fault
    return kind("relay", relay.host, f"login failed: {verdict.text}", advice)


async def _log_in(resolver: Resolver, config: Config, env: Environment, relay: Relay, address: Address) -> str | None:
    """Open and close a session; return its encryption. Raises NotOpened or OSError."""
    host = Host(relay.host, (address,))
    route = Route("", (host,), relay.port, relay=relay)
    choice = TlsChoice(TlsPolicies(resolver, _no_policy), verifying_context(config.delivery.ca_file))
    connection = await SmtpConnection.open(
        await env.dial(str(address), relay.port),
        config.server.hostname,
        watch=DeadlineWatch(),
        tls=choice.plan(await choice.policies.demand(route, host), route, host),
        credentials=RelayCredentials(relay.username, relay.password),
    )
    await connection.quit()
    return str(connection.tls) if connection.tls else None


async def _no_policy(domain: str) -> str:
    raise NoPolicy("the operator chooses a relay's TLS")
