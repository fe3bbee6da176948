"""Signatures of `dkim.py` verify by the public key of their record; what was changed, and what is hostile, does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.keys import dkim_keys
from appliance.message.dkim import Algorithm, SigningKey, sign
from appliance.message.dkim_verify import SIGNATURES, HeaderSignature, header_signatures

KEYS = [SigningKey("example.com", f"s-{each}", each, dkim_keys.generate(each)) for each in Algorithm]
RECORDS = {key.selector: dkim_keys.record_value(key.key) for key in KEYS}
MESSAGE = (
    b"Received: from a by b\r\nFrom: Shop <shop@example.com>\r\nTo: ada@example.net\r\n"
    b"Subject:  On\r\n\tits  way \r\nMessage-ID: <1@example.com>\r\n\r\nHello, Ada.\r\n"
)


def signed(message: bytes = MESSAGE) -> bytes:
    """A message with a signature by each kind of key."""
    return sign(message, KEYS, now_seconds=1_700_000_000) + message


def good(header: bytes) -> list[str]:
    """The selectors of the signatures that verify."""
    return [each.selector for each in header_signatures(header) if each.verifies(RECORDS[each.selector])]


def test_our_own_signatures_verify() -> None:
    """Also with other line ends, without the body, with another body, and under fields that servers put on top."""
    selectors = ["s-rsa", "s-ed25519"]
    mail = signed()
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
    """A field with another value, one more of it, none of it, or another tag of the signature."""
    mail = signed()
    assert old in mail
    assert good(mail.replace(old, new)) == []


def test_another_key_does_not_verify() -> None:
    """Nor does a record without a key, or with something else."""
    first, second = header_signatures(signed())
    other = dkim_keys.record_value(dkim_keys.generate(Algorithm.ED25519))
    for record in (other, RECORDS["s-rsa"][:-8], "", "v=DKIM1; p=", "v=DKIM1; k=ed25519; p=AAAA", "p=\xff"):
        assert not second.verifies(record)
        assert not first.verifies(record)


def test_few_signatures_are_read() -> None:
    """However many a hostile header has."""
    field = sign(MESSAGE, KEYS[:1], now_seconds=1)
    assert len(header_signatures(field * 50 + MESSAGE)) == SIGNATURES


@given(st.binary(max_size=300))
def test_nothing_raises(data: bytes) -> None:
    """Whatever the bytes are: as a header, as a signature, or as a record."""
    for each in (data, b"DKIM-Signature: " + data, b"DKIM-Signature: a=rsa-sha256; c=relaxed; b=AAAA; h=" + data):
        for found in header_signatures(each):
            assert isinstance(found, HeaderSignature)
            found.verifies(data.decode("latin-1"))
