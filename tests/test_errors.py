"""Errors as operators read them."""

import errno
import socket
import ssl

import pytest

from appliance.errors import error_text


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENETUNREACH, "Network is unreachable"), "network is unreachable"),
        (OSError(errno.ECONNREFUSED, "Trio's own words, with ('192.0.2.1', 53) in them"), "connection refused"),
        (PermissionError(errno.EACCES, "Permission denied"), "permission denied"),
        (OSError("all attempts to connect failed"), "all attempts to connect failed"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "Name or service not known"),
        (ssl.SSLError(1, "[SSL] wrong version number"), "[SSL] wrong version number"),
        (ValueError("a pointer that leads nowhere"), "a pointer that leads nowhere"),
        (ValueError(), "ValueError"),
    ],
)
def test_an_error_is_told_in_words(error: Exception, words: str) -> None:
    assert error_text(error) == words
