"""In charge of provider pools: which destinations share limits because one provider stands behind them. PURE.

A pool is found by the name of the MX host: thousands of domains have their mail at Google, and Google counts them
together. Every other host belongs to a pool of its organisation, the registered domain of its name.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one pool may take at once."""

    concurrency: int = 10  # sessions
    messages_per_connection: int = 100  # then a new connection is made, which lets balancers behind it balance
    per_minute: int | None = None  # messages; None: as fast as it goes


@dataclass(frozen=True, slots=True)
class Pool:
    """Destinations that share limits."""

    name: str
    limits: Limits = Limits()


@dataclass(frozen=True, slots=True)
class Provider:
    """A row of the table: the suffixes of a provider's MX hosts, and the limits its pool starts with."""

    name: str
    suffixes: tuple[str, ...]
    limits: Limits = Limits()


# The limits are where to start, not what a provider promises: those that publish figures have theirs (Yahoo: few
# messages a connection; Orange and Free: two or three connections an address), the others what senders commonly use.
# The pool slows down by itself when a provider asks for less.
_BIG = Limits(concurrency=20)
_STRICT = Limits(concurrency=2, messages_per_connection=50, per_minute=120)
_CAREFUL = Limits(concurrency=5, messages_per_connection=50)

PROVIDERS = (
    Provider("google", ("google.com", "googlemail.com", "psmtp.com"), _BIG),
    Provider("outlook", ("olc.protection.outlook.com", "hotmail.com"), Limits(10, 50)),  # outlook.com, hotmail, live
    Provider("microsoft365", ("protection.outlook.com", "mx.microsoft", "protection.office365.us"), _BIG),
    Provider("yahoo", ("yahoodns.net", "yahoo.com", "aol.com"), Limits(10, 20)),
    Provider("yahoo-japan", ("yahoo.co.jp",), _CAREFUL),
    Provider("apple", ("icloud.com", "me.com", "apple.com"), Limits(10, 50)),
    Provider("zoho", ("zoho.com", "zoho.eu", "zoho.in", "zoho.com.au", "zoho.jp", "zohomail.com")),
    Provider("proton", ("protonmail.ch", "proton.me"), _CAREFUL),
    Provider("fastmail", ("messagingengine.com",)),
    Provider("mimecast", ("mimecast.com", "mimecast.co.za", "mimecast-offshore.com")),
    Provider("proofpoint", ("pphosted.com", "ppe-hosted.com")),
    Provider("barracuda", ("barracudanetworks.com",)),
    Provider("cisco", ("iphmx.com",)),
    Provider("messagelabs", ("messagelabs.com",)),
    Provider("trendmicro", ("trendmicro.com", "trendmicro.eu")),
    Provider("hornetsecurity", ("hornetsecurity.com", "antispameurope.com")),
    Provider("spamexperts", ("antispamcloud.com",)),
    Provider("rackspace", ("emailsrvr.com",)),
    Provider("amazon", ("amazonaws.com",)),
    Provider("godaddy", ("secureserver.net",), _CAREFUL),
    Provider("ionos", ("kundenserver.de", "ionos.com", "ionos.de", "ionos.co.uk", "1and1.com"), _CAREFUL),
    Provider("gmx", ("gmx.net", "web.de", "mail.com"), _CAREFUL),  # one house, with one opinion of us
    Provider("t-online", ("t-online.de",), _CAREFUL),
    Provider("strato", ("rzone.de",)),
    Provider("ovh", ("ovh.net",)),
    Provider("gandi", ("gandi.net",)),
    Provider("orange", ("orange.fr", "wanadoo.fr"), _STRICT),
    Provider("free", ("free.fr",), _STRICT),
    Provider("sfr", ("sfr.fr",), _STRICT),
    Provider("laposte", ("laposte.net",), _STRICT),
    Provider("comcast", ("comcast.net",), Limits(10, 50)),
    Provider("att", ("prodigy.net",), _CAREFUL),
    Provider("charter", ("charter.net", "rr.com"), _CAREFUL),
    Provider("bt", ("bt.com", "btinternet.com"), _CAREFUL),
    Provider("libero", ("libero.it", "iol.it"), _CAREFUL),
    Provider("yandex", ("yandex.ru", "yandex.net", "yandex.com")),
    Provider("mailru", ("mail.ru",), _CAREFUL),
    Provider("seznam", ("seznam.cz",), _CAREFUL),
    Provider("qq", ("qq.com",), _CAREFUL),
    Provider("netease", ("163.com", "126.com", "netease.com"), _CAREFUL),
    Provider("naver", ("naver.com",), _CAREFUL),
)

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
    return {suffix: Pool(provider.name, provider.limits) for provider in providers for suffix in provider.suffixes}


@dataclass(frozen=True, slots=True)
class Pools:
    """The pools there are: the providers', and one for each other organisation with the limits of `others`."""

    providers: Mapping[str, Pool] = field(default_factory=lambda: by_suffix(PROVIDERS))
    others: Limits = Limits()

    def of(self, host: str) -> Pool:
        """The pool of an MX host; the longest suffix decides."""
        labels = host.lower().rstrip(".").split(".")
        for at in range(len(labels)):
            if pool := self.providers.get(".".join(labels[at:])):
                return pool
        return Pool(organisation(host), self.others)
