"""The backends of Django and Flask-Mailman, with the frameworks' own messages, over real sockets."""

import gettext
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.message import EmailMessage as MimeMessage
from email.message import MIMEPart as MimePart
from email.mime.base import MIMEBase
from email.mime.image import MIMEImage
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from importlib import import_module
from typing import Any

import pytest

from mail_appliance import ConfigurationError, InvalidRequest
from mail_appliance.email_messages import UnsupportedMessage, close_shared_clients, shared_client

from .conftest import Server, answer

# Django 6.1 speaks of what its own classes will no longer take.
pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:PendingDeprecationWarning")

GIF = b"GIF89a\x01\x00\x01\x00\x00\x00\x00;"


class Framework:
    """The names that both frameworks have."""

    def __init__(self, module: Any, multi: Any, server: Server) -> None:
        self.message = module.EmailMessage
        self.multi = multi
        self.connection = module.get_connection
        self.server = server

    def send(self, message: Any) -> dict[str, Any]:
        """The fields that the appliance got."""
        assert message.send() == 1
        return self.server.appliance.sent[-1].fields

    def refusal(self, message: Any) -> str:
        """Why the message was refused, before any request."""
        before = len(self.server.requests)
        with pytest.raises(UnsupportedMessage) as caught:
            message.send()
        assert len(self.server.requests) == before
        return str(caught.value)


def django_backend() -> dict[str, Any]:
    """The settings that choose the backend."""
    path = "mail_appliance.django.EmailBackend"
    if import_module("django").VERSION < (6, 1):
        return {"EMAIL_BACKEND": path}
    return {"MAILERS": {"default": {"BACKEND": path}}}


@pytest.fixture(params=["django", "flask"])
def framework(request: pytest.FixtureRequest, server: Server) -> Iterator[Framework]:
    """Each framework, configured for the server."""
    configured = {"MAIL_APPLIANCE_URL": server.url, "MAIL_APPLIANCE_TOKEN": "t", "MAIL_APPLIANCE_RETRIES": 0}
    if request.param == "django":
        settings = pytest.importorskip("django.conf").settings
        mail, utils = import_module("django.core.mail"), import_module("django.test.utils")
        if not settings.configured:
            settings.configure()
        # Another test of this process may have configured Django.
        with utils.override_settings(DEFAULT_FROM_EMAIL="shop@example.com", **django_backend(), **configured):
            yield Framework(mail, mail.EmailMultiAlternatives, server)
    else:
        flask = pytest.importorskip("flask")
        mailman = pytest.importorskip("flask_mailman")
        app = flask.Flask("shop")
        backend = "mail_appliance.flask.EmailBackend"
        app.config.update(MAIL_BACKEND=backend, MAIL_DEFAULT_SENDER="shop@example.com", **configured)
        mailman.get_connection = mailman.Mail(app).get_connection
        with app.app_context():
            yield Framework(mailman, mailman.EmailMultiAlternatives, server)
    close_shared_clients()


def test_a_plain_message(framework: Framework) -> None:
    """With all kinds of addresses, headers and tags; the key is taken out of the headers."""
    message = framework.message(
        "Grüße",
        "Hello",
        "Shop <shop@example.com>",
        ["Ada <ada@example.net>"],
        cc=["c@example.net"],
        bcc=["b@example.net"],
        reply_to=["help@example.com"],
        headers={"idempotency-key": "order-1", "X-Order": 1},
    )
    message.tags = ["order"]
    message.metadata = {"customer": 17}
    message.scheduled_at = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert framework.send(message) == {
        "from": "Shop <shop@example.com>",
        "to": ["Ada <ada@example.net>"],
        "cc": ["c@example.net"],
        "bcc": ["b@example.net"],
        "reply_to": "help@example.com",
        "subject": "Grüße",
        "text": "Hello",
        "headers": {"X-Order": "1"},
        "tags": ["order"],
        "metadata": {"customer": "17"},
        "scheduled_at": "2030-01-02T03:04:05+00:00",
    }
    assert framework.server.requests[0].headers["idempotency-key"] == "order-1"
    assert message.mail_appliance_result.id == "msg_1"


def test_defaults(framework: Framework) -> None:
    """The framework's sender is used, and a key is made."""
    assert framework.send(framework.message("s", "t", to=["a@example.net"]))["from"] == "shop@example.com"
    assert framework.server.requests[0].headers["idempotency-key"].startswith("auto_")


