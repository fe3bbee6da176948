"""In charge of what EHLO offers: every extension that matters, in any spelling."""

import pytest

from appliance.deliver.smtp.capabilities import Capabilities, capabilities
from appliance.deliver.smtp.reply import Reply


def test_all_extensions_are_read_in_any_case() -> None:
    """Keywords and parameters are recognised whatever their case."""
    lines = (
        "mx",
        "Pipelining",
        "size 1000",
        "8bitmime",
        "SmtpUtf8",
        "starttls",
        "EnhancedStatusCodes",
        "auth plain Login",
    )
    assert capabilities(Reply(250, lines)) == Capabilities(
        pipelining=True,
        size=True,
        size_limit=1000,
        eight_bit=True,
        smtputf8=True,
        starttls=True,
        enhanced_status_codes=True,
        auth=frozenset({"PLAIN", "LOGIN"}),
    )


def test_the_first_line_offers_nothing() -> None:
    """A server whose name is STARTTLS does not offer it."""
    assert capabilities(Reply(250, ("STARTTLS",))) == Capabilities()


@pytest.mark.parametrize(
    ("line", "limit"),
    [("SIZE", None), ("SIZE 0", None), ("SIZE many", None), ("SIZE -1", None), ("SIZE ²", None), ("SIZE 10", 10)],
)
def test_a_size_without_a_number_is_no_limit(line: str, limit: int | None) -> None:
    """SIZE alone, SIZE 0 and nonsense mean that no limit is known."""
    assert capabilities(Reply(250, ("mx", line))) == Capabilities(size=True, size_limit=limit)


def test_the_old_spelling_of_auth_is_read() -> None:
    """`AUTH=LOGIN PLAIN` offers the same as `AUTH LOGIN PLAIN`, and both together offer it once."""
    assert capabilities(Reply(250, ("mx", "AUTH=LOGIN PLAIN"))).auth == {"LOGIN", "PLAIN"}
    assert capabilities(Reply(250, ("mx", "AUTH LOGIN", "AUTH=PLAIN"))).auth == {"LOGIN", "PLAIN"}


def test_empty_lines_offer_nothing() -> None:
    """An empty line in an EHLO reply is passed over."""
    assert capabilities(Reply(250, ("mx", "", "PIPELINING"))) == Capabilities(pipelining=True)
