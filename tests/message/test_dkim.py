"""DKIM signatures: dkimpy, which shares no code with us, must verify them, and nothing that was changed."""

import base64
import hashlib
import re
import tracemalloc
from functools import cache
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from dkim.canonicalization import Relaxed  # type: ignore[import-untyped]
from hypothesis import example, given, settings
from hypothesis import strategies as st

from appliance.errors import Refused
from appliance.keys import dkim_keys
from appliance.keys.dkim_keys import generate, record_value
from appliance.message import dkim
from appliance.message.compose import compose
from appliance.message.dkim import (
    GUARDED,
    SIGNATURES,
    SIGNED,
    Algorithm,
    HeaderSignature,
    SigningKey,
    canonical_body,
    canonical_field,
    header_signatures,
    sign,
)
from tests.message.dkimpy import dkim as oracle
from tests.message.samples import MESSAGE_ID, NOON, body_text, composed, drafted, line_text

DOMAIN = "example.com"


@cache
def keys() -> tuple[SigningKey, SigningKey]:
    rsa, ed25519 = (SigningKey(DOMAIN, f"s-{kind}", kind, generate(kind)) for kind in Algorithm)
    return rsa, ed25519


def records(*signers: SigningKey) -> dict[str, str]:
    return {f"{key.selector}._domainkey.{key.domain}": record_value(key.key) for key in signers}


def verified(message: bytes, index: int = 0, zone: dict[str, str] | None = None) -> bool:
    """Whether dkimpy accepts the message's signature of this index, counted from the top."""
    published = zone or records(*keys())

    def text(name: bytes, timeout: int = 0) -> str | None:
        return published.get(name.decode().removesuffix("."))

    try:
        return bool(oracle.DKIM(message).verify(index, dnsfunc=text))
    except oracle.DKIMException:
        return False


def signed(message: bytes) -> bytes:
    return sign(message, keys(), now_seconds=NOON) + message


def both_verify(message: bytes) -> bool:
    return verified(message, 0) and verified(message, 1)


def neither_verifies(message: bytes) -> bool:
    return not verified(message, 0) and not verified(message, 1)


def tags(signature: bytes) -> dict[str, str]:
    text = re.sub(r"\s+", "", signature.decode().partition(":")[2])
    return dict(tag.split("=", 1) for tag in text.split(";"))


# --- The standards' own examples ---

