"""Return-path tokens: they lead to their recipient, are folded on the way, age, and cannot be made without the key."""

import base64
import hmac
from random import Random

import pybase64
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.deliver.smtp.protocol import without_tokens
from appliance.environment import Environment, identifier_time
from appliance.feedback.return_path import (
    LIFETIME,
    FeedbackAddress,
    RecipientIds,
    ReportAddress,
    ReturnPaths,
    TokenFault,
    UnsubscribeLinks,
    Unsubscription,
    read_address,
)
from appliance.message.limits import SCHEDULED_AHEAD
from appliance.times import DAY, HOUR

NOW = 1_790_000_000_000_000
NAME = "bounces.example.com"
KNOWN = "b+bpbiwyyjaaaerupurz7zl2ab@bounces.example.com"
PATHS = ReturnPaths(b"k" * 32)


def recipient_id(at: int = NOW, bits: int = 12345678901234567890123) -> str:
    return Environment(now=lambda: at, random_bits=lambda: bits % 2**74).identifier("rcp")


def token_of(address: str) -> str:
    read = read_address(address)
    assert read is not None
    assert read.token is not None
    return read.token


def check(address: str, now: int = NOW, paths: ReturnPaths = PATHS) -> RecipientIds | TokenFault:
    read = read_address(address)
    assert read is not None
    assert read.token is not None
    return paths.check(read.token, read.domain, now)


@given(st.integers(NOW - LIFETIME, NOW + HOUR), st.integers(0, 2**74 - 1))
def test_a_token_leads_to_its_recipient(at: int, bits: int) -> None:
    """The range has the id, and only ids that agree with it in time and 24 bits."""
    id_ = recipient_id(at, bits)
    address = PATHS.address(id_, NAME)
    assert len(address.partition("@")[0]) == 26
    found = check(address)
    assert isinstance(found, RecipientIds)
    assert found.first <= id_ <= found.last
    assert identifier_time(found.first) == identifier_time(found.last) == at
    assert int(found.last[4:], 16) - int(found.first[4:], 16) == 2**50 - 1


@given(st.randoms(use_true_random=False))
def test_case_does_not_matter(random: Random) -> None:
    address = PATHS.address(recipient_id(), NAME)
    folded = "".join(random.choice((c.upper(), c.lower())) for c in address)
    assert check(folded) == check(address)


def test_a_token_outlives_the_schedule_by_a_month() -> None:
    assert SCHEDULED_AHEAD + 30 * DAY < LIFETIME < 101 * DAY


def test_a_token_expires() -> None:
    address = PATHS.address(recipient_id(), NAME)
    assert isinstance(check(address, NOW + LIFETIME), RecipientIds)
    assert check(address, NOW + LIFETIME + 1) is TokenFault.EXPIRED
    assert check(address, NOW + 101 * DAY) is TokenFault.EXPIRED
    for days in (102, 103, 110, 131, 204, 3_000):
        assert check(address, NOW + days * DAY) is TokenFault.FORGED


def test_a_token_is_bound_to_key_and_name() -> None:
    """Another installation's, another domain's, and a fresh name under the same domain: all forged."""
    address = PATHS.address(recipient_id(), NAME)
    assert check(address, paths=ReturnPaths(b"o" * 32)) is TokenFault.FORGED
    assert PATHS.check(token_of(address), "bounces.example.org", NOW) is TokenFault.FORGED
    assert PATHS.check(token_of(address), "example.com", NOW) is TokenFault.FORGED


@given(st.integers(0, 119))
def test_every_bit_counts(bit: int) -> None:
    """A token with one bit changed is forged: version, time, id and MAC are all covered."""
    token = base64.b32decode(token_of(PATHS.address(recipient_id(), NAME)).upper())
    changed = (int.from_bytes(token, "big") ^ 1 << bit).to_bytes(15, "big")
    assert PATHS.check(base64.b32encode(changed).decode().lower(), NAME, NOW) is TokenFault.FORGED


