"""Provider pools: which destinations share limits because one provider stands behind them. No I/O.

A destination's pool is found by the name of its MX host: thousands of domains have their mail at Google, and Google
counts them together. Every other host belongs to the pool of its organisation, the registered domain of its name.

Any domain can name a provider's host in its MX records, so a name alone proves nothing: it
subjects a destination to the limits and holds of that pool, and no more. What a server says counts for a provider's
pool only if the server has proved to be the provider's (`proofs.py`), by names no other can have. Hence the rule for
this table: no suffix under which a provider's customers have names for machines of their own (`compute.amazonaws.com`,
`abo.wanadoo.fr`, `hsd1.il.comcast.net`, `vps.ovh.net`); there only the provider's own mail hosts are named.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from appliance.config.fields import place_of
from appliance.config.settings import DEFAULT_POOL, Config, ConfigError, PoolSettings


@dataclass(frozen=True, slots=True)
class PoolLimits:
    concurrency: int = 10  # sessions
    messages_per_connection: int = 100  # then a new connection is made, which lets balancers behind it balance
    per_minute: int | None = None  # messages; None: as fast as it goes


@dataclass(frozen=True, slots=True)
class Pool:
    name: str
    limits: PoolLimits = PoolLimits()
    proof: bool = False  # a server belongs to it only once it has proved that it does


@dataclass(frozen=True, slots=True)
class Provider:
    """A row of the table: the suffixes of a provider's MX hosts, and the limits its pool starts with.

    A label of a suffix may be `*`, for any one label. `reverse` are further suffixes, of its hosts' reverse names.
    """

    name: str
    suffixes: tuple[str, ...]
    limits: PoolLimits = PoolLimits()
    reverse: tuple[str, ...] = ()
    proof: bool = True  # False: the operator's own suffixes, whose names are believed


# The limits are where to start, not what a provider promises: those that publish figures have theirs (Yahoo: few
# messages a connection; Orange and Free: two or three connections an address), the others what senders commonly use.
# The pool slows down by itself when a provider asks for less.
_BIG = PoolLimits(concurrency=20)
_STRICT = PoolLimits(concurrency=2, messages_per_connection=50, per_minute=120)
_CAREFUL = PoolLimits(concurrency=5, messages_per_connection=50)

_GOOGLE = ("aspmx.l.google.com", "gmail-smtp-in.l.google.com", "smtp.google.com", "googlemail.com", "psmtp.com")
_MICROSOFT = ("protection.outlook.com", "mx.microsoft", "protection.office365.us")
_EXCHANGE = ("inbound.protection.outlook.com",)
_GODADDY = tuple(
    f"{host}.{region}secureserver.net" for region in ("", "europe.", "asia.") for host in ("smtp", "mailstore1")
)
_IONOS = tuple(
    f"{host}.{domain}"
    for domain in ("kundenserver.de", "ionos.com", "ionos.de", "ionos.co.uk", "ionos.fr", "ionos.es", "1and1.com")
    for host in ("mx00", "mx01")
)

PROVIDERS = (
    Provider("google", _GOOGLE, _BIG, reverse=("1e100.net",)),
    # outlook.com, hotmail, live
    Provider("outlook", ("olc.protection.outlook.com", "hotmail.com"), PoolLimits(10, 50), reverse=_EXCHANGE),
    Provider("microsoft365", _MICROSOFT, _BIG, reverse=_EXCHANGE),
    Provider("yahoo", ("yahoodns.net", "mx.aol.com"), PoolLimits(10, 20), reverse=("mail.*.yahoo.com",)),
    Provider("yahoo-japan", ("mail.yahoo.co.jp",), _CAREFUL),
    Provider("apple", ("mail.icloud.com", "mail.me.com"), PoolLimits(10, 50), reverse=("apple.com", "icloud.com")),
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
    Provider("ionos", _IONOS, _CAREFUL, reverse=("mx00.perfora.net", "mx01.perfora.net")),
    Provider("gmx", ("gmx.net", "web.de", "mail.com"), _CAREFUL),  # one operator, with one opinion of us
    Provider("t-online", tuple(f"mx0{number}.t-online.de" for number in range(4)), _CAREFUL),
    Provider("strato", ("smtpin.rzone.de", "smtp.rzone.de")),
    Provider("ovh", ("mail.ovh.net",)),
    Provider("gandi", ("mail.gandi.net",)),
    Provider("orange", ("smtp-in.orange.fr", "smtp-in.wanadoo.fr"), _STRICT),
    Provider("free", ("mx1.free.fr", "mx2.free.fr"), _STRICT, reverse=("mx1-g20.free.fr", "mx2-g20.free.fr")),
    Provider("sfr", ("smtp-in.sfr.fr",), _STRICT),
    Provider("laposte", ("laposte.net",), _STRICT),
    Provider("comcast", tuple(f"{host}.comcast.net" for host in ("mxge", "mxcm", "mx1", "mx2")), PoolLimits(10, 50)),
    Provider("att", tuple(f"{site}-ip4-mx-vip{n}.prodigy.net" for site in ("al", "ff") for n in (1, 2)), _CAREFUL),
    Provider("charter", ("mx0.charter.net", "mx1.charter.net", "msg.*.co.charter.net", "email.rr.com"), _CAREFUL),
    Provider("bt", ("mx.bt.*.cpcloud.co.uk", "mx.btinternet.com"), _CAREFUL),
    Provider("libero", ("smtp-in.libero.it", "smtp-in.iol.it"), _CAREFUL),
    Provider("yandex", ("mx.yandex.ru", "mx.yandex.net", "mx.yandex.com"), reverse=("mail.yandex.net",)),
    Provider("mailru", ("mxs.mail.ru", "emx.mail.ru"), _CAREFUL),
    Provider("seznam", ("seznam.cz",), _CAREFUL),
    Provider("qq", ("qq.com",), _CAREFUL),
    Provider("netease", ("163.com", "126.com", "netease.com"), _CAREFUL),
    Provider("naver", ("naver.com",), _CAREFUL),
)

STARRED_LABELS = 6  # of a suffix with `*`; a name of 125 labels, which anyone can have, would have 7,500 of these

# The second level under which registries of countries register (`example.co.uk`). A rule of thumb in place of the
# public suffix list: where it errs, two strangers share a pool or one organisation has two, and no mail goes astray.
_SECOND_LEVEL = re.compile(r"(?:ac|co|com|edu|gob|gov|gouv|go|mil|ne|net|or|org|gv|ltd|plc|nom|firm|web|id|me|sch)")


def organisation(host: str) -> str:
    """The registered domain of a host name, by rule of thumb; an IP address, as a relay may have, stands for itself."""
    labels = host.lower().rstrip(".").split(".")
    if labels[-1].isdigit():
        return host
    country = len(labels) > 2 and len(labels[-1]) == 2 and _SECOND_LEVEL.fullmatch(labels[-2])
    return ".".join(labels[-3 if country else -2 :])


def by_suffix(providers: Iterable[Provider]) -> dict[str, Pool]:
    """The pools of a table of providers, by each suffix; a later row for a suffix replaces an earlier one."""
    return {
        suffix: Pool(provider.name, provider.limits, provider.proof)
        for provider in providers
        for suffix in provider.suffixes
    }


def by_reverse(providers: Iterable[Provider]) -> dict[str, tuple[str, ...]]:
    """The names of the pools to which a host with a reverse name below each suffix may belong."""
    names: dict[str, tuple[str, ...]] = {}
    for provider in providers:
        for suffix in (*provider.suffixes, *provider.reverse) if provider.proof else ():
            names[suffix] = (*names.get(suffix, ()), provider.name)
    return names


def _suffixes(host: str) -> Iterator[str]:
    """The keys under which a host may stand in the table, the longest first; each also with `*` for one inner label."""
    labels = host.lower().rstrip(".").split(".")
    for at in range(len(labels)):
        rest = labels[at:]
        yield ".".join(rest)
        for star in range(1, len(rest) - 2) if len(rest) <= STARRED_LABELS else ():
            yield ".".join((*rest[:star], "*", *rest[star + 1 :]))


@dataclass(frozen=True, slots=True)
class ProviderPools:
    """The pools there are: the providers', and one for each other organisation with the limits of `others`."""

    providers: Mapping[str, Pool] = field(default_factory=lambda: by_suffix(PROVIDERS))
    others: PoolLimits = PoolLimits()
    reverse: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: by_reverse(PROVIDERS))

    def of(self, host: str) -> Pool:
        """The pool that an MX host's name claims; the longest suffix decides."""
        for suffix in _suffixes(host):
            if pool := self.providers.get(suffix):
                return pool
        return Pool(organisation(host), self.others)

    def by_reverse_name(self, name: str, claimed: str) -> str | None:
        """The provider whose host has this reverse name; of several the claimed one, or none can be told."""
        for suffix in _suffixes(name):
            if names := self.reverse.get(suffix):
                return claimed if claimed in names else names[0] if len(names) == 1 else None
        return None