RFC8463_ED25519_SECRET = "nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A="
RFC8463_RECORDS = {
    "brisbane._domainkey.football.example.com": "v=DKIM1; k=ed25519; p=11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=",
    "test._domainkey.football.example.com": "v=DKIM1; k=rsa; p=MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQDkHlOQoBTzWRi"
    "Gs5V6NpP3idY6Wk08a5qhdR6wy5bdOKb2jLQiY/J16JYi0Qvx/byYzCNb3W91y3FutACDfzwQ/BC/e/8uBsCR+yz1Lxj+PL6lHvqMKrM3rG4hstT5"
    "QjvHO9PzoxZyVYLzBfO2EeC3Ip3G+2kryOTIKT+l/K4w3QIDAQAB",
}
RFC8463_ED25519_FIELD = (
    b"DKIM-Signature: v=1; a=ed25519-sha256; c=relaxed/relaxed;\r\n"
    b" d=football.example.com; i=@football.example.com;\r\n"
    b" q=dns/txt; s=brisbane; t=1528637909; h=from : to :\r\n"
    b" subject : date : message-id : from : subject : date;\r\n"
    b" bh=2jUSOH9NhtVGCQWNr9BrIAPreKQjO6Sn7XIkfJVOzv8=;\r\n"
    b" b="
)
RFC8463_ED25519_SIGNATURE = b"/gCrinpcQOoIfuHNQIbq4pgh9kyIK3AQUdt9OdqQehSwhEIug4D11BusFa3bT3FY5OsU7ZbnKELq+eXdp1Q1Dw=="
RFC8463_RSA_FIELD = (
    b"DKIM-Signature: v=1; a=rsa-sha256; c=relaxed/relaxed;\r\n"
    b" d=football.example.com; i=@football.example.com;\r\n"
    b" q=dns/txt; s=test; t=1528637909; h=from : to : subject :\r\n"
    b" date : message-id : from : subject : date;\r\n"
    b" bh=2jUSOH9NhtVGCQWNr9BrIAPreKQjO6Sn7XIkfJVOzv8=;\r\n"
    b" b=F45dVWDfMbQDGHJFlXUNB2HKfbCeLRyhDXgFpEL8GwpsRe0IeIixNTe3\r\n"
    b" DhCVlUrSjV4BwcVcOF6+FF3Zo9Rpo1tFOeS9mPYQTnGdaSGsgeefOsk2Jz\r\n"
    b" dA+L10TeYt9BgDfQNZtKdN1WO//KgIqXP7OdEFE4LjFYNcUxZQ4FADY+8=\r\n"
)
RFC8463_MESSAGE = (
    b"From: Joe SixPack <joe@football.example.com>\r\n"
    b"To: Suzie Q <suzie@shopping.example.net>\r\n"
    b"Subject: Is dinner ready?\r\n"
    b"Date: Fri, 11 Jul 2003 21:00:37 -0700 (PDT)\r\n"
    b"Message-ID: <20030712040037.46341.5F8J@football.example.com>\r\n"
    b"\r\n"
    b"Hi.\r\n"
    b"\r\n"
    b"We lost the game.  Are you hungry yet?\r\n"
    b"\r\n"
    b"Joe.\r\n"
)


def test_the_oracle_verifies_rfc_8463() -> None:
    """The verifier of these tests accepts both signatures of RFC 8463 A.3, and neither once a letter has changed."""
    message = RFC8463_ED25519_FIELD + RFC8463_ED25519_SIGNATURE + b"\r\n" + RFC8463_RSA_FIELD + RFC8463_MESSAGE
    for index in (0, 1):
        assert verified(message, index, RFC8463_RECORDS)
        assert not verified(message.replace(b"dinner", b"supper"), index, RFC8463_RECORDS)
        assert not verified(message.replace(b"hungry", b"angry"), index, RFC8463_RECORDS)


def test_rfc_8463_signature_is_made_again() -> None:
    """Our canonical forms, hashed and signed with the key of RFC 8463 A.2, give the very signature of A.3."""
    head, start = RFC8463_MESSAGE.partition(b"\r\n\r\n")[0], RFC8463_MESSAGE.index(b"\r\n\r\n") + 4
    body_hash = base64.b64encode(hashlib.sha256(b"".join(canonical_body(RFC8463_MESSAGE, start))).digest())
    assert b"bh=%b;" % body_hash in RFC8463_ED25519_FIELD
    order = (0, 1, 2, 3, 4)  # from, to, subject, date, message-id; the second round finds none
    fields = [tuple(line.split(b":", 1)) for line in head.split(b"\r\n")]
    own = canonical_field(*RFC8463_ED25519_FIELD.split(b":", 1))[:-2]
    data = b"".join(canonical_field(*fields[index]) for index in order) + own
    key = Ed25519PrivateKey.from_private_bytes(base64.b64decode(RFC8463_ED25519_SECRET))
    assert base64.b64encode(key.sign(hashlib.sha256(data).digest())) == RFC8463_ED25519_SIGNATURE
    made = sign(RFC8463_MESSAGE, [SigningKey(DOMAIN, "s", Algorithm.ED25519, key)], now_seconds=1528637909)
    assert tags(made)["bh"].encode() == body_hash


