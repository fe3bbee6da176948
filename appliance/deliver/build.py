"""Builds delivery from the configuration."""

from collections.abc import Callable
from functools import partial

from appliance.config.settings import Config
from appliance.deliver.attempt import Deliverer
from appliance.deliver.observation import NAMED_POOLS
from appliance.deliver.outcome import Retries
from appliance.deliver.pending import DueMail
from appliance.deliver.pool_limiters import PoolLimiters, ProviderServers
from appliance.deliver.preparing import Preparing, Signer
from appliance.deliver.providers import pools
from appliance.deliver.ramp import Ramp
from appliance.deliver.route import RouteCache, Router, configured_relays
from appliance.deliver.scheduler import Scheduler
from appliance.deliver.smtp.connection import Connections
from appliance.deliver.sources import Sources
from appliance.deliver.tls_policy import PolicyFetcher, TlsChoice, TlsPolicies
from appliance.deliver.warmup import Warmup
from appliance.dns.resolver import DnsResolver
from appliance.environment import Environment
from appliance.feedback.return_path import ReturnPaths
from appliance.keys.dkim_keys import SigningKeys
from appliance.model.sources import configured_sources, node_name
from appliance.model.streams import configured_streams
from appliance.net.local_addresses import LocalAddresses
from appliance.store import Store
from appliance.store.new_mail import NewMail
from appliance.tls.certificate import verifying_context


def build(
    config: Config, env: Environment, store: Store, key: bytes, new_mail: NewMail, *, stop_by: Callable[[], float]
) -> Scheduler:
    NAMED_POOLS.update(config.delivery.pools)
    delivery, others = config.delivery, store.engine.others
    own = LocalAddresses(frozenset(delivery.own_addresses), lambda: others().addresses)
    resolver = DnsResolver(config.dns.resolvers)
    router = Router(
        resolver,
        env.random,
        port=delivery.mx_port,
        allowed=delivery.allow_networks,
        own=own,
        own_names=lambda: {config.server.hostname} | others().names,
        relays=configured_relays(delivery),
    )
    trusting = verifying_context(delivery.ca_file)
    policies = TlsPolicies(resolver, PolicyFetcher(resolver, trusting, delivery.allow_networks, own).fetch)
    servers = ProviderServers(pools(config))
    limiters = PoolLimiters(store, env, servers)
    ramp = Ramp(store, config, resolver, servers.pools, configured_relays(delivery), env.random, limiters.publish_pool)
    warmup = Warmup(config.warmup, store, env, servers.known_as)
    streams = configured_streams(delivery.streams)
    sources = Sources(store, env, limiters, configured_sources(config), streams, node_name(config), ramp.is_relayed)
    due_mail = partial(DueMail, store, env, new_mail, via_of=ramp.via, lanes_of=ramp.lanes)
    signer = Signer(SigningKeys(store, env, key), env, return_paths=bool(config.inbound.bind))
    return Scheduler(
        new_mail=new_mail,
        due_mail=(due_mail(low=0), due_mail(low=1)),
        preparing=Preparing(store, RouteCache(router), signer, ramp),
        deliverer=Deliverer(
            store=store,
            env=env,
            connections=Connections(),
            tls=TlsChoice(policies, trusting),
            hello_name=config.server.hostname,
            retries=Retries(delivery.retry_delays, env.random),
            limiters=limiters,
            warmup=warmup,
            return_paths=ReturnPaths(key),
            sources=sources,
            ramp=ramp,
        ),
        sessions=delivery.sessions,
        stop_by=stop_by,
    )
