"""Slashes that joining a base URL and a path adds lead to the same route."""

import pytest

from tests.e2e.raw import MESSAGE, Client, request, sending
from tests.running_appliance import Running


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("POST", "/emails/", 202),
        ("POST", "//emails", 202),
        ("POST", "//emails//", 202),
        ("POST", "/emails?a=b", 202),
        ("GET", "/emails/ID/", 200),
        ("GET", "//emails//ID", 200),
        ("GET", "/emails/", 404),
        ("GET", "/emails", 405),
        ("POST", "/v1/auth/login/", 400),
        ("POST", "//v1/auth/login", 400),
    ],
)
def test_slashes_that_clients_add_are_none(running: Running, method: str, target: str, status: int) -> None:
    """One at the end and one doubled, as joining a base URL and a path makes them, lead to the same route."""
    with Client(running.url) as client:
        client.send(request("POST", "/emails", *sending(running, "slashes"), body=MESSAGE))
        message_id = client.answer().json()["id"]
        target = target.replace("ID", message_id)
        body = MESSAGE if method == "POST" else None
        client.send(request(method, target, *sending(running, target), body=body))
        assert client.answer().status == status
