"""The DNS records that a From domain needs, and what each of them is for. No I/O."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from ipaddress import ip_address

from appliance.config.settings import Config, DeliveryMode
from appliance.message.dkim_keys import record_name
from appliance.model.mail import StoredDkimKey
from appliance.times import DAY, SECOND

RETIRED_KEY_KEPT = 7 * DAY  # longer than mail is queued: two days here, and five at a forwarder

_ALGORITHMS = {"rsa": "RSA", "ed25519": "Ed25519"}


class RecordKind(StrEnum):
    """How a record is compared with what DNS has."""

    DKIM = "dkim"
    SPF = "spf"
    DMARC = "dmarc"


@dataclass(frozen=True, slots=True)
class DnsRecord:
    """A record to publish; not `needed` if it is only for mail that was signed earlier."""

    kind: RecordKind
    name: str
    value: str
    purpose: str
    needed: bool = True
    type: str = "TXT"


def sending_host(config: Config) -> str:
    """The host whose address receivers see: the relay, where all mail goes through one."""
    delivery = config.delivery
    return (
        delivery.relay_host if delivery.mode is DeliveryMode.RELAY and delivery.relay_host else config.server.hostname
    )


def records(domain: str, sending_host: str, keys: Iterable[StoredDkimKey], now: int) -> list[DnsRecord]:
    """What to publish for a domain whose mail leaves from `sending_host`."""
    keys = list(keys)
    current = [_current(domain, key) for key in keys if key.retired_at is None]
    retired = [
        _retired(domain, key, at) for key in keys if (at := key.retired_at) is not None and now - at < RETIRED_KEY_KEPT
    ]
    return [*current, _spf(domain, sending_host), _dmarc(domain), *retired]


def spf_term(host: str) -> str:
    """How SPF names a host, or an address."""
    try:
        return f"ip{ip_address(host).version}:{host}"
    except ValueError:
        return f"a:{host}"


def _current(domain: str, key: StoredDkimKey) -> DnsRecord:
    purpose = f"DKIM: receivers check the {_ALGORITHMS[key.algorithm]} signature of the domain's mail with it"
    return DnsRecord(RecordKind.DKIM, record_name(domain, key.selector), key.record, purpose)


def _retired(domain: str, key: StoredDkimKey, retired_at: int) -> DnsRecord:
    until = datetime.fromtimestamp((retired_at + RETIRED_KEY_KEPT) / SECOND, UTC).strftime("%Y-%m-%d")
    purpose = f"DKIM, a retired key: keep until {until} for mail that is still on its way, then remove"
    return DnsRecord(RecordKind.DKIM, record_name(domain, key.selector), key.record, purpose, needed=False)


def _spf(domain: str, host: str) -> DnsRecord:
    term = spf_term(host)
    purpose = f"SPF: lets {host} send for the domain. If the domain has an SPF record already, put {term} into that one"
    return DnsRecord(RecordKind.SPF, domain, f"v=spf1 {term} -all", purpose)


def _dmarc(domain: str) -> DnsRecord:
    purpose = (
        "DMARC: asks receivers to check the From address. p=none only watches;"
        " change it to p=quarantine or p=reject once all mail of the domain is signed"
    )
    return DnsRecord(RecordKind.DMARC, f"_dmarc.{domain}", "v=DMARC1; p=none", purpose)