def test_html(framework: Framework) -> None:
    """As an alternative, as the body itself, and without a text."""
    both = framework.multi("s", "text", to=["a@example.net"], alternatives=[("<p>html", "text/html")])
    fields = framework.send(both)
    assert (fields["text"], fields["html"]) == ("text", "<p>html")
    body = framework.message("s", "<p>html", to=["a@example.net"])
    body.content_subtype = "html"
    fields = framework.send(body)
    assert (fields.get("text"), fields["html"]) == (None, "<p>html")
    alone = framework.multi("s", "", to=["a@example.net"])
    alone.attach_alternative("<p>html", "text/html")
    assert "text" not in framework.send(alone)
    assert framework.send(framework.message("s", "", to=["a@example.net"]))["text"] == ""


def test_attachments(framework: Framework) -> None:
    """From bytes and text, and as parts; inline images have their Content-ID, and a name if they have none."""
    message = framework.message("s", "t", to=["a@example.net"])
    message.attach("a.pdf", b"%PDF\xff", "application/pdf")
    message.attach("b.csv", "a,ü", "text/csv")
    image = MIMEImage(GIF)
    image.add_header("Content-ID", "<logo@example.com>")
    image.add_header("Content-Disposition", "inline")
    named = MIMEImage(GIF)
    named.add_header("Content-Disposition", "attachment", filename="ü.gif")
    message.attach(image)
    message.attach(named)
    sent = framework.send(message)["attachments"]
    contents = framework.server.appliance.sent[0].attachment
    assert [(item["filename"], item["content_type"], item.get("content_id")) for item in sent] == [
        ("a.pdf", "application/pdf", None),
        ("b.csv", "text/csv; charset=utf-8", None),
        ("logo_example.com.gif", "image/gif", "logo@example.com"),
        ("ü.gif", "image/gif", None),
    ]
    assert [contents(item["filename"]) for item in sent] == [b"%PDF\xff", "a,ü".encode(), GIF, GIF]


def test_related_images(framework: Framework) -> None:
    """An old way to say that images belong to the HTML."""
    message = framework.multi("s", "t", to=["a@example.net"], alternatives=[('<img src="cid:a">', "text/html")])
    message.mixed_subtype = "related"
    image = MIMEImage(GIF, name="a.gif")
    image["Content-ID"] = "<a>"
    image["Content-Disposition"] = 'inline; filename="a.gif"'
    message.attach(image)
    assert framework.send(message)["attachments"][0]["content_id"] == "a"
    message.attach("b.txt", "text", "text/plain")
    assert "b.txt" in framework.refusal(message)


def calendar(part: MIMEBase) -> MIMEBase:
    """With a header that JSON has no field for."""
    part["Content-Class"] = "urn:content-classes:calendarmessage"
    part["Content-Disposition"] = 'attachment; filename="a.ics"'
    return part


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda m: m.attach_alternative("BEGIN:VCALENDAR", "text/calendar"), "text/calendar"),
        (lambda m: m.attach_alternative("<p>", "text/html") or m.attach_alternative("<b>", "text/html"), "second"),
        (lambda m: setattr(m, "content_subtype", "markdown"), "text/markdown"),
        (lambda m: m.attach("a.eml", "Subject: x\n\nbody", "message/rfc822"), "message/rfc822"),
        (lambda m: m.attach(MIMEMultipart("mixed")), "multipart/mixed"),
        (lambda m: m.attach(None, b"x", "application/pdf"), "file name"),
        (lambda m: m.attach(MIMEText("x")), "text/plain without a file name"),
        (lambda m: m.attach(calendar(MIMEText("x", "calendar"))), "Content-Class"),
        (lambda m: setattr(m, "mixed_subtype", "report"), "multipart/report"),
        (lambda m: setattr(m, "reply_to", ["a@example.net", "b@example.net"]), "reply_to"),
        (lambda m: m.extra_headers.update({"To": "x@example.net"}), "To"),
        (lambda m: m.__dict__.update(bcc=m.to, to=[]), "without an address in to"),
    ],
)
def test_what_json_cannot_carry_is_refused(framework: Framework, change: Callable[[Any], None], named: str) -> None:
    """By name, before any request, instead of being dropped."""
    message = framework.multi("s", "t", to=["a@example.net"])
    change(message)
    assert named in framework.refusal(message)


def test_an_inline_part_needs_a_content_id(framework: Framework) -> None:
    """Without one it looks like an attachment."""
    message = framework.message("s", "t", to=["a@example.net"])
    part = MIMEText("footer")
    part["Content-Disposition"] = 'inline; filename="f.txt"'
    message.attach(part)
    assert "inline part f.txt" in framework.refusal(message)