def test_rfc_6376_canonical_forms() -> None:
    """The example of RFC 6376 3.4.5, and the hash of an empty body of 3.4.4."""
    assert canonical_field(b"A", b" X") == b"a:X\r\n"
    assert canonical_field(b"B ", b" Y\t\r\n\tZ  ") == b"b:Y Z\r\n"
    assert b"".join(canonical_body(b" C \r\nD \t E\r\n\r\n\r\n", 0)) == b" C\r\nD E\r\n"
    made = sign(b"From: a@example.com\r\n\r\n", keys(), now_seconds=NOON)
    assert tags(made.partition(b"\r\nDKIM")[0])["bh"] == "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="


# --- Canonical forms ---

ODD = (
    b" ", b"\t", b"  ", b" " * 9, b"\r\n", b"\r\n\r\n", b"a", b"b=", b":", b";", b"\xc3\xa9", b"\xff", b"\x00",
    b"\x0cx",
)  # fmt: skip
odd_octets = st.lists(st.sampled_from(ODD), max_size=40).map(b"".join)


@given(odd_octets, st.sampled_from([1, 3, 8, 64]), st.sampled_from([1, 2, 5]))
@example(b" ", 8, 2)
@example(b"\r\n \r\n\t\r\n", 8, 2)
@example(b"a" * 63 + b"\r\n" + b"b" * 70 + b" \r\n", 64, 2)
def test_canonical_body(body: bytes, piece: int, tail: int) -> None:
    body += b"\r\n"  # as it arrives: dkimpy keeps the spaces of a last line without CRLF
    for given_as in (body, body[:-2]):
        canonical = b"".join(canonical_body(b"head" + given_as, 4, piece=piece, tail=tail))
        assert canonical == Relaxed.canonicalize_body(body)


@given(st.from_regex(rb"[A-Za-z-]{1,10}[ \t]{0,2}", fullmatch=True), odd_octets)
def test_canonical_field(name: bytes, value: bytes) -> None:
    value = re.sub(rb"(?:\r\n)+(?=[^ \t])", b"\r\n ", value)
    value = value.rstrip(b"\r\n")  # a field ends before its CRLF
    ((name_there, value_there),) = Relaxed.canonicalize_headers([(name, value)])
    if value.strip(b" \t\r\n")[:1] != b"\x0c":  # no white space by RFC 5234; dkimpy strips it
        assert canonical_field(name, value) == name_there + b":" + value_there


# --- Messages ---

addresses = line_text.map(lambda name: '"{}" <a@x.test>'.format(re.sub(r'(["\\])', r"\\\1", name.strip()[:60])))
messages = st.fixed_dictionaries(
    {"to": st.lists(addresses, min_size=1, max_size=3), "subject": line_text, "text": body_text},
    optional={
        "cc": st.sampled_from(["jürgen@example.com", "c@x.test"]),
        "reply_to": addresses,
        "html": body_text,
        "tags": st.just(["a", "b"]),
        "headers": st.dictionaries(st.sampled_from(["List-Unsubscribe", "References", "X-A"]), line_text, max_size=3),
        "attachments": st.binary(max_size=300).map(
            lambda data: [{"filename": "a.bin", "content": base64.b64encode(data).decode()}]
        ),
    },
)


@settings(max_examples=250, deadline=None)
@given(messages)
def test_composed_messages_verify(fields: dict[str, Any]) -> None:
    try:
        message = compose(drafted(**fields), message_id=MESSAGE_ID, date_seconds=NOON)
    except Refused:
        return
    assert both_verify(signed(message))


submitted = st.lists(
    st.tuples(
        st.sampled_from(["To", "TO", "subject", "Reply-to", "Received", "X-Odd", "MIME-VERSION", "cc", "References"]),
        odd_octets.map(lambda value: re.sub(rb"(?:\r\n)+", b"\r\n ", value.replace(b"\x0c", b"")).rstrip(b" \t\r\n")),
    ),
    max_size=8,
).map(lambda fields: b"".join(b"%b:%b\r\n" % (name.encode(), value) for name, value in fields))


