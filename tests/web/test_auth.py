"""The cookie of a session: its content, when it is secure, and which pages may use it."""

import pytest

from appliance.model.dashboard import LoginSession
from appliance.web.auth import SessionCookies

SESSION = LoginSession(f"ses_{'a' * 32}", "usr_1", 3, "192.0.2.1", "", 0, 1_000_000, 61_000_000)
PLAIN = SessionCookies(b"key", "http://mail.example.com:8080")
PROXIED = SessionCookies(b"key", "https://mail.example.com")


def value(cookies: SessionCookies) -> str:
    return cookies.give(SESSION, "http").partition("=")[2].partition(";")[0]


def test_it_is_read_back() -> None:
    assert PLAIN.read(value(PLAIN)) == (SESSION.id, 3)
    assert SessionCookies(b"other key", PLAIN.base_url).read(value(PLAIN)) is None


@pytest.mark.parametrize("position", range(0, 103, 3))
def test_every_character_counts(position: int) -> None:
    good = value(PLAIN)
    changed = good[:position] + ("0" if good[position] != "0" else "1") + good[position + 1 :]
    assert PLAIN.read(changed) is None


def test_it_is_secure_wherever_the_browser_sees_https() -> None:
    """Over TLS of our own, or behind a proxy that ends it; not where a browser would then not send it."""
    assert "; Secure" not in PLAIN.give(SESSION, "http")
    assert "; Secure" in PLAIN.give(SESSION, "https")
    assert "; Secure" in PROXIED.give(SESSION, "http")
    assert "; Secure" in PROXIED.clear("http")


def test_it_lasts_as_long_as_the_session() -> None:
    assert "; Max-Age=60;" in PLAIN.give(SESSION, "http")
    assert "; Max-Age=0;" in PLAIN.clear("http")


@pytest.mark.parametrize(
    ("site", "origin", "host", "own"),
    [
        ("same-origin", None, "x", True),
        ("same-site", "https://mail.example.com", "mail.example.com", False),
        ("cross-site", None, "x", False),
        ("none", None, "x", False),
        ("", None, "x", False),
        (None, None, "mail.example.com", False),
        (None, "https://mail.example.com", "internal:8080", True),
        (None, "https://mail.example.com:443", "internal:8080", True),
        (None, "http://internal:8080", "internal:8080", True),
        (None, "http://internal", "internal:80", True),
        (None, "http://INTERNAL:8080", "internal:8080", True),
        (None, "http://internal:8081", "internal:8080", False),
        (None, "https://mail.example.com.evil.example", "mail.example.com", False),
        (None, "null", "null", False),
        (None, "http://[::1", "[::1", False),
        (None, "http://a:99999", "a:99999", False),
    ],
)
def test_only_own_pages_may_use_it(site: str | None, origin: str | None, host: str, own: bool) -> None:
    assert PROXIED.is_own_page(site, origin, host) is own
