"""The fields a sender may not set: refused over HTTP; over SMTP removed, or checked by the mailbox they name."""

import pytest

from appliance.errors import Refused
from appliance.message.header_lines import RESERVED_HEADER_PREFIXES, RESERVED_HEADERS, is_reserved, over_smtp
from tests.message.submissions import message, submission, written

REMOVED = (
    b"Authentication-Results", b"ARC-Seal", b"ARC-Message-Signature", b"ARC-Authentication-Results", b"Bcc",
    b"Resent-Bcc", b"Delivered-To", b"Errors-To", b"Return-Path", b"Received-SPF", b"TLS-Required",
    b"X-Originating-IP", b"X-Service-Id", b"Idempotency-Key",
)  # fmt: skip
KEPT = (
    b"Received", b"DKIM-Signature", b"DomainKey-Signature", b"Reply-To", b"Cc", b"Resent-To", b"Resent-Date",
    b"X-Service-Tag", b"X-Mailer", b"List-Unsubscribe", b"Content-Language", b"Comments",
)  # fmt: skip


@pytest.mark.parametrize("name", REMOVED)
def test_what_servers_on_the_way_write_does_not_go_on(name: bytes) -> None:
    for spelled in (name, name.lower(), name.upper()):
        assert written(message(spelled + b": x")) == written(message())


@pytest.mark.parametrize("name", KEPT)
def test_what_any_message_may_have_goes_on(name: bytes) -> None:
    """The client's own signature, trace and other fields are sent as they came."""
    assert name + b": x\r\n" in written(message(name + b": x"))


@pytest.mark.parametrize("name", [b"Sender", b"Resent-From", b"Resent-Sender"])
def test_who_is_responsible_is_read(name: bytes) -> None:
    data = message(name + b": Shop <shop@other.example>")
    assert [(field, address.domain) for field, address in submission(data).responsible] == [
        (name.decode(), "other.example")
    ]
    assert name + b": Shop <shop@other.example>\r\n" in written(data)


@pytest.mark.parametrize("value", [b"", b"root", b"a@example.com, b@example.com", b"a@example.com <b@example.org>"])
@pytest.mark.parametrize("name", [b"Sender", b"Resent-From", b"Resent-Sender"])
def test_who_is_responsible_is_one(name: bytes, value: bytes) -> None:
    with pytest.raises(Refused, match=f"^{name.decode()}: expected one mailbox"):
        submission(message(name + b": " + value))


@pytest.mark.parametrize("field", [b"Subject", b"To", b"Cc", b"Reply-To", b"Comments", b"Resent-To"])
@pytest.mark.parametrize(
    "word",
    [
        b"=?utf-8?q?a=0ABcc:_x?=",
        b"=?utf-8?Q?a=0d?=",
        b"=?utf-8?q?=00?=",
        b"=?utf-8?b?DQpCY2M6IHg=?=",
        b"=?utf-8?b?AA==?=",
        b"=?utf-8?q?=1B[31m?=",
        b"=?utf-8?q?=C2=85?=",
        b"=?iso-8859-1?q?=85?=",
        b"=?utf-8?q?=E2=80=A8?=",
        b"=?unheard-of?q?a=0A?=",  # some reader may know it
        b"=?unknown-8bit?b?YQpC?=",  # what the standard library writes for octets of which it knows no more
        b"=?utf-8?q?a?b=0A?=",  # the standard library takes this for one word
    ],
)
def test_encoded_words_bring_no_control_characters(field: bytes, word: bytes) -> None:
    """A field that people are shown is refused by its name when a word in it decodes to a line end or worse."""
    with pytest.raises(Refused, match=f"^{field.decode()}: contains an encoded word with a control character"):
        submission(message(field + b": " + word, without=(field,)))


@pytest.mark.parametrize(
    "word",
    [
        b"=?utf_8?b?YQpC?=", b"=?utf 8?b?YQpC?=", b"=?utf-16le?b?CgBhAA==?=", b"=?utf-7*en?b?K0FBby0=?=",
        b"=?cp500?q?=25?=", b"=?unicode-escape?b?XG4=?=",
    ],
)  # fmt: skip
def test_encoded_words_are_in_charsets_that_are_known(word: bytes) -> None:
    """Each of these is a line end to a reader that knows the charset, as the standard library does."""
    with pytest.raises(Refused, match=r"^From: has an encoded word in the charset '.*'. Use UTF-8"):
        submission(message(b"From: " + word + b" <shop@example.com>", without=(b"From",)))
    assert submission(message(b"Subject: =?unknown-8bit?q?caf=E9?=", without=(b"Subject",)))


@pytest.mark.parametrize("word", [b"=?utf-8?q?a=0Ab?=", b"=?utf-8?b?YQBi?=", b'"=?utf-8?q?a=0Db?="'])
def test_the_name_in_from_brings_no_control_characters(word: bytes) -> None:
    with pytest.raises(Refused, match=r"^From: contains an encoded word"):
        submission(message(b"From: " + word + b" <shop@example.com>", without=(b"From",)))


@pytest.mark.parametrize(
    "word", [b"=?utf-8?q?caf=C3=A9?=", b"=?iso-2022-jp?b?GyRCRnxLXBsoQg==?=", b"=?utf-8?q?a=09b?=", b"=?utf-8?q?100=?="]
)
def test_ordinary_words_pass(word: bytes) -> None:
    assert submission(message(b"Subject: " + word, without=(b"Subject",)))


def test_there_are_not_too_many_words() -> None:
    """Decoding them has to stay cheap: 50 long names fit, thousands of words do not."""
    assert submission(message(b"Cc:" + b" =?utf-8?q?a?=,\r\n" * 500 + b" x"))
    with pytest.raises(Refused, match=r"^header: has more than 2000 encoded words"):
        submission(message(b"Cc:" + b" =?utf-8?q?a?=\r\n" * 2_100 + b" x"))


def test_every_reserved_name_has_a_rule_for_http_and_smtp() -> None:
    """HTTP refuses what SMTP removes or checks: no name is in one list only."""
    for name in (*RESERVED_HEADERS, *RESERVED_HEADER_PREFIXES):
        assert is_reserved(name.upper())
        assert over_smtp(name.encode())
    assert {removed for removed in REMOVED if not is_reserved(removed.decode())} == {b"Idempotency-Key"}