@settings(max_examples=250, deadline=None)
@given(submitted, odd_octets)
def test_submitted_messages_verify(fields: bytes, body: bytes) -> None:
    """Fields folded, repeated and spelled in any legal way, and any body, verify, and again after the next hop."""
    message = signed(fields + b"fRoM: a@example.com\r\n\r\n" + body + b"\r\n")
    assert both_verify(message)
    assert both_verify(b"Received: by relay\r\n" + message)


@pytest.mark.parametrize(
    "message",
    [
        b"From: a@example.com\r\n",
        b"From: a@example.com",
        b"From: a@example.com\r\n\r\n",
        b"From: a@example.com\r\n\r\n\r\n\r\n\r\n",
        b"From: a@example.com\r\n\r\n \t \r\n\t\r\n",
        b"From: a@example.com\r\n\r\nno line end",
        b"From: a@example.com\r\n\r\n.\r\n..\r\n\r\n \r\n.\r\n\r\n",
        b"From: a@example.com\r\n\r\n\r\nfirst line is empty\r\n",
        b"FROM:a@example.com\r\nSubject:\r\nTo: \r\n\r\nx\r\n",
        b"from:\r\n a@example.com\r\nsUbJeCt:\r\n\t\t folded \r\n \t more\t\t\r\n \t \r\n\r\nx\r\n",
        b"From: a@example.com\r\nSubject: a: b: c;b=d; bh=\r\nContent-Type: text/plain; b=x\r\n\r\nx\r\n",
        b"Subject: 1\r\nFrom: a@example.com\r\nSubject: 2\r\nTo: x\r\nsubject: 3\r\nTo: y\r\n\r\nx\r\n",
        b"From: a@example.com\r\nFrom: b@example.com\r\n\r\nx\r\n",
        "From: jürgen@example.com\r\nSubject: Grüße 漢字\r\nTo: é@x.test\r\n\r\nGrüße\r\n".encode(),
        b"From: a@example.com\r\nSubject: \xff\xfe\x80\r\n\r\n\xff\x00\x01\x80 \xa0\r\n",
        b"From: a@example.com\r\nDKIM-Signature: v=1; a=rsa-sha256; b=abc\r\nX-A: y\r\n\r\nx\r\n",
        b"From: a@example.com\r\nReferences:" + b"\r\n <" + b"a" * 900 + b"@x>" * 2 + b"\r\n\r\nx\r\n",
        b"From: a@example.com\r\n\r\n" + b"x" * 200_000 + b"\r\n" + b"  y\t" * 70_000 + b"\r\n \r\n",
        b"From: a@example.com\r\n\r\n" + b" a  b \r\n" * 30_000 + b"\r\n" * 100_000,
    ],
)  # fmt: skip
def test_nasty_messages_verify(message: bytes) -> None:
    made = signed(message)
    complete = made if message.endswith(b"\r\n") else made + b"\r\n"
    assert both_verify(complete)
    assert both_verify(b"Received: from x\r\n by y\r\n" + complete)


# --- What breaks a signature, and what does not ---

ORDINARY = composed(
    cc="c@x.test", reply_to="r@x.test", html="<p>  Hi", tags=["a"], headers={"List-Unsubscribe": "<x:y>"}
)


@settings(deadline=None)  # the first example may have to make a key
@given(st.integers(0, len(ORDINARY) - 1), st.integers(1, 255))
def test_a_changed_octet_breaks_it(position: int, change: int) -> None:
    octet = ORDINARY[position]
    changed = octet ^ change
    if octet in b" \t\r\n:" or changed in b" \t\r\n:" or (chr(octet).lower() == chr(changed).lower()):
        return  # white space, and the case of a name, may change
    tampered = ORDINARY[:position] + bytes([changed]) + ORDINARY[position + 1 :]
    assert neither_verifies(sign(ORDINARY, keys(), now_seconds=NOON) + tampered)


