"""Provider pools: destinations that share limits because one provider receives their mail. No I/O.

The name of an MX host selects the pool: thousands of domains use Google's servers, and Google counts their mail
together. Every other host belongs to the pool of its organisation, the registered domain of its name.

A server counts as a provider's once it has completed an SMTP opening at an address of a host under one of the
provider's names (`ProviderServers`). Only the provider publishes addresses for these names, so a customer's MX record
can lead to a provider's server but cannot make another server the provider's. Hence the rule for the table: no suffix
under which a provider's customers name machines of their own (`compute.amazonaws.com`, `abo.wanadoo.fr`).
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from appliance.config.settings import DEFAULT_POOL, Config, ConfigError, PoolSettings
from appliance.config.values import place_of


class PoolLimits(Struct, frozen=True):
    concurrency: int = 10  # sessions
    messages_per_connection: int = 100  # then delivery reconnects, so that the receiver's load balancer can balance
    per_minute: int | None = None  # messages; None: no limit


class Pool(Struct, frozen=True):
    name: str
    limits: PoolLimits = PoolLimits()
    is_provider: bool = False  # built in: a server counts for it only after it has answered


class Provider(Struct, frozen=True):
    """The suffixes of a provider's MX hosts (`*` is one label), and the initial limits of its pool."""

    name: str
    suffixes: tuple[str, ...]
    limits: PoolLimits = PoolLimits()
    is_built_in: bool = True  # False: the operator's own suffixes, whose servers count at once


# Initial limits, not promises of a provider. Providers that publish figures have theirs (Yahoo: few messages per
# connection; Orange and Free: two or three connections per address), the others have what senders commonly use.
# A pool slows down when its provider asks for less.
_BIG = PoolLimits(concurrency=20)
_STRICT = PoolLimits(concurrency=2, messages_per_connection=50, per_minute=120)
_CAREFUL = PoolLimits(concurrency=5, messages_per_connection=50)

_GOOGLE = ("aspmx.l.google.com", "gmail-smtp-in.l.google.com", "smtp.google.com", "googlemail.com", "psmtp.com")
_MICROSOFT = ("protection.outlook.com", "mx.microsoft", "protection.office365.us")
_GODADDY = tuple(
    f"{host}.{region}secureserver.net" for region in ("", "europe.", "asia.") for host in ("smtp", "mailstore1")
)
_IONOS = tuple(
    f"{host}.{domain}"
    for domain in ("kundenserver.de", "ionos.com", "ionos.de", "ionos.co.uk", "ionos.fr", "ionos.es", "1and1.com")
    for host in ("mx00", "mx01")
)

PROVIDERS = (
    Provider("google", _GOOGLE, _BIG),
    # outlook.com, hotmail, live
    Provider("outlook", ("olc.protection.outlook.com", "hotmail.com"), PoolLimits(10, 50)),
    Provider("microsoft365", _MICROSOFT, _BIG),
    Provider("yahoo", ("yahoodns.net", "mx.aol.com"), PoolLimits(10, 20)),
    Provider("yahoo-japan", ("mail.yahoo.co.jp",), _CAREFUL),
    Provider("apple", ("mail.icloud.com", "mail.me.com"), PoolLimits(10, 50)),
    Provider("zoho", ("zoho.com", "zoho.eu", "zoho.in", "zoho.com.au", "zoho.jp", "zohomail.com")),
    Provider("proton", ("protonmail.ch", "proton.me"), _CAREFUL),
    Provider("fastmail", ("messagingengine.com",)),
    Provider("mimecast", ("mimecast.com", "mimecast.co.za", "mimecast-offshore.com")),
    Provider("proofpoint", ("pphosted.com", "ppe-hosted.com")),
    Provider("barracuda", ("ess.barracudanetworks.com",)),
    Provider("cisco", ("iphmx.com",)),
    Provider("messagelabs", ("messagelabs.com",)),
    Provider("trendmicro", ("tmes.trendmicro.com", "tmes.trendmicro.eu", "hes.trendmicro.com", "hes.trendmicro.eu")),
    Provider("hornetsecurity", ("hornetsecurity.com", "antispameurope.com")),
    Provider("spamexperts", ("antispamcloud.com",)),
    Provider("rackspace", ("emailsrvr.com",)),
    Provider("amazon", ("inbound-smtp.*.amazonaws.com",)),
    Provider("godaddy", _GODADDY, _CAREFUL),
    Provider("ionos", _IONOS, _CAREFUL),
    Provider("gmx", ("gmx.net", "web.de", "mail.com"), _CAREFUL),  # one operator, with one opinion of us
    Provider("t-online", tuple(f"mx0{number}.t-online.de" for number in range(4)), _CAREFUL),
    Provider("strato", ("smtpin.rzone.de", "smtp.rzone.de")),
    Provider("ovh", ("mail.ovh.net",)),
    Provider("gandi", ("mail.gandi.net",)),
    Provider("orange", ("smtp-in.orange.fr", "smtp-in.wanadoo.fr"), _STRICT),
    Provider("free", ("mx1.free.fr", "mx2.free.fr"), _STRICT),
    Provider("sfr", ("smtp-in.sfr.fr",), _STRICT),
    Provider("laposte", ("laposte.net",), _STRICT),
    Provider("comcast", tuple(f"{host}.comcast.net" for host in ("mxge", "mxcm", "mx1", "mx2")), PoolLimits(10, 50)),
    Provider("att", tuple(f"{site}-ip4-mx-vip{n}.prodigy.net" for site in ("al", "ff") for n in (1, 2)), _CAREFUL),
    Provider("charter", ("mx0.charter.net", "mx1.charter.net", "msg.*.co.charter.net", "email.rr.com"), _CAREFUL),
    Provider("bt", ("mx.bt.*.cpcloud.co.uk", "mx.btinternet.com"), _CAREFUL),
    Provider("libero", ("smtp-in.libero.it", "smtp-in.iol.it"), _CAREFUL),
    Provider("yandex", ("mx.yandex.ru", "mx.yandex.net", "mx.yandex.com")),
    Provider("mailru", ("mxs.mail.ru", "emx.mail.ru"), _CAREFUL),
    Provider("seznam", ("seznam.cz",), _CAREFUL),
    Provider("qq", ("qq.com",), _CAREFUL),
    Provider("netease", ("163.com", "126.com", "netease.com"), _CAREFUL),
    Provider("naver", ("naver.com",), _CAREFUL),
)

