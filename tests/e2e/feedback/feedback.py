"""What comes back to a running appliance: its return paths, and a client that sends to them."""

import smtplib
from urllib.parse import urlsplit

from appliance.feedback.return_path import ReturnPaths
from appliance.keys.keyfile import KEY_FILE
from tests.running_appliance import Running

NAME = "bounces.example.com"
LISTENS = '[inbound]\nbind = ["127.0.0.1:0"]'  # a section of the settings


def return_path(running: Running, recipient_id: str, name: str = NAME) -> str:
    return ReturnPaths((running.data_dir / KEY_FILE).read_bytes()).address(recipient_id, name)


def server(running: Running) -> smtplib.SMTP:
    parts = urlsplit(running.inbound[0])
    return smtplib.SMTP(parts.hostname or "", parts.port or 0, local_hostname="mx.example.net", timeout=20)


def send_back(running: Running, mime: bytes, *addresses: str) -> None:
    """Send one mail, with the null sender; each address must be taken."""
    with server(running) as client:
        assert client.sendmail("", addresses, mime) == {}
