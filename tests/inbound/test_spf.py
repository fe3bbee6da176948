"""SPF by RFC 7208: records, macros, limits and faults."""

from collections.abc import Mapping

import pytest

from appliance.inbound.spf import LOOKUPS, NAMES_PER_TERM, SPF_CHARACTERS, VOID_LOOKUPS, check_spf
from tests.fakes.dns import Records, Trouble, Zone, ZoneResolver

SENDER, HELO, CLIENT = "strong-bad@email.example.com", "mx.example.org", "192.0.2.3"
OTHERS: dict[str, Mapping[str, Records]] = {
    "mx.example.com": {"A": ["192.0.2.3"], "AAAA": ["2001:db8::3"]},
    "email.example.com": {"A": ["192.0.2.200"], "MX": ["10 mx.example.com."]},
    "pass.example.com": {"TXT": ['"v=spf1 +all"']},
    "none.example.com": {"A": ["192.0.2.1"]},
    "broken.example.com": {"TXT": ['"v=spf1 wrong"']},
    "slow.example.com": {"TXT": Trouble.SERVFAIL},
    "3.2.0.192.in-addr.arpa": {"PTR": ["mx.example.com."]},
    "email.example.com._spf.example.com": {"A": ["127.0.0.2"]},
    "3.2.0.192.in-addr.strong.lp._spf.example.com": {"A": ["127.0.0.2"]},
}


def quoted(text: str) -> str:
    """As in a zone file, in strings of at most 255 octets."""
    return " ".join(f'"{text[at : at + 250]}"' for at in range(0, len(text), 250))


async def checked(record: str, client: str = CLIENT, sender: str = SENDER, more: Zone | None = None) -> str:
    own: Mapping[str, Records] = {**OTHERS["email.example.com"], "TXT": [quoted(record)]}
    zone: Zone = {**OTHERS, **(more or {}), "email.example.com": own}
    return (await check_spf(ZoneResolver(zone), client, sender, HELO)).result.value


@pytest.mark.parametrize(
    ("record", "result"),
    [
        ("v=spf1", "neutral"),
        ("v=spf10 +all", "none"),
        ("V=SPF1 -ALL", "fail"),
        ("v=spf1 ip4:192.0.2.0/24 -all", "pass"),
        ("v=spf1 ip4:192.0.3.0/24 ~all", "softfail"),
        ("v=spf1 ?ip4:192.0.2.3 -all", "neutral"),
        ("v=spf1 a -all", "fail"),
        ("v=spf1 a/24 -all", "pass"),
        ("v=spf1 a:mx.example.com -all", "pass"),
        ("v=spf1 mx -all", "pass"),
        ("v=spf1 ptr:example.com -all", "pass"),
        ("v=spf1 include:pass.example.com -all", "pass"),
        ("v=spf1 include:none.example.com -all", "permerror"),
        ("v=spf1 include:broken.example.com -all", "permerror"),
        ("v=spf1 include:slow.example.com -all", "temperror"),
        ("v=spf1 redirect=pass.example.com", "pass"),
        ("v=spf1 redirect=none.example.com", "permerror"),
        ("v=spf1 exists:%{d}._spf.example.com -all", "pass"),
        ("v=spf1 exists:%{ir}.%{v}.%{l1r-}.lp._spf.example.com -all", "pass"),
        ("v=spf1 exists:%{x}.example.com -all", "permerror"),
        ("v=spf1 ip4:192.0.2.3/33", "permerror"),
        ("v=spf1 -all ip4:256.0.0.1", "permerror"),
        ("v=spf1 redirect=a.example redirect=b.example", "permerror"),
        ("v=spf1 all:x", "permerror"),
        ("v=spf1 unknown=x -all", "fail"),
        (f"v=spf1 {'ip4:10.0.0.1 ' * (SPF_CHARACTERS // 13)}-all", "permerror"),
    ],
)
async def test_records(record: str, result: str) -> None:
    assert await checked(record) == result


async def test_ipv6_and_the_null_sender() -> None:
    assert await checked("v=spf1 mx -all", "2001:db8::3") == "pass"
    assert await checked("v=spf1 ip4:192.0.2.3 -all", "::ffff:192.0.2.3") == "pass"
    zone = {"mx.example.org": {"TXT": ['"v=spf1 ip4:192.0.2.3 -all"']}}
    result = await check_spf(ZoneResolver(zone), CLIENT, "", HELO)
    assert (result.result, result.domain) == ("pass", HELO)
    assert (await check_spf(ZoneResolver(zone), CLIENT, "", "[192.0.2.3]")).result == "none"
    assert (await check_spf(ZoneResolver(zone), CLIENT, "a@b", "x y")).result == "none"


async def test_limits() -> None:
    """Ten lookups, two of them void, ten names of an MX; a loop of includes ends."""
    terms = "a:mx.example.com/32 "
    assert await checked(f"v=spf1 {terms.replace('mx', 'none') * LOOKUPS}-all") == "fail"
    assert await checked(f"v=spf1 {terms.replace('mx', 'none') * (LOOKUPS + 1)}-all") == "permerror"
    voids = [f"a:void{number}.example.com" for number in range(VOID_LOOKUPS + 1)]
    assert await checked(f"v=spf1 {' '.join(voids[:-1])} -all") == "fail"
    assert await checked(f"v=spf1 {' '.join(voids)} -all") == "permerror"
    assert await checked("v=spf1 include:email.example.com -all") == "permerror"
    for count, result in ((NAMES_PER_TERM, "fail"), (NAMES_PER_TERM + 1, "permerror")):
        many = {"many.example.com": {"MX": [f"{number} m{number}.example.com." for number in range(count)]}}
        assert await checked("v=spf1 mx:many.example.com -all", more=many) == result


async def test_a_macro_cannot_make_a_long_name_expensive() -> None:
    resolver = ZoneResolver({"email.example.com": {"TXT": [quoted(f"v=spf1 exists:{'%{s}.' * 700}com -all")]}})
    result = await check_spf(resolver, CLIENT, f"{'a.' * 30}x@email.example.com", HELO)
    assert result.result == "fail"
    assert max(len(name) for name, _ in resolver.asked) <= 253
