"""What SPF says of an address, as receivers find it out."""

from ipaddress import ip_address

import pytest

from appliance.dns.check import SpfPermError, permits
from appliance.dns.resolver import LookupFailed
from tests.fakes.dns import Trouble, Zone, ZoneResolver

US, US6, OTHER = "203.0.113.7", "2001:db8::7", "198.51.100.1"


def text(*values: str) -> dict[str, list[str]]:
    return {"TXT": [f'"{value}"' for value in values]}


ZONE: Zone = {
    "acme.example": {"A": [US], "AAAA": [US6], "MX": ["10 mail.example.com."]},
    "mail.example.com": {"A": [US], "AAAA": [US6]},
    "near.example": {"A": ["203.0.113.200"], "AAAA": ["2001:db8::ffff"]},
    "_us.example": text("v=spf1 a:mail.example.com -all", "something else"),
    "_not-us.example": text(f"v=spf1 ip4:{OTHER} -all"),
    "_us-refused.example": text("v=spf1 -a:mail.example.com +all"),
    "_two.example": text("v=spf1 +all", "v=spf1 -all"),
    "_loop.example": text("v=spf1 include:_loop.example -all"),
    "many-mx.example": {"MX": [f"10 mx{number}.example." for number in range(11)]},
}


async def asked(record: str, address: str = US, zone: Zone = ZONE) -> bool:
    return await permits(ZoneResolver(zone), "acme.example", f"v=spf1 {record}", ip_address(address))


@pytest.mark.parametrize(
    "record",
    [
        "+all",
        "a -all",
        "mx -all",
        "mx:acme.example. -all",
        "A:Mail.Example.com. -ALL",
        "a:mail.example.com/32//128 -all",
        "a:near.example/24//64 -all",
        f"ip4:{US} ip6:2001:db8::/32 -all",
        "ip4:203.0.113.99/24 ip6:2001:db8::7 ~all",
        "include:_not-us.example include:_us.example -all",
        "redirect=_us.example",
        "exp=why.%{d} unknown=term a -all",
        "exists:mail.example.com -all",
        "exists:%{i}.list.example ptr a -all",
        "a " + " ".join(["include:_not-us.example"] * 20),  # what is behind a match is not asked for
    ],
)
@pytest.mark.parametrize("address", [US, US6])
async def test_who_is_let_in(record: str, address: str) -> None:
    assert await asked(record, address)


@pytest.mark.parametrize(
    "record",
    [
        "",
        "-all",
        "-all a",
        "~a -all",
        "?include:_us.example -all",
        "include:_us-refused.example -all",
        "redirect=_us.example -all",
        "a:near.example -all",
        "mx:mail.example.com -all",
        f"ip4:{OTHER} -all",
        "include:%{d}.example -all",
        "ptr -all",
    ],
)
async def test_who_is_not_let_in(record: str) -> None:
    """By order, by sign, or because nothing fits; what would depend on the message does not count."""
    assert not await asked(record)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ("ipv4:203.0.113.7 a", "'ipv4:203.0.113.7' is no term of SPF"),
        ("a \x1b[2J", r"'\\x1b\[2j' is no term of SPF"),
        ("a include: -all", "'include:' is no term"),
        ("a include:. -all", "'include:.' is no term"),
        ("all:acme.example", "is no term"),
        ("all/24", "is no term"),
        ("a include:_us.example/24", "is no term"),
        (f"a x:{'y' * 9000}", "yyyy…' is no term"),
        ("ip4:203.0.113.777 a", "is no network"),
        ("ip4:2001:db8::7 a", "must be ip6"),
        ("a/33", "no network has"),
        ("redirect=_us.example redirect=_us.example", "twice"),
        ("include:gone.example a", "'gone.example', which has no SPF record"),
        ("include:_two.example a", "'_two.example', which has several SPF records"),
        ("include:_loop.example a", "more than 10 times"),
        ("include:_not-us.example " * 11, "more than 10 times"),
        ("a:x.example a:y.example a:z.example a", "lead nowhere"),
        ("mx:many-mx.example a", "more than 10 mail exchangers"),
    ],
)
async def test_a_record_that_receivers_give_up_on(record: str, reason: str) -> None:
    with pytest.raises(SpfPermError, match=reason):
        await asked(record)


async def test_a_resolver_in_trouble_decides_nothing() -> None:
    with pytest.raises(LookupFailed):
        await asked("include:_us.example -all", zone={"_us.example": {"TXT": Trouble.SERVFAIL}})
