"""Links of one-click unsubscribe: they say whom and what they are for, and cannot be made without the key."""

import pybase64
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.feedback.unsubscribe import UnsubscribeLinks, Unsubscription

LINKS = UnsubscribeLinks(b"k" * 32, "https://mail.example.com")
WANTED = Unsubscription("acc_1", "tag:news", "ada@example.net")
KNOWN = "AWFjY18xAHRhZzpuZXdzAGFkYUBleGFtcGxlLm5ldP70meSQZYIPT8bIEdiMius"

words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=64)


@given(words, words, words)
def test_a_token_says_what_it_was_made_of(account_id: str, mail_list: str, address: str) -> None:
    """Any account, list and address come back as they were."""
    wanted = Unsubscription(account_id, mail_list, address)
    assert LINKS.read(LINKS.token(wanted)) == wanted


def test_tokens_stay_good() -> None:
    """The layout is that of the links in mail that has been sent."""
    assert LINKS.token(WANTED) == KNOWN
    assert LINKS.read(KNOWN) == WANTED
    assert LINKS.url(WANTED) == f"https://mail.example.com/unsubscribe/{KNOWN}"


@pytest.mark.parametrize("base_url", ["http://mail.example.com", ""])
def test_there_is_no_link_without_https(base_url: str) -> None:
    """RFC 8058 allows no other scheme; tokens of earlier links are still read."""
    links = UnsubscribeLinks(b"k" * 32, base_url)
    assert not links.usable
    assert links.url(WANTED) is None
    assert links.read(KNOWN) == WANTED


@given(st.integers(0, len(KNOWN) - 1), st.sampled_from("ABab01-_"))
def test_a_changed_token_is_forged(place: int, letter: str) -> None:
    """Whatever letter is exchanged, the token is refused, unless it stands for the same bytes."""
    changed = KNOWN[:place] + letter + KNOWN[place + 1 :]
    same = _bytes(changed) == _bytes(KNOWN)
    assert (LINKS.read(changed) is not None) == same


@given(st.text(max_size=120) | st.text("AZaz09-_", min_size=20, max_size=1100))
def test_anything_else_is_forged(token: str) -> None:
    """No text that we did not make is taken for a token, and none raises."""
    assert LINKS.read(token) is None


def test_another_installations_token_is_forged() -> None:
    """The key decides."""
    assert UnsubscribeLinks(b"j" * 32, "https://mail.example.com").read(KNOWN) is None


def test_the_longest_link_fits_a_line() -> None:
    """The header is one line of at most 998 octets, for the longest address, tag and name of a server."""
    longest = Unsubscription("acc_" + "0" * 32, "tag:" + "x" * 64, "ä" * 32 + "@" + "d" * 189)
    url = UnsubscribeLinks(b"k" * 32, f"https://{'h' * 253}:65535").url(longest)
    assert url is not None
    assert len(f"List-Unsubscribe: <{url}>") <= 998


def _bytes(token: str) -> bytes:
    return pybase64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
