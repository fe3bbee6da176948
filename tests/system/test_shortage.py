"""What counts as a lack of this machine, and what as a fault of the other side."""

import errno

import pytest

from appliance.system.shortage import SHORTAGE_ERRNOS, Shortage, lack_behind, raise_if_short


@pytest.mark.parametrize("lack", sorted(SHORTAGE_ERRNOS))
def test_a_lack_is_found_behind_other_errors(lack: int) -> None:
    """Whatever a library made of it: another exception, or a group of them."""
    system = OSError(lack, "words")
    wrapped = OSError("all attempts to connect failed")
    wrapped.__cause__ = ExceptionGroup("several", [ConnectionRefusedError(errno.ECONNREFUSED, "no"), system])
    for error in (system, wrapped):
        assert lack_behind(error) == "words"
        with pytest.raises(Shortage, match="words"):
            raise_if_short(error)


@pytest.mark.parametrize("code", [errno.ECONNREFUSED, errno.ENETUNREACH, errno.ETIMEDOUT, errno.EACCES, None])
def test_other_errors_are_the_other_side_s(code: int | None) -> None:
    """A server that refuses, or cannot be reached, is no lack of this machine."""
    error = OSError("words") if code is None else OSError(code, "words")
    assert lack_behind(error, "192.0.2.1") is None
    raise_if_short(error)


def test_no_address_is_a_lack_of_ports_only_for_ipv4() -> None:
    """A machine without IPv6 says the same of every IPv6 address: there the next address is tried, as before."""
    error = OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
    assert lack_behind(error, "192.0.2.1") is not None
    assert lack_behind(error, "2001:db8::1") is None