STARRED_LABELS = 6  # of a suffix with `*`; anyone can publish a name of 125 labels, which would have 7,500 of them

# The second level under which country registries register (`example.co.uk`). A rule of thumb instead of the public
# suffix list: where it errs, two organisations share a pool or one has two, and no mail is lost.
_SECOND_LEVEL = re.compile(r"(?:ac|co|com|edu|gob|gov|gouv|go|mil|ne|net|or|org|gv|ltd|plc|nom|firm|web|id|me|sch)")


def organisation(host: str) -> str:
    """The registered domain of a host name, by rule of thumb; for an IP address (of a relay) the address."""
    labels = host.lower().rstrip(".").split(".")
    if labels[-1].isdigit():
        return host
    country = len(labels) > 2 and len(labels[-1]) == 2 and _SECOND_LEVEL.fullmatch(labels[-2])
    return ".".join(labels[-3 if country else -2 :])


def by_suffix(providers: Iterable[Provider]) -> dict[str, Pool]:
    """The pools of a table, by suffix; a later row for a suffix replaces an earlier one."""
    return {
        suffix: Pool(provider.name, provider.limits, provider.is_built_in)
        for provider in providers
        for suffix in provider.suffixes
    }


def _suffixes(host: str) -> Iterator[str]:
    """The keys that a host may have in the table, longest first; each also with `*` for one inner label."""
    labels = host.lower().rstrip(".").split(".")
    for at in range(len(labels)):
        rest = labels[at:]
        yield ".".join(rest)
        for star in range(1, len(rest) - 2) if len(rest) <= STARRED_LABELS else ():
            yield ".".join((*rest[:star], "*", *rest[star + 1 :]))


class ProviderPools(Struct, frozen=True):
    """The pools of the providers, and one for each other organisation with the limits of `others`."""

    providers: Mapping[str, Pool] = field(default_factory=lambda: by_suffix(PROVIDERS))
    others: PoolLimits = PoolLimits()

    def of(self, host: str) -> Pool:
        """The pool for the name of an MX host; the longest suffix decides."""
        for suffix in _suffixes(host):
            if pool := self.providers.get(suffix):
                return pool
        return Pool(organisation(host), self.others)


# ---- the operator's settings
def pools(config: Config) -> ProviderPools:
    """The built-in pools with the operator's changes, and the operator's own."""
    tables = config.delivery.pools
    others = _limits(tables.get(DEFAULT_POOL, PoolSettings()), PoolLimits())
    # A built-in pool loses the hosts that the operator assigns to another pool.
    assigned = tuple(f".{suffix}" for table in tables.values() for suffix in table.suffixes)
    rows: dict[str, Provider] = {}
    for provider in PROVIDERS:
        suffixes = tuple(suffix for suffix in provider.suffixes if not f".{suffix}".endswith(assigned))
        rows[provider.name] = replace(provider, suffixes=suffixes)
    for name, table in tables.items():
        if name == DEFAULT_POOL:
            continue
        built_in = rows.get(name)
        if built_in is None and not table.suffixes:
            names = ", ".join(sorted(provider.name for provider in PROVIDERS))
            reason = f"missing: {name} is not a built-in pool ({names})"
            raise ConfigError(str(config.source), f"{place_of('delivery.pools', name)}.suffixes", reason)
        start = built_in or Provider(name, (), others)
        suffixes, is_built_in = table.suffixes or start.suffixes, built_in is not None and not table.suffixes
        rows[name] = replace(start, suffixes=suffixes, limits=_limits(table, start.limits), is_built_in=is_built_in)
    # The operator's rows come last, because the last row for a suffix counts.
    ordered = sorted(rows.values(), key=lambda provider: provider.name in tables)
    return ProviderPools(by_suffix(ordered), others)


def pool_names(config: Config) -> frozenset[str]:
    return frozenset({provider.name for provider in PROVIDERS} | config.delivery.pools.keys()) - {DEFAULT_POOL}


def _limits(table: PoolSettings, start: PoolLimits) -> PoolLimits:
    per_connection = table.messages_per_connection or start.messages_per_connection
    per_minute = start.per_minute if table.per_minute is None else table.per_minute or None
    return PoolLimits(table.concurrency or start.concurrency, per_connection, per_minute)
