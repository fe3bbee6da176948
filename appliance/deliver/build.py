"""In charge of putting delivery together: which parts there are, and what each is given."""

from collections.abc import Callable
from math import inf

from appliance.config.load import Config
from appliance.deliver.attempt import Courier
from appliance.deliver.connections import Connections
from appliance.deliver.due_mail import Selection
from appliance.deliver.from_settings import pools, relays
from appliance.deliver.metrics import name_pools
from appliance.deliver.outcome_record import Retries
from appliance.deliver.policy_fetch import PolicyFetcher
from appliance.deliver.pool_limiters import Gates
from appliance.deliver.proofs import Proofs
from appliance.deliver.route import Router
from appliance.deliver.route_cache import SharedRoutes
from appliance.deliver.scheduler import Dispatch
from appliance.deliver.signer import Signer
from appliance.deliver.tls_choice import TlsChoice
from appliance.deliver.tls_policy import TlsPolicies
from appliance.deliver.warmups import Warmups
from appliance.dns.resolver import DnsResolver
from appliance.keys.dkim_keys import SigningKeys
from appliance.net.local_addresses import LocalAddresses
from appliance.outside import Outside
from appliance.store import Store
from appliance.store.new_mail import Inbox
from appliance.tls.trust import verifying_context


def build(
    config: Config, outside: Outside, store: Store, key: bytes, inbox: Inbox, stop_by: Callable[[], float] = lambda: inf
) -> Dispatch:
    """Delivery to the world, ready to run; `stop_by` says when it has to have ended once it is stopped."""
    name_pools(config.delivery.pools)
    delivery, own = config.delivery, LocalAddresses(frozenset(config.delivery.own_addresses))
    resolver = DnsResolver(config.dns.resolvers)
    own_names = frozenset({config.server.hostname})
    router = Router(
        resolver, outside.random, delivery.mx_port, delivery.allow_networks, own, own_names, relays(delivery)
    )
    trusting = verifying_context(delivery.ca_file)
    policies = TlsPolicies(resolver, PolicyFetcher(resolver, trusting, delivery.allow_networks, own).fetch)
    proofs = Proofs(resolver, pools(config))
    courier = Courier(
        store,
        outside,
        Connections(),
        TlsChoice(policies, trusting),
        config.server.hostname,
        Retries(delivery.retry_delays, outside.random),
    )
    return Dispatch(
        store,
        outside,
        inbox,
        SharedRoutes(router),
        Gates(store, outside, proofs),
        Signer(SigningKeys(store, outside, key), outside),
        courier,
        Selection(store, outside, inbox),
        delivery.sessions,
        stop_by=stop_by,
        warmups=Warmups(config.warmup, store, outside, proofs.known_as) if config.warmup.enabled else None,
    )
