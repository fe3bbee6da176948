"""The DNS records that a From domain needs, and the purpose of each. No I/O.

Records for a return path and for reports are proposed only if the installation receives such mail.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from ipaddress import ip_address

from appliance.config.settings import Config, DeliveryMode
from appliance.model.accounts import Domain, StoredDkimKey
from appliance.times import DAY, SECOND

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


RETURN_PATH_KINDS = frozenset((RecordKind.RETURN_PATH_MX, RecordKind.RETURN_PATH_SPF))  # both are there, or it is not


@dataclass(frozen=True, slots=True)
class DnsRecord:
    """A record to publish; not `needed` for a return path, reports, and keys of mail signed earlier."""

    kind: RecordKind
    name: str
    value: str
    purpose: str
    needed: bool = True
    type: str = "TXT"
    pending: bool = False
    hosts: tuple[str, ...] = ()  # that an MX may lead to

    @property
    def proves(self) -> bool:
        """Whether publishing it proves the domain: it has a DKIM key of the account."""
        return self.kind is RecordKind.DKIM and self.needed


def receiving_hosts(config: Config, others: Iterable[str] = ()) -> tuple[str, ...]:
    """The hosts that receive feedback: this one and other nodes, or none without a listener for it."""
    return tuple(dict.fromkeys([config.server.hostname, *sorted(others)])) if config.inbound.bind else ()


def sending_host(config: Config) -> str:
    """The host whose address receivers see: the relay, if all mail goes through one."""
    relay = config.delivery.relay_host if config.delivery.mode is DeliveryMode.RELAY else ""
    return relay or config.server.hostname


def records_for(
    config: Config, domain: Domain, keys: Iterable[StoredDkimKey], now: int, others: Iterable[str]
) -> list[DnsRecord]:
    """The records of a domain of this installation, whose other nodes have these host names."""
    receiving = receiving_hosts(config, others)
    return records(domain.name, sending_host(config), keys, now, return_path=domain.return_path, receiving=receiving)


def records(
    domain: str,
    sending_host: str,
    keys: Iterable[StoredDkimKey],
    now: int,
    *,
    return_path: str = "",
    receiving: Sequence[str] = (),
) -> list[DnsRecord]:
    """The records of a domain with mail from `sending_host`; the hosts `receiving` accept mail for `return_path`."""
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
    term = spf_term(sending_host)
    spf = f"SPF: allows {sending_host} to send mail for your domain. "
    spf += f"If the domain already has an SPF record, add {term} to it"
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
        DnsRecord(RecordKind.SPF, domain, f"v=spf1 {term} -all", spf),
        DnsRecord(RecordKind.DMARC, f"_dmarc.{domain}", dmarc_value(return_path if receiving else ""), dmarc),
        *(return_path_records(return_path, sending_host, receiving) if receiving else ()),
        *([tls_rpt] if receiving else ()),
        *leaving,
        *retired,
    ]


def dmarc_value(return_path: str = "", policy: str = "none") -> str:
    return f"v=DMARC1; p={policy}" + (f"; rua=mailto:dmarc@{return_path}" if return_path else "")


def tls_rpt_value(return_path: str) -> str:
    return f"v=TLSRPTv1; rua=mailto:tlsrpt@{return_path}"


def return_path_records(name: str, sending_host: str, receiving: Sequence[str]) -> list[DnsRecord]:
    """The records of a return path to the first of these hosts; an MX to another one is right as well."""
    host = receiving[0]
    mx = (
        f"Return path: routes late bounces to {host}. Once DNS shows this MX and the SPF record of the same name, your"
        f" mail uses an envelope sender at {name}. A CNAME to {host} replaces both if that host has an SPF record"
    )
    spf = f"Return path, SPF: allows {sending_host} to send mail with an envelope sender at {name}"
    return [
        DnsRecord(RecordKind.RETURN_PATH_MX, name, f"10 {host}.", mx, False, "MX", hosts=tuple(receiving)),
        DnsRecord(RecordKind.RETURN_PATH_SPF, name, f"v=spf1 {spf_term(sending_host)} -all", spf, False),
    ]


def spf_term(host: str) -> str:
    try:
        return f"ip{ip_address(host).version}:{host}"
    except ValueError:
        return f"a:{host}"
