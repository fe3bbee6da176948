"""Web pages and other names cannot use a server without a login."""

import pytest

from appliance.dev.guard import foreign

OWN = {b"host": b"localhost:8080"}


@pytest.mark.parametrize("host", [b"localhost:8080", b"LOCALHOST", b"127.0.0.1:9000", b"[::1]:8080", b"[::1]"])
def test_this_machine_has_these_names(host: bytes) -> None:
    assert foreign("POST", "/emails", {b"host": host}) is None


@pytest.mark.parametrize(
    "host",
    [
        b"evil.example:8080",
        b"localhost.evil.example",
        b"127.0.0.1.evil.example:8080",
        b"",
        b"mail.localhost",
        b"0.0.0.0",
    ],
)
def test_a_name_that_leads_here_is_refused(host: bytes) -> None:
    """A page at such a name could otherwise read the inbox: DNS rebinding."""
    assert "Host:" in (foreign("GET", "/v1/emails", {b"host": host}) or "")


@pytest.mark.parametrize("origin", [b"http://localhost:8080"])
def test_the_inbox_may_post(origin: bytes) -> None:
    headers = OWN | {b"origin": origin, b"sec-fetch-site": b"same-origin"}
    assert foreign("DELETE", "/v1/emails", headers) is None


@pytest.mark.parametrize(
    "origin",
    [b"https://evil.example", b"null", b"http://localhost:3000", b"https://localhost:8080", b"http://localhost:8080.x"],
)
def test_a_page_of_another_origin_may_not(origin: bytes) -> None:
    assert "Origin:" in (foreign("POST", "/emails", OWN | {b"origin": origin}) or "")


@pytest.mark.parametrize("site", [b"cross-site", b"same-site"])
def test_a_page_elsewhere_loads_nothing(site: bytes) -> None:
    """Images and scripts send no Origin, but browsers name their site."""
    headers = OWN | {b"sec-fetch-site": site, b"sec-fetch-mode": b"no-cors"}
    assert foreign("GET", "/v1/emails", headers) is not None


def test_a_link_elsewhere_opens_the_inbox_but_no_data() -> None:
    headers = OWN | {b"sec-fetch-site": b"cross-site", b"sec-fetch-mode": b"navigate"}
    assert foreign("GET", "/dashboard/inbox", headers) is None
    assert foreign("GET", "/v1/emails/msg_1/raw", headers) is not None
    assert foreign("POST", "/emails", headers) is not None