@pytest.mark.parametrize("name", [*GUARDED, "Date", "Message-ID", "List-Unsubscribe", "X-Service-Tag", "X-A"])
def test_an_added_field(name: str) -> None:
    """A second field of a signed name breaks both signatures, wherever it is put; one of another name does not."""
    signatures, extra = sign(ORDINARY, keys(), now_seconds=NOON), f"{name}: evil\r\n".encode()
    survives = name == "X-A"
    above, between = extra + signatures + ORDINARY, signatures + extra + ORDINARY
    below = signatures + ORDINARY.replace(b"\r\n\r\n", b"\r\n" + extra + b"\r\n", 1)
    for message in (above, between, below):
        assert both_verify(message) == survives
        assert neither_verifies(message) != survives


@pytest.mark.parametrize("name", ["Subject", "Reply-To", "Cc", "To", "Content-Type", "MIME-Version", "List-Id", "Date"])
def test_a_field_where_there_was_none(name: str) -> None:
    """A guarded field added to a message without one breaks both signatures; one that a relay may add does not."""
    message = b"%b: new\r\n" % name.encode() + signed(b"From: a@example.com\r\n\r\nx\r\n")
    assert neither_verifies(message) if name in GUARDED else both_verify(message)


@pytest.mark.parametrize("name", [b"To", b"Subject", b"Cc", b"Date", b"List-Unsubscribe"])
def test_a_removed_field_breaks_it(name: bytes) -> None:
    less = re.sub(rb"(?m)^%b:.*\r\n" % name, b"", ORDINARY, count=1)
    assert less != ORDINARY
    assert neither_verifies(sign(ORDINARY, keys(), now_seconds=NOON) + less)


def test_harmless_changes() -> None:
    """Refolding, other case in names, white space at line ends and empty last lines leave both signatures whole."""
    changed = ORDINARY.replace(b"\r\nSubject: ", b"\r\nSUBJECT:\r\n\t ").replace(b"--\r\n", b"-- \t\r\n") + b"\r\n \r\n"
    assert changed != ORDINARY
    assert both_verify(sign(ORDINARY, keys(), now_seconds=NOON) + changed)


def test_signatures_are_independent() -> None:
    rsa, ed25519 = (sign(ORDINARY, [key], now_seconds=NOON) for key in keys())
    assert verified(rsa + ORDINARY)
    assert verified(ed25519 + ORDINARY)
    assert both_verify(ed25519 + rsa + ORDINARY)
    assert sign(ORDINARY, keys()[::-1], now_seconds=NOON) == rsa + ed25519 == sign(ORDINARY, keys(), now_seconds=NOON)


# --- The field itself ---


def test_the_field() -> None:
    made = sign(composed(text=""), [keys()[1]], now_seconds=NOON)
    assert re.sub(rb" b=.*", b" b=", made, flags=re.DOTALL) == (
        b"DKIM-Signature: v=1; a=ed25519-sha256; c=relaxed/relaxed; t=1700000000;\r\n"
        b" d=example.com; s=s-ed25519;\r\n"
        b" h=From:From:To:To:Cc:Subject:Subject:Reply-To:MIME-Version:MIME-Version:\r\n"
        b" Content-Type:Content-Type:Date:Date:Message-ID:Message-ID:\r\n"
        b" Content-Transfer-Encoding:Content-Transfer-Encoding;\r\n"
        b" bh=47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=;\r\n"
        b" b="
    )


@settings(deadline=None)  # the first example may have to make a key
@given(st.text("abc", min_size=1, max_size=63), st.integers(1, 4), st.lists(st.sampled_from(GUARDED + SIGNED)))
def test_lines_of_the_field(label: str, labels: int, names: list[str]) -> None:
    """Every line ends in CRLF and has at most 78 octets, unless a domain is longer than that by itself."""
    domain = ".".join([label] * labels)[:253].strip(".")
    signer = SigningKey(domain, label, Algorithm.ED25519, keys()[1].key)
    fields = b"".join(b"%b: x\r\n" % name.encode() for name in names)
    message = b"From: a@example.com\r\n" + fields + b"\r\nx\r\n"
    made = sign(message, [signer], now_seconds=NOON)
    assert made.endswith(b"\r\n")
    lines = made[:-2].split(b"\r\n")
    assert all(len(line) <= 78 or line.strip() == b"d=%b;" % domain.encode() for line in lines)
    assert all(line[:1] == b" " and line.strip() for line in lines[1:])
    assert verified(made + message, 0, records(signer))
    assert tags(made).keys() == {"v", "a", "c", "d", "s", "t", "h", "bh", "b"}


