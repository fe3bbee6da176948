"""The rules for what operators and customers name: return paths."""

import pytest

from appliance.errors import Code, Refused
from appliance.intake.account_rules import return_path
from appliance.message.limits import ADDRESS_LENGTH, RETURN_PATH_LENGTH

LABEL = "a" * 50


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("bounces.example.com", "bounces.example.com"),
        ("RP.Mail.Example.COM.", "rp.mail.example.com"),
        ("rückläufer.example.com", "xn--rcklufer-3za0v.example.com"),
    ],
)
def test_a_return_path_is_a_name_below_the_domain(text: str, name: str) -> None:
    assert return_path(text, "example.com") == name


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("example.com", "is not below example.com"),
        ("bounces.example.net", "is not below example.com"),
        ("badexample.com", "is not below example.com"),
        ("", "is not a host name such as bounces.example.com"),
        ("b@bounces.example.com", "is not a host name"),
        ("a..example.com", "is not a host name"),
        (f"{LABEL}.{LABEL}.{LABEL}.{LABEL}.{'b' * 12}.example.com", "has at most 227 characters"),
    ],
)
def test_any_other_name_is_refused(text: str, reason: str) -> None:
    """DMARC would not take its SPF for the domain's, or no address with a token would fit."""
    with pytest.raises(Refused, match=reason) as refused:
        return_path(text, "example.com")
    assert refused.value.code is Code.INVALID_REQUEST
    assert refused.value.text.startswith("return_path: ")


def test_an_address_with_a_token_fits() -> None:
    assert len("b+") + 24 + len("@") + RETURN_PATH_LENGTH == ADDRESS_LENGTH
