"""The door that answers a request."""

import pytest

from appliance.config.settings import DoorName
from appliance.web.doors.serving import Doors

ALL = tuple(DoorName)
TOKEN = {b"x-postmark-server-token": b"ma_live_x"}


@pytest.mark.parametrize(
    ("path", "headers", "names", "found"),
    [
        ("/postmark/email", TOKEN, ALL, ("postmark", "/email")),
        ("/email/", TOKEN, ALL, ("postmark", "/email")),
        ("/email", {}, ALL, None),
        ("/mailgun/v3/a.example/messages", TOKEN, ALL, ("mailgun", "/v3/a.example/messages")),
        ("//sendgrid/v3/mail/send", TOKEN, ALL, ("sendgrid", "/v3/mail/send")),
        ("/v3/a.example/messages", TOKEN, ALL, ("mailgun", "/v3/a.example/messages")),
        ("/resend", TOKEN, ALL, ("resend", "/")),
        ("/resend/emails", TOKEN, [DoorName.POSTMARK], None),
        ("/resends", TOKEN, [DoorName.POSTMARK], ("postmark", "/resends")),
        ("/email", TOKEN, [DoorName.MAILGUN], None),
        ("/mailgun/v3/a.example/messages", {}, [], None),
    ],
)
def test_a_path_names_its_door(
    path: str, headers: dict[bytes, bytes], names: list[DoorName], found: tuple[str, str] | None
) -> None:
    """Before any header does: a proxy or a shared client may add the token of Postmark to every request."""
    door = Doors().find(names, path, headers)
    assert (door and (door.door.name, door.path)) == found