def test_a_message_that_writes_its_own_mime(framework: Framework) -> None:
    """A signed one, for example, would be sent unsigned."""

    class Signed(framework.message):  # type: ignore[name-defined, misc]
        def message(self, *args: Any, **options: Any) -> MimeMessage:
            return MimeMessage()

    assert "Signed" in framework.refusal(Signed("s", "t", to=["a@example.net"]))


def test_reply_to_as_a_header(framework: Framework) -> None:
    """It wins over the field, as in the frameworks."""
    message = framework.message(
        "s", "t", to=["a@example.net"], headers={"Reply-To": "r@example.net"}, reply_to=["x@y.z"]
    )
    fields = framework.send(message)
    assert fields["reply_to"] == "r@example.net"
    assert "headers" not in fields


def test_failures(framework: Framework) -> None:
    """The library's errors are raised, and swallowed only with fail_silently; refusals too."""
    framework.server.script += [answer(400, {"error": "from: no.", "code": "invalid_request"})] * 2
    with pytest.raises(InvalidRequest, match="from: no"):
        framework.message("s", "t", to=["a@example.net"]).send()
    silent = framework.connection(fail_silently=True)
    odd = framework.message("s", "t", to=["a@example.net"], reply_to=["a@b.c", "d@e.f"])
    good = framework.message("s", "t", to=["a@example.net"])
    assert silent.send_messages([good, odd, good]) == 1


def test_many_messages_share_a_connection(framework: Framework) -> None:
    """Also those of different calls; a message without recipients is not sent."""
    messages = [framework.message("s", str(number), to=["a@example.net"]) for number in range(3)]
    assert framework.connection().send_messages([*messages, framework.message("s", "t")]) == 3
    assert framework.connection().send_messages(messages) == 3
    assert framework.connection().send_messages([]) == 0
    assert framework.server.connections == 1


def test_credentials_of_one_call(framework: Framework) -> None:
    """`auth_user` and `auth_password` win over the settings."""
    framework.connection(username="u", password="p").send_messages([framework.message("s", "t", to=["a@example.net"])])
    assert framework.server.requests[0].headers["authorization"] == "Basic dTpw"


def test_lazy_texts(framework: Framework) -> None:
    """Translations are made when the message is sent."""

    class Lazy:
        def __str__(self) -> str:
            return gettext.gettext("Welcome")

    assert framework.send(framework.message(Lazy(), Lazy(), to=["a@example.net"]))["subject"] == "Welcome"


def test_options_win_over_settings(framework: Framework) -> None:
    """Options of a connection, as Django's mailers pass them."""
    options = {"url": f"{framework.server.url}/mail", "token": "other", "timeout": 5}
    message = framework.message("s", "t", to=["a@example.net"])
    assert framework.connection(**options).send_messages([message]) == 1
    received = framework.server.requests[0]
    assert (received.target, received.headers["authorization"]) == ("/mail/emails", "Bearer other")


def test_django_has_nothing_to_warn_of(server: Server) -> None:
    """A message is sent by the newest ways of the installed version, with a part of the newer email package."""
    settings = pytest.importorskip("django.conf").settings
    mail, utils = import_module("django.core.mail"), import_module("django.test.utils")
    if not settings.configured:
        settings.configure()
    image = MimePart()
    image.set_content(GIF, maintype="image", subtype="gif", disposition="inline", cid="<logo>")
    message = mail.EmailMessage("s", "t", "a@example.com", ["b@example.net"])
    message.attachments.append(image)
    configured = {"MAIL_APPLIANCE_URL": server.url, "MAIL_APPLIANCE_TOKEN": "t"}
    with warnings.catch_warnings(), utils.override_settings(**django_backend(), **configured):
        warnings.simplefilter("error")
        assert message.send() == 1
    assert server.appliance.sent[0].attachment("logo.gif") == GIF
    close_shared_clients()


def test_settings_that_are_missing_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is missing in both is named."""
    monkeypatch.setenv("MAIL_APPLIANCE_URL", "http://127.0.0.1:9")
    with pytest.raises(ConfigurationError, match="MAIL_APPLIANCE_TOKEN"):
        shared_client(lambda _: None, {})
    monkeypatch.setenv("MAIL_APPLIANCE_TOKEN", "t")
    assert shared_client(lambda _: None, {}) is shared_client(lambda _: "", {"url": None})
    close_shared_clients()