@given(st.integers(0, 20), st.randoms(use_true_random=False))
def test_a_token_to_unsubscribe(number: int, random: Random) -> None:
    id_ = recipient_id()
    address = PATHS.unsubscribe_address(id_, NAME, number)
    folded = "".join(random.choice((c.upper(), c.lower())) for c in address)
    read = read_address(folded)
    assert read is not None
    assert read.list_number == number
    assert check(folded) == check(PATHS.address(id_, NAME))
    assert check(address, NOW + LIFETIME + 1) is TokenFault.EXPIRED
    assert PATHS.check(read.token or "", "bounces.example.org", NOW) is TokenFault.FORGED


def test_neither_kind_of_token_can_be_made_of_the_other() -> None:
    """A token of a return path with a list in front, one without its list, and one with another list are forged."""
    id_ = recipient_id()
    bounces, leaves = token_of(PATHS.address(id_, NAME)), token_of(PATHS.unsubscribe_address(id_, NAME, 0))
    forged = {f"a{bounces}", leaves[1:], *(character + leaves[1:] for character in "bcdefghijklmnopqrstuvwxyz234567")}
    assert {PATHS.check(token, NAME, NOW) for token in forged} == {TokenFault.FORGED}


def test_guesses_find_nothing() -> None:
    token, random = token_of(PATHS.address(recipient_id(), NAME)), Random(7)
    guesses = {token[:14] + "".join(random.choices("abcdefghijklmnopqrstuvwxyz234567", k=10)) for _ in range(20_000)}
    assert {PATHS.check(guess, NAME, NOW) for guess in guesses - {token}} == {TokenFault.FORGED}


def test_the_mac_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[int, int]] = []

    def differ(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return False

    monkeypatch.setattr(hmac, "compare_digest", differ)
    assert check(PATHS.address(recipient_id(), NAME)) is TokenFault.FORGED
    assert compared == [(6, 6)]


def test_a_clock_that_runs_ahead() -> None:
    assert isinstance(check(PATHS.address(recipient_id(NOW + HOUR), NAME)), RecipientIds)
    assert check(PATHS.address(recipient_id(NOW + HOUR + 1), NAME)) is TokenFault.FORGED


def test_the_form_does_not_change() -> None:
    """Mail that is under way has tokens of this form: one made long ago is still read."""
    id_ = "rcp_196f0a2d8c24000123456789abcdef01"
    assert PATHS.address(id_, NAME) == KNOWN
    assert isinstance(check(KNOWN, identifier_time(id_)), RecipientIds)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("fbl@bounces.example.com", FeedbackAddress(NAME, report=ReportAddress.COMPLAINTS)),
        ("DMARC@Bounces.Example.com", FeedbackAddress(NAME, report=ReportAddress.DMARC)),
        ("tlsrpt@bounces.example.com", FeedbackAddress(NAME, report=ReportAddress.TLS)),
        ("b+" + "a" * 24 + "@bounces.example.com", FeedbackAddress(NAME, token="a" * 24)),
        ("B+" + "A2" * 12 + "@bounces.example.com", FeedbackAddress(NAME, token="a2" * 12)),
        ("u+c" + "a" * 24 + "@bounces.example.com", FeedbackAddress(NAME, token="c" + "a" * 24, list_number=2)),
        ("U+7" + "A2" * 12 + "@Bounces.example.com", FeedbackAddress(NAME, token="7" + "a2" * 12, list_number=31)),
        ("u+" + "a" * 24 + "@bounces.example.com", None),
        ("u+" + "a" * 26 + "@bounces.example.com", None),
        ("u+1" + "a" * 24 + "@bounces.example.com", None),
        ("b+" + "a" * 23 + "@bounces.example.com", None),
        ("b+" + "a" * 25 + "@bounces.example.com", None),
        ("b+" + "a" * 23 + "1@bounces.example.com", None),
        ("b+" + "a" * 23 + "ſ@bounces.example.com", None),
        ("c+" + "a" * 24 + "@bounces.example.com", None),
        ("fbl+x@bounces.example.com", None),
        ("fbl@", None),
        ("fbl", None),
        ("", None),
        ("fbl@a@b", None),
        ("fbl@example.com\n", None),
        ("Postmaster@bounces.example.com", FeedbackAddress(NAME, report=ReportAddress.POSTMASTER)),
        ("abuse@bounces.example.com", FeedbackAddress(NAME, report=ReportAddress.ABUSE)),
        ("mailer-daemon@bounces.example.com", None),
        ("fbl@" + "a" * 400, None),
    ],
)
def test_an_address_of_rcpt(address: str, expected: FeedbackAddress | None) -> None:
    assert read_address(address) == expected


