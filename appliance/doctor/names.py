"""Findings on how other servers see this machine: its name, addresses, port 25, blocklists. Pure: no I/O, no state."""

from collections.abc import Sequence
from ipaddress import ip_address

from appliance.doctor.facts import (
    Finding,
    HostFacts,
    Listing,
    MailServerProbe,
    PtrFacts,
    RecordToPublish,
    fault,
    ok,
    warning,
)
from appliance.net.address_policy import Address

REFUSED_RESOLVER = "127.255.255."  # the answer of blocklists to a resolver that they do not serve


def judge_host(facts: HostFacts) -> list[Finding]:
    """The HELO name: fully qualified, and with the addresses that mail leaves from."""
    name = facts.hostname
    if "." not in name:
        advice = 'Set server.hostname to a name such as "mail.example.com".'
        return [fault("hostname", name, "is not a full name", advice)]
    if facts.addresses is None:
        return [warning("hostname", name, f"could not be looked up: {facts.trouble}", "Check dns.resolvers.")]
    records = tuple(_address_record(name, address) for address in facts.leaving)
    if not facts.addresses:
        advice = "Publish the address of this machine at this name."
        return [
            fault(
                "hostname",
                name,
                "has no address in DNS",
                advice,
                *(records or (RecordToPublish(name, "A", "ADDRESS"),)),
            )
        ]
    missing = [address for address in facts.leaving if address not in facts.addresses]
    if missing:
        shown = ", ".join(map(str, facts.addresses))
        text = f"leads to {shown}, but mail leaves from {', '.join(map(str, missing))}"
        advice = "Publish that address at this name, too, or list the public ones in delivery.own_addresses."
        return [fault("hostname", name, text, advice, *(_address_record(name, address) for address in missing))]
    return [ok("hostname", name, f"leads to {', '.join(map(str, facts.addresses))}")]


def _address_record(name: str, address: Address) -> RecordToPublish:
    return RecordToPublish(name, "A" if address.version == 4 else "AAAA", str(address))


def judge_ptr(facts: PtrFacts) -> list[Finding]:
    """The reverse name of an address: large providers refuse mail from one without a confirmed name."""
    subject, record = str(facts.address), RecordToPublish(facts.address.reverse_pointer, "PTR", f"{facts.hostname}.")
    rented = "It is set where the address was rented (reverse DNS)."
    if facts.names is None:
        return [warning("ptr", subject, f"could not be looked up: {facts.trouble}", "Check dns.resolvers.")]
    if not facts.names:
        advice = f"Let it lead to {facts.hostname}. {rented}"
        return [fault("ptr", subject, "has no reverse name (PTR)", advice, record)]
    shown = ", ".join(facts.names)
    if not facts.confirmed and facts.hostname in facts.names:
        return []  # the PTR is right; that the name does not lead here is another finding
    if not facts.confirmed:
        text = f"its reverse name {shown} does not lead back to it"
        return [fault("ptr", subject, text, f"Let it lead to {facts.hostname}. {rented}", record)]
    if facts.hostname not in facts.confirmed:
        text = f"its reverse name is {shown}, in HELO we say {facts.hostname}"
        advice = f"Let it lead to {facts.hostname}, or set server.hostname to {facts.confirmed[0]}. {rented}"
        return [warning("ptr", subject, text, advice, record)]
    return [ok("ptr", subject, f"leads to {facts.hostname} and back")]


def judge_port(probes: Sequence[MailServerProbe], port: int, *, relay: bool = False) -> list[Finding]:
    """Whether mail servers can be reached, of which one is enough; or the relay."""
    for probe in probes:
        if probe.greeting is not None and probe.greeting.startswith("220"):
            return [ok("port", str(port), f"{probe.target} answers")]
    tried = "; ".join(f"{probe.target}: {_response(probe)}" for probe in probes)
    if relay and any(probe.dialled for probe in probes):
        advice = "Check delivery.relay_host and relay_port, and whether the relay lets this machine in."
        return [fault("port", str(port), f"the relay does not take mail ({tried})", advice)]
    if any(probe.greeting is not None for probe in probes):
        advice = "Its address may have a bad reputation: see the blocklists, or take another address."
        return [fault("port", str(port), f"mail servers do not want to talk to this machine ({tried})", advice)]
    if not any(probe.dialled for probe in probes):
        text = f"was not tried, because no mail server could be looked up ({tried})"
        return [warning("port", str(port), text, "Check dns.resolvers, then ask again.")]
    advice = f"Ask where the machine was rented to open outgoing port {port}, or send through a relay (delivery.mode)."
    return [fault("port", str(port), f"no mail server can be reached ({tried})", advice)]


def _response(probe: MailServerProbe) -> str:
    return probe.trouble if probe.greeting is None else probe.greeting[:60]


def judge_listing(listing: Listing) -> list[Finding]:
    """Whether a blocklist names the address."""
    subject = f"{listing.address} at {listing.blocklist}"
    if listing.codes is None:
        return [warning("blocklist", subject, f"could not be asked: {listing.reason}")]
    if any(code.startswith(REFUSED_RESOLVER) for code in listing.codes):
        text = "does not answer this resolver"
        return [warning("blocklist", subject, text, "Use a resolver of your own (dns.resolvers), not a public one.")]
    if listing.codes:
        text = f"listed ({', '.join(listing.codes)}){': ' + listing.reason if listing.reason else ''}"
        return [fault("blocklist", subject, text, "Find out why, mend it, and ask the list to remove the address.")]
    return [ok("blocklist", subject, "not listed")]


def query_name(blocklist: str, text: str) -> str:
    """The name to look up for an address in a blocklist (RFC 5782 2.1)."""
    reverse = ip_address(text).reverse_pointer.removesuffix(".in-addr.arpa").removesuffix(".ip6.arpa")
    return f"{reverse}.{blocklist}"