# ---- the operator's settings


def pools(config: Config) -> ProviderPools:
    """The built-in pools with what the operator changed, and those that the operator added."""
    tables = config.delivery.pools
    others = _limits(tables.get(DEFAULT_POOL, PoolSettings()), PoolLimits())
    # Built-in rows go without the hosts that the operator counts as another pool's.
    taken = tuple(f".{suffix}" for table in tables.values() for suffix in table.suffixes)
    known: dict[str, Provider] = {}
    for provider in PROVIDERS:
        left = tuple(suffix for suffix in provider.suffixes if not f".{suffix}".endswith(taken))
        known[provider.name] = replace(provider, suffixes=left)
    for name, table in tables.items():
        if name == DEFAULT_POOL:
            continue
        built_in = known.get(name)
        if built_in is None and not table.suffixes:
            names = ", ".join(sorted(provider.name for provider in PROVIDERS))
            reason = f"missing: {name} is no built-in pool ({names})"
            raise ConfigError(str(config.source), f"{place_of('delivery.pools', name)}.suffixes", reason)
        start = built_in or Provider(name, (), others)
        # The operator's own suffixes need no proof.
        suffixes, proof = table.suffixes or start.suffixes, built_in is not None and not table.suffixes
        known[name] = replace(start, suffixes=suffixes, limits=_limits(table, start.limits), proof=proof)
    # The operator's last, because the last row for a suffix counts.
    rows = sorted(known.values(), key=lambda provider: provider.name in tables)
    return ProviderPools(by_suffix(rows), others, by_reverse(rows))


def pool_names(config: Config) -> frozenset[str]:
    """The pools that are known by name before any mail has gone: built in, or the operator's."""
    return frozenset({provider.name for provider in PROVIDERS} | config.delivery.pools.keys()) - {DEFAULT_POOL}


def _limits(table: PoolSettings, start: PoolLimits) -> PoolLimits:
    per_connection = table.messages_per_connection or start.messages_per_connection
    per_minute = start.per_minute if table.per_minute is None else table.per_minute or None
    return PoolLimits(table.concurrency or start.concurrency, per_connection, per_minute)
