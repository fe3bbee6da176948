"""Rotations of DKIM keys: new ones are pending while the old ones sign, and sign once DNS shows all of them."""

import base64
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_der_public_key,
)
from hypothesis import given
from hypothesis import strategies as st

from appliance.dns.check import check
from appliance.dns.records import Senders, records
from appliance.environment import Environment
from appliance.keys.dkim_keys import (
    KeyUnusable,
    SigningKeys,
    from_der,
    generate,
    new_selector,
    record_value,
    to_der,
)
from appliance.message.dkim import Algorithm, SigningKey, algorithm_of, sign
from appliance.model.accounts import Role
from appliance.store import Store, open_store
from tests.fakes.dns import Trouble, ZoneResolver, zone_text

KEY, DOMAIN = b"k" * 32, "example.com"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with open_store(tmp_path, Environment(), inline=True) as opened:
        yield opened


async def rotating(store: Store) -> tuple[SigningKeys, str, set[str], ZoneResolver]:
    """Keys of a domain in a rotation, its account, the selectors that signed before, and a DNS that shows those."""
    account = (await store.accounts.create("demo", "demo@example.org", "hash", Role.CUSTOMER, None)).id
    await store.access.add_domain(account, DOMAIN, usable=True)
    keys = SigningKeys(store, Environment(), KEY)
    old = {key.selector for key in await keys.in_use(account, DOMAIN)}
    dns = ZoneResolver({})
    publish(dns, {key.selector: key.record for key in await keys.known(account, DOMAIN)})
    await keys.begin_rotation(account, DOMAIN)
    return keys, account, old, dns


def publish(dns: ZoneResolver, values: dict[str, str]) -> None:
    dns.zone |= {f"{selector}._domainkey.{DOMAIN}": {"TXT": [zone_text(value)]} for selector, value in values.items()}


async def pending(store: Store, account: str) -> dict[str, str]:
    return {key.selector: key.record for key in await store.dkim_keys.of(account, DOMAIN) if key.pending}


async def signing(keys: SigningKeys, account: str) -> set[str]:
    return {key.selector for key in await keys.in_use(account, DOMAIN)}


async def test_the_old_keys_sign_until_dns_shows_all_new_ones(store: Store) -> None:
    """With none, with one, with another key and with DNS in trouble nothing changes; with both it is a switch."""
    keys, account, old, dns = await rotating(store)
    new = await pending(store, account)

    async def switch() -> bool:
        stored = await store.dkim_keys.of(account, DOMAIN)
        return await keys.switch(account, DOMAIN, await check(dns, records(DOMAIN, Senders(()), stored, 0)))

    assert len(new) == 2
    rsa, ed25519 = sorted(new, key=lambda selector: "rsa" not in selector)
    for shown in ({}, {rsa: new[rsa]}, {rsa: new[rsa], ed25519: new[rsa]}):
        publish(dns, shown)
        assert not await switch()
        assert await signing(keys, account) == old
    dns.zone[f"{ed25519}._domainkey.{DOMAIN}"] = {"TXT": Trouble.SERVFAIL}
    assert not await switch()
    publish(dns, new)
    assert await switch()
    assert await signing(keys, account) == set(new)
    retired = {key.selector for key in await store.dkim_keys.of(account, DOMAIN) if key.retired_at is not None}
    assert (retired, await pending(store, account)) == (old, {})


async def test_what_was_begun_is_not_begun_again(store: Store) -> None:
    """The records that the operator may be publishing stay the right ones; only other keys are never activated."""
    keys, account, old, _ = await rotating(store)
    new = await pending(store, account)
    await keys.begin_rotation(account, DOMAIN)
    assert await pending(store, account) == new
    assert not await store.dkim_keys.activate(account, DOMAIN, [*new, "another"])
    assert await signing(keys, account) == old


async def test_the_records_say_what_to_do(store: Store) -> None:
    keys, account, old, _ = await rotating(store)
    found = records(DOMAIN, Senders(("mail.example.com",)), await keys.known(account, DOMAIN), Environment().now())
    assert [(each.pending, each.needed) for each in found] == [(True, True)] * 2 + [(False, True)] * 4
    assert {each.name.partition(".")[0] for each in found[4:]} == old
    assert all("keep until seven days after the new keys sign" in each.purpose for each in found[4:])


NOON = 1_794_700_800  # seconds; Sun, 15 Nov 2026 00:00:00 UTC


@pytest.mark.parametrize("algorithm", Algorithm)
def test_a_key_comes_back_from_its_bytes(algorithm: Algorithm) -> None:
    key = generate(algorithm)
    back = from_der(to_der(key))
    assert algorithm_of(key) is algorithm_of(back) is algorithm
    assert record_value(back) == record_value(key)
    message = b"From: a@example.com\r\n\r\nx\r\n"
    made = [sign(message, [SigningKey("example.com", "s", algorithm, each)], now_seconds=NOON) for each in (key, back)]
    assert made[0] == made[1]


def test_new_keys_differ() -> None:
    assert len({to_der(generate(Algorithm.ED25519)) for _ in range(20)}) == 20


def test_rsa_record() -> None:
    key = generate(Algorithm.RSA)
    value = record_value(key)
    found = re.fullmatch(r"v=DKIM1; k=rsa; p=([A-Za-z0-9+/]+=*)", value)
    assert found
    public = load_der_public_key(base64.b64decode(found[1]))
    assert isinstance(public, rsa.RSAPublicKey)
    assert public == key.public_key()
    assert (public.key_size, public.public_numbers().e) == (2048, 65537)


def test_ed25519_record() -> None:
    """The record of the key of RFC 8463 A.2 is the one given there."""
    secret = base64.b64decode("nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=")
    value = record_value(Ed25519PrivateKey.from_private_bytes(secret))
    assert value == "v=DKIM1; k=ed25519; p=11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="


def test_selectors() -> None:
    assert new_selector(Algorithm.RSA, NOON) == "ma-rsa-20261115"
    assert new_selector(Algorithm.ED25519, NOON - 1) == "ma-ed25519-20261114"
    taken: list[str] = []
    for _ in range(12):
        taken.append(new_selector(Algorithm.RSA, NOON, taken))
    assert taken[:3] == ["ma-rsa-20261115", "ma-rsa-20261115-2", "ma-rsa-20261115-3"]
    assert len(set(taken)) == 12
    assert all(re.fullmatch(r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])", each) for each in taken)


def test_unusable_keys() -> None:
    pkcs8 = (Encoding.DER, PrivateFormat.PKCS8)
    short = rsa.generate_private_key(65537, 1024).private_bytes(*pkcs8, NoEncryption())
    curve = ec.generate_private_key(ec.SECP256R1()).private_bytes(*pkcs8, NoEncryption())
    good = generate(Algorithm.ED25519)
    locked = good.private_bytes(*pkcs8, BestAvailableEncryption(b"x"))
    for data in (short, curve, locked, b"", b"\x30\x00", to_der(good)[:-1]):
        with pytest.raises(KeyUnusable):
            from_der(data)


@given(st.binary(max_size=100))
def test_noise_is_no_key(data: bytes) -> None:
    with pytest.raises(KeyUnusable):
        from_der(data)
