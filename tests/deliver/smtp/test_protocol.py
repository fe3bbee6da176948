"""Commands: what must never be written into one is refused before it is."""

import pytest

from appliance.deliver.smtp import protocol
from appliance.deliver.smtp.protocol import RelayCredentials, UnsafeArgument

BAD = ["\r", "\n", "\0", " ", "<", ">", "\t", "\x7f", "\x85", "\u2028"]


@pytest.mark.parametrize("bad", BAD)
def test_no_address_ends_its_command(bad: str) -> None:
    """CR, LF, NUL, space, angle brackets and control characters in an address raise instead of being written."""
    with pytest.raises(UnsafeArgument):
        protocol.mail_command(f"a{bad}b@example.com")
    with pytest.raises(UnsafeArgument):
        protocol.rcpt_command(f"a{bad}b@example.com")


@pytest.mark.parametrize("bad", [*BAD, "", "é"])
def test_no_greeting_name_ends_its_command(bad: str) -> None:
    """The name in EHLO is a host name or an address literal and nothing else."""
    with pytest.raises(UnsafeArgument):
        protocol.hello_command("EHLO", f"{bad}" if not bad else f"a{bad}b")


def test_commands_are_written_as_the_rfc_wants_them() -> None:
    """No space after the colon, angle brackets, parameters behind; the empty sender is allowed, the recipient not."""
    assert protocol.mail_command("") == "MAIL FROM:<>"
    assert protocol.mail_command("a@b.example", " SIZE=1") == "MAIL FROM:<a@b.example> SIZE=1"
    assert protocol.rcpt_command("ü@b.example") == "RCPT TO:<ü@b.example>"
    assert protocol.hello_command("EHLO", "[IPv6:2001:db8::1]") == "EHLO [IPv6:2001:db8::1]"
    with pytest.raises(UnsafeArgument):
        protocol.rcpt_command("")


def test_credentials_do_not_show_or_split() -> None:
    """The password is not in the repr, and a NUL in it is refused."""
    assert "hunter2" not in repr(RelayCredentials("u", "hunter2"))
    assert protocol.plain_secret(RelayCredentials("u", "p")) == "AHUAcA=="
    with pytest.raises(UnsafeArgument):
        protocol.plain_secret(RelayCredentials("u", "p\0q"))