@given(st.text(max_size=80))
def test_any_text_is_an_address_or_none(text: str) -> None:
    read_address(text)
    for kind in "bu":
        read = read_address(f"{kind}+{text}@x.y")
        if read is not None and read.token is not None:
            assert PATHS.check(read.token, read.domain, NOW) is TokenFault.FORGED


@pytest.mark.parametrize("kind", ["address", "unsubscribe"])
def test_customers_read_no_token(kind: str) -> None:
    paths, id_ = ReturnPaths(bytes(32)), Environment().identifier("rcp")
    name = "bounces.example.com"
    address = paths.address(id_, name) if kind == "address" else paths.unsubscribe_address(id_, name, 3)
    for text in (f"MAIL FROM:<{address}> SIZE=10", f"451 <{address.upper()}>: greylisted", f"550 {address}"):
        shown = without_tokens(text)
        assert shown.lower() == text.lower().replace(address[2:].partition("@")[0], "…")
    for text in ("MAIL FROM:<news+tag@example.com>", "250 b+c@example.com", "1+1", ""):
        assert without_tokens(text) == text


LINKS = UnsubscribeLinks(b"k" * 32, "https://mail.example.com")
WANTED = Unsubscription("acc_1", "tag:news", "ada@example.net")
KNOWN_LINK = "AWFjY18xAHRhZzpuZXdzAGFkYUBleGFtcGxlLm5ldP70meSQZYIPT8bIEdiMius"

words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=64)


@given(words, words, words)
def test_a_token_says_what_it_was_made_of(account_id: str, mail_list: str, address: str) -> None:
    """Any account, list and address come back as they were."""
    wanted = Unsubscription(account_id, mail_list, address)
    assert LINKS.read(LINKS.token(wanted)) == wanted


def test_tokens_stay_good() -> None:
    assert LINKS.token(WANTED) == KNOWN_LINK
    assert LINKS.read(KNOWN_LINK) == WANTED
    assert LINKS.url(WANTED) == f"https://mail.example.com/unsubscribe/{KNOWN_LINK}"


@pytest.mark.parametrize("base_url", ["http://mail.example.com", ""])
def test_there_is_no_link_without_https(base_url: str) -> None:
    """RFC 8058 allows no other scheme; tokens of earlier links are still read."""
    links = UnsubscribeLinks(b"k" * 32, base_url)
    assert not links.usable
    assert links.url(WANTED) is None
    assert links.read(KNOWN_LINK) == WANTED


@given(st.integers(0, len(KNOWN_LINK) - 1), st.sampled_from("ABab01-_"))
def test_a_changed_token_is_forged(place: int, letter: str) -> None:
    """Whatever letter is exchanged, the token is refused, unless it stands for the same bytes."""
    changed = KNOWN_LINK[:place] + letter + KNOWN_LINK[place + 1 :]
    same = _bytes(changed) == _bytes(KNOWN_LINK)
    assert (LINKS.read(changed) is not None) == same


@given(st.text(max_size=120) | st.text("AZaz09-_", min_size=20, max_size=1100))
def test_anything_else_is_forged(token: str) -> None:
    assert LINKS.read(token) is None


def test_another_installations_token_is_forged() -> None:
    assert UnsubscribeLinks(b"j" * 32, "https://mail.example.com").read(KNOWN_LINK) is None


def test_the_longest_link_fits_a_line() -> None:
    longest = Unsubscription("acc_" + "0" * 32, "tag:" + "x" * 64, "ä" * 32 + "@" + "d" * 189)
    url = UnsubscribeLinks(b"k" * 32, f"https://{'h' * 253}:65535").url(longest)
    assert url is not None
    assert len(f"List-Unsubscribe: <{url}>") <= 998


def _bytes(token: str) -> bytes:
    return pybase64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
