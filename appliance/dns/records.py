"""The DNS records that a From domain needs, and the purpose of each. No I/O.

Records for a return path and for reports are proposed only if the installation receives such mail.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from ipaddress import ip_address

from msgspec import Struct

from appliance.config.settings import Config, DeliveryMode
from appliance.model.accounts import Domain, StoredDkimKey
from appliance.model.sources import OutgoingSource
from appliance.times import DAY, SECOND

SPF_NAMES = 5  # that our hosts may take of the ten which receivers follow (RFC 7208 4.6.4)
RETIRED_KEY_KEPT = 7 * DAY  # longer than mail is queued: two days here, and five at a forwarder

_ALGORITHMS = {"rsa": "RSA", "ed25519": "Ed25519"}


class RecordKind(StrEnum):
    """How a record is compared with what DNS has."""

    DKIM = "dkim"
    SPF = "spf"
    DMARC = "dmarc"
    RETURN_PATH_MX = "return_path_mx"
    RETURN_PATH_SPF = "return_path_spf"
    TLS_RPT = "tls_rpt"
    RECEIVING_MX = "receiving_mx"


RETURN_PATH_KINDS = frozenset((RecordKind.RETURN_PATH_MX, RecordKind.RETURN_PATH_SPF))  # both are there, or it is not


class DnsRecord(Struct, frozen=True):
    """A record to publish; not `needed` for a return path, reports, and keys of mail signed earlier."""

    kind: RecordKind
    name: str
    value: str
    purpose: str
    needed: bool = True
    type: str = "TXT"
    pending: bool = False
    hosts: tuple[str, ...] = ()  # that an MX may lead to, or that SPF must permit

    @property
    def proves(self) -> bool:
        """Whether publishing it proves the domain: it holds a DKIM key of the account that is in use."""
        return self.kind is RecordKind.DKIM and self.needed


def receiving_hosts(config: Config, others: Iterable[str] = ()) -> tuple[str, ...]:
    """The hosts that take feedback: this one and other nodes, or none if the settings name no listener for it."""
    return tuple(dict.fromkeys([config.server.hostname, *sorted(others)])) if config.inbound.bind else ()


class Senders(Struct, frozen=True):
    """The hosts that hand mail to receivers, and the SPF terms that permit them. All nodes make the same."""

    hosts: tuple[str, ...]
    addresses: tuple[str, ...] = ()  # listed instead of the hosts where these are too many

    @property
    def spf(self) -> str:
        return " ".join(spf_term(name) for name in self.addresses or self.hosts)

    def __str__(self) -> str:
        return ", ".join(self.hosts)


def senders(
    config: Config, nodes: Iterable[str], *, ramp: bool = False, sources: Iterable[OutgoingSource] = ()
) -> Senders:
    """The relay if all mail leaves through one; otherwise every node, and the sources of the domain's streams.

    With a ramp both.
    """
    relay = config.delivery.relay_host if config.delivery.mode is DeliveryMode.RELAY else ""
    named = {name for source in sources for name in source.spf_hosts}
    own = () if relay and not ramp else tuple(sorted({config.server.hostname, *nodes, *named}))
    return Senders((*([relay] if relay else []), *own))


def records_for(
    config: Config,
    domain: Domain,
    keys: Iterable[StoredDkimKey],
    now: int,
    sending: Senders,
    nodes: Iterable[str],
    receives: Iterable[str] = (),
) -> list[DnsRecord]:
    """Return the records to publish for a domain of this installation; `nodes` are the host names of all nodes.

    `receives` are the domains, it or below it, that receive mail for an account.
    """
    hosts = receiving_hosts(config, nodes)
    return [
        *records(domain.name, sending, keys, now, return_path=domain.return_path, receiving=hosts),
        *(receiving_record(name, hosts) for name in receives if hosts),
    ]


def records(
    domain: str,
    sending: Senders,
    keys: Iterable[StoredDkimKey],
    now: int,
    *,
    return_path: str = "",
    receiving: Sequence[str] = (),
) -> list[DnsRecord]:
    """Return the records to publish for a domain; the keys that are to stay come first.

    The hosts `receiving` accept mail to `return_path`, if there are any.
    """
    keys = list(keys)
    current, leaving, retired = [], [], []
    rotating = any(key.pending for key in keys)
    for key in keys:
        name = f"{key.selector}._domainkey.{domain}"  # RFC 6376 3.6.2.1
        algorithm = _ALGORITHMS[key.algorithm]
        if key.pending:
            purpose = f"DKIM, a new {algorithm} key: publish it now. It signs mail once DNS shows all new keys"
            current.append(DnsRecord(RecordKind.DKIM, name, key.record, purpose, pending=True))
        elif key.retired_at is None and rotating:
            purpose = f"DKIM, the current {algorithm} key: keep until seven days after the new keys sign"
            leaving.append(DnsRecord(RecordKind.DKIM, name, key.record, purpose))
        elif key.retired_at is None:
            purpose = f"DKIM: lets receivers verify the {algorithm} signature of your mail"
            current.append(DnsRecord(RecordKind.DKIM, name, key.record, purpose))
        elif now - key.retired_at < RETIRED_KEY_KEPT:
            until = datetime.fromtimestamp((key.retired_at + RETIRED_KEY_KEPT) / SECOND, UTC).strftime("%Y-%m-%d")
            purpose = f"DKIM, a retired key: keep until {until} for mail in transit, then delete it"
            retired.append(DnsRecord(RecordKind.DKIM, name, key.record, purpose, needed=False))
    spf = f"SPF: allows {sending} to send mail for your domain. "
    spf += f"If the domain already has an SPF record, add {sending.spf} to it"
    dmarc = (
        "DMARC: tells receivers what to do with mail that fails SPF and DKIM. p=none only monitors;"
        " change it to p=quarantine or p=reject once all your mail is signed"
    )
    dmarc += f". rua asks them for daily reports to {return_path}" if receiving else ""
    tls_rpt = DnsRecord(
        RecordKind.TLS_RPT,
        f"_smtp._tls.{domain}",
        tls_rpt_value(return_path),
        f"TLS reports, optional: servers that send mail to your domain report TLS failures to {return_path}",
        needed=False,
    )
    return [
        *current,
        DnsRecord(RecordKind.SPF, domain, f"v=spf1 {sending.spf} -all", spf, hosts=sending.hosts),
        DnsRecord(RecordKind.DMARC, f"_dmarc.{domain}", dmarc_value(return_path if receiving else ""), dmarc),
        *(return_path_records(return_path, sending, receiving) if receiving else ()),
        *([tls_rpt] if receiving else ()),
        *leaving,
        *retired,
    ]


def dmarc_value(return_path: str = "", policy: str = "none") -> str:
    """A DMARC record; with a return path it asks for reports there."""
    return f"v=DMARC1; p={policy}" + (f"; rua=mailto:dmarc@{return_path}" if return_path else "")


def tls_rpt_value(return_path: str) -> str:
    """A record that asks for TLS reports (RFC 8460 3)."""
    return f"v=TLSRPTv1; rua=mailto:tlsrpt@{return_path}"


def return_path_records(name: str, sending: Senders, receiving: Sequence[str]) -> list[DnsRecord]:
    """What to publish for a return path to the first of the hosts; an MX to another one is right as well."""
    host = receiving[0]
    mx = (
        f"Return path: routes late bounces to {host}. Once DNS shows this MX and the SPF record of the same name, your"
        f" mail uses an envelope sender at {name}. A CNAME to {host} replaces both if that host has an SPF record"
    )
    spf = f"Return path, SPF: allows {sending} to send mail with an envelope sender at {name}"
    return [
        DnsRecord(RecordKind.RETURN_PATH_MX, name, f"10 {host}.", mx, False, "MX", hosts=tuple(receiving)),
        DnsRecord(RecordKind.RETURN_PATH_SPF, name, f"v=spf1 {sending.spf} -all", spf, False, hosts=sending.hosts),
    ]


def receiving_record(name: str, hosts: Sequence[str]) -> DnsRecord:
    """What to publish for a domain that receives mail, to the first of the hosts."""
    purpose = f"Receiving: routes the mail of {name} to {hosts[0]}. Mailboxes that {name} has elsewhere get none then"
    return DnsRecord(RecordKind.RECEIVING_MX, name, f"10 {hosts[0]}.", purpose, False, "MX", hosts=tuple(hosts))


def spf_term(host: str) -> str:
    try:
        return f"ip{ip_address(host).version}:{host}"
    except ValueError:
        return f"a:{host}"
