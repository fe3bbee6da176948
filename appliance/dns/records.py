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
    """A record to publish; not `needed` if it is only for mail that was signed earlier.

    `pending` if its key does not sign before DNS shows it.
    """

    kind: RecordKind
    name: str
    value: str
    purpose: str
    needed: bool = True
    type: str = "TXT"
    pending: bool = False


def sending_host(config: Config) -> str:
    """The host whose address receivers see: the relay, where all mail goes through one."""
    relay = config.delivery.relay_host if config.delivery.mode is DeliveryMode.RELAY else ""
    return relay or config.server.hostname


def records(domain: str, sending_host: str, keys: Iterable[StoredDkimKey], now: int) -> list[DnsRecord]:
    """What to publish for a domain whose mail leaves from `sending_host`; the keys that are to stay come first."""
    keys = list(keys)
    current, leaving, retired = [], [], []
    rotating = any(key.pending for key in keys)
    for key in keys:
        name, algorithm = record_name(domain, key.selector), _ALGORITHMS[key.algorithm]
        if key.pending:
            purpose = f"DKIM, a new {algorithm} key: publish it now; it signs once DNS shows all new keys"
            current.append(DnsRecord(RecordKind.DKIM, name, key.record, purpose, pending=True))
        elif key.retired_at is None and rotating:
            purpose = f"DKIM, the {algorithm} key that signs now: keep until the new keys sign, and seven days longer"
            leaving.append(DnsRecord(RecordKind.DKIM, name, key.record, purpose))
        elif key.retired_at is None:
            purpose = f"DKIM: receivers check the {algorithm} signature of the domain's mail with it"
            current.append(DnsRecord(RecordKind.DKIM, name, key.record, purpose))
        elif now - key.retired_at < RETIRED_KEY_KEPT:
            until = datetime.fromtimestamp((key.retired_at + RETIRED_KEY_KEPT) / SECOND, UTC).strftime("%Y-%m-%d")
            purpose = f"DKIM, a retired key: keep until {until} for mail that is still on its way, then remove"
            retired.append(DnsRecord(RecordKind.DKIM, name, key.record, purpose, needed=False))
    term = spf_term(sending_host)
    spf = f"SPF: lets {sending_host} send for the domain. "
    spf += f"If the domain has an SPF record already, put {term} into that one"
    dmarc = (
        "DMARC: asks receivers to check the From address. p=none only watches;"
        " change it to p=quarantine or p=reject once all mail of the domain is signed"
    )
    return [
        *current,
        DnsRecord(RecordKind.SPF, domain, f"v=spf1 {term} -all", spf),
        DnsRecord(RecordKind.DMARC, f"_dmarc.{domain}", "v=DMARC1; p=none", dmarc),
        *leaving,
        *retired,
    ]


def spf_term(host: str) -> str:
    """How SPF names a host, or an address."""
    try:
        return f"ip{ip_address(host).version}:{host}"
    except ValueError:
        return f"a:{host}"
