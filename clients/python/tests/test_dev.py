"""A sign-up test as in the README, against the real program that `$APPLIANCE_COMMAND` names."""

import os
import re
import smtplib
from email.message import EmailMessage

import pytest

from mail_appliance.dev import COMMAND, DevAppliance
from mail_appliance.pytest_plugin import appliance, appliance_server

__all__ = ["appliance", "appliance_server"]
pytestmark = pytest.mark.skipif(COMMAND not in os.environ, reason=f"{COMMAND} is not set")


def test_a_sign_up_mails_a_link(appliance: DevAppliance) -> None:
    link = "https://my.test/confirm?token=42"
    with appliance.client() as mail:
        mail.send(from_="shop@my.test", to="ada@example.net", subject="Confirm your address", text=f"Confirm: {link}")
    received = appliance.wait(to="ada@example.net")
    assert (received.subject, received.sender) == ("Confirm your address", "shop@my.test")
    match = re.search(r"https://\S+", received.text or "")
    assert match is not None
    assert match[0] == link


def test_the_inbox_of_each_test_is_empty(appliance: DevAppliance) -> None:
    with pytest.raises(TimeoutError, match="no message with"):
        appliance.wait(timeout=0)
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "app@my.test", "bob@example.net", "By SMTP"
    message.set_content("Hello")
    with smtplib.SMTP(appliance.smtp_host, appliance.smtp_port) as client:
        client.send_message(message)
    assert appliance.wait(subject="by smtp").recipients == ("bob@example.net",)