def test_names_are_listed_once_more_than_present() -> None:
    """`h=` names a present field once more than it stands there, a guarded one always, an absent other one never."""
    made = sign(b"To: a\r\nFrom: a@x\r\nto: b\r\nDate: x\r\nReceived: y\r\n\r\n", keys()[1:], now_seconds=NOON)
    listed = tags(made)["h"].split(":")
    assert {name: listed.count(name) for name in (*GUARDED, *SIGNED, "Received") if name in listed} == {
        **dict.fromkeys(GUARDED, 1), "From": 2, "To": 3, "Date": 2
    }  # fmt: skip


@pytest.mark.parametrize("count", [1, 33, 200])
def test_many_fields_of_one_name(count: int) -> None:
    fields = b"".join(b"References: <%d@x>\r\n" % number for number in range(count))
    message = fields + b"From: a@example.com\r\n\r\nx\r\n"
    assert both_verify(signed(message))
    assert tags(sign(message, keys()[1:], now_seconds=NOON))["h"].count("References") == count + 1


@given(st.text("abc", min_size=1, max_size=63), st.integers(1, 4), st.sampled_from(Algorithm), st.integers(0, 10**10))
def test_the_opening_is_remembered_in_both_forms(label: str, labels: int, algorithm: Algorithm, now: int) -> None:
    domain = ".".join([label] * labels)
    written, relaxed = dkim._opening(algorithm, domain, label, now)
    name, _, value = written.partition(b":")
    assert canonical_field(name, value) == relaxed + b"\r\n"
    assert f"t={now};".encode() in relaxed
    assert f"t={now + 1};".encode() in dkim._opening(algorithm, domain, label, now + 1)[1]


@given(st.lists(st.sampled_from([key for _, key in dkim._NAMES]), max_size=40))
def test_a_listing_is_remembered_in_both_forms(present: list[bytes]) -> None:
    """`h=` as it is written and in relaxed form; every field comes once, those of one name from the bottom up."""
    written, relaxed, order = dkim._listing(present)
    assert canonical_field(b"x", written) == b"x:" + relaxed + b"\r\n"
    assert sorted(order) == list(range(len(present)))
    for key in set(present):
        places = [place for place in order if present[place] == key]
        assert places == sorted(places, reverse=True)


# --- What is refused, and what it costs ---


@pytest.mark.parametrize(
    "message",
    [b"", b"\r\n", b"\r\n\r\nFrom: a@x\r\n", b"\r\nFrom: a@x\r\n\r\n", b"To: x\r\n\r\nFrom: y\r\n", b"From a@x\r\n\r\n",
     b" From: x\r\n\r\n", b"From: a\nTo: b\r\n\r\n", b"From: a\rTo: b\r\n\r\n", b"From: a\n\nbody\r\n"],
)  # fmt: skip
def test_what_cannot_be_signed(message: bytes) -> None:
    with pytest.raises(ValueError, match="cannot be signed"):
        sign(message, keys(), now_seconds=NOON)


def test_no_keys() -> None:
    assert sign(ORDINARY, [], now_seconds=NOON) == b""


@pytest.mark.parametrize("name", ["", "a b", "a;b", "müller.example", "Example.com", "a..b", "-a", "a\r\n", "a" * 64])
def test_names_that_could_break_the_field(name: str) -> None:
    rsa, ed25519 = keys()
    with pytest.raises(ValueError, match="DNS names"):
        SigningKey(name, "s", Algorithm.RSA, rsa.key)
    with pytest.raises(ValueError, match="DNS names"):
        SigningKey(DOMAIN, name, Algorithm.ED25519, ed25519.key)


def test_algorithm_and_key_must_agree() -> None:
    with pytest.raises(ValueError, match="algorithm"):
        SigningKey(DOMAIN, "s", Algorithm.RSA, keys()[1].key)


@pytest.mark.parametrize("line", [b"QUJD" * 19 + b"\r\n", b"  indented \t text  \r\n", b" \r\n"])
def test_memory_of_a_large_message(line: bytes) -> None:
    message = b"From: a@example.com\r\n\r\n" + line * (10_000_000 // len(line))
    tracemalloc.start()
    try:
        sign(message, keys()[1:], now_seconds=NOON)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


KEYS = [SigningKey("example.com", f"s-{each}", each, dkim_keys.generate(each)) for each in Algorithm]
RECORDS = {key.selector: dkim_keys.record_value(key.key) for key in KEYS}
MESSAGE = (
    b"Received: from a by b\r\nFrom: Shop <shop@example.com>\r\nTo: ada@example.net\r\n"
    b"Subject:  On\r\n\tits  way \r\nMessage-ID: <1@example.com>\r\n\r\nHello, Ada.\r\n"
)


def signed_by_both(message: bytes = MESSAGE) -> bytes:
    return sign(message, KEYS, now_seconds=1_700_000_000) + message


def good(header: bytes) -> list[str]:
    return [each.selector for each in header_signatures(header) if each.verifies(RECORDS[each.selector])]


def test_our_own_signatures_verify() -> None:
    """Also with other line ends, without the body, with another body, and under fields that servers put on top."""
    selectors = ["s-rsa", "s-ed25519"]
    mail = signed_by_both()
    header = mail.partition(b"\r\n\r\n")[0]
    for copy in (mail, header, header + b"\r\n", mail.replace(b"\r\n", b"\n"), mail + b"more", b"X-A: b\r\n" + mail):
        assert good(copy) == selectors
    (first, _) = header_signatures(mail)
    assert (first.domain, b"message-id" in first.signed_names) == ("example.com", True)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"On\r\n", b"Off\r\n"),
        (b"<1@example.com>", b"<2@example.com>"),
        (b"Message-ID: ", b"Message-ID: <2@example.com>\r\nMessage-ID: "),
        (b"Received: ", b"Message-ID: <2@example.com>\r\nReceived: "),
        (b"Message-ID: <1@example.com>\r\n", b""),
        (b"d=example.com", b"d=example.org"),
        (b" bh=", b" bh=A"),
        (b"c=relaxed/relaxed", b"c=simple/relaxed"),
        (b"-sha256", b"-sha1"),
    ],
)
def test_what_was_changed_does_not_verify(old: bytes, new: bytes) -> None:
    mail = signed_by_both()
    assert old in mail
    assert good(mail.replace(old, new)) == []


def test_another_key_does_not_verify() -> None:
    first, second = header_signatures(signed_by_both())
    other = dkim_keys.record_value(dkim_keys.generate(Algorithm.ED25519))
    for record in (other, RECORDS["s-rsa"][:-8], "", "v=DKIM1; p=", "v=DKIM1; k=ed25519; p=AAAA", "p=\xff"):
        assert not second.verifies(record)
        assert not first.verifies(record)


def test_few_signatures_are_read() -> None:
    field = sign(MESSAGE, KEYS[:1], now_seconds=1)
    assert len(header_signatures(field * 50 + MESSAGE)) == SIGNATURES


@given(st.binary(max_size=300))
def test_nothing_raises(data: bytes) -> None:
    """Whatever the bytes are: as a header, as a signature, or as a record."""
    for each in (data, b"DKIM-Signature: " + data, b"DKIM-Signature: a=rsa-sha256; c=relaxed; b=AAAA; h=" + data):
        for found in header_signatures(each):
            assert isinstance(found, HeaderSignature)
            found.verifies(data.decode("latin-1"))
