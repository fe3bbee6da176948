"""Mutated requests of each door: each is refused or understood, and no field is dropped without a word.

Most mutations write a marker into a valid text, which the messages must have. Others replace, remove, repeat or add a
value: one that changes nothing in the messages must be one that means the same. `tests/e2e/doors/test_mutations.py`
sends such requests to a server.
"""

import base64
import json
import random
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest

from appliance.errors import Refused
from appliance.message.batch import Series, batch_of
from appliance.message.compose import draft
from appliance.message.request import Mime
from appliance.message.schema import SendRequest
from appliance.model.mail import StoredTemplate
from appliance.web.doors.frame import Call, Door, Send, Sends
from appliance.web.doors.mailgun import MAILGUN
from appliance.web.doors.postmark import POSTMARK
from appliance.web.doors.resend import RESEND
from appliance.web.doors.sendgrid import SENDGRID

MUTATIONS = 120  # of each sample
MANY = 350  # over a thousand of a door
VALUES: list[Any] = [
    *(
        "",
        " ",
        "x",
        "ada@example.net",
        "a" * 600,
        "\r\nBcc: eve@example.net",
        "\0",
        "é\ud83d\ude00",
        "None",
        "outbound",
    ),
    *(0, 1, -1, 1.5, 10**30, True, False, None, [], {}, ["x"], [[]], [{}], {"x": "y"}, {"x": {}}, [None], [1] * 300),
]
TEMPLATE = StoredTemplate("welcome", 1, "Hello", "Hi {{name}}", None, 0, 0)


def in_json(body: Any) -> bytes:
    return json.dumps(body).encode()


def in_form(body: Any) -> bytes:
    """A form, with the JSON of what is no text."""
    lists = {name: value if isinstance(value, list) and value else [value] for name, value in body.items()}
    pairs = [
        (name, one if isinstance(one, str) else json.dumps(one)) for name, values in lists.items() for one in values
    ]
    return urlencode(pairs, errors="surrogatepass").encode()


@dataclass(frozen=True)
class Sample:
    """A request of a door with every field; fields that may change without changing the message."""

    door: Door
    path: str
    body: Any
    meaningless: set[str] = field(default_factory=set)
    encode: Callable[[Any], bytes] = in_json

    def parsed(self, body: Any) -> Any:
        """What the messages would be, as JSON, or the refusal's text."""
        route, params = self.door.route("POST", self.path)
        assert isinstance(route.handle, Send)
        call = Call(params, {}, {b"content-type": b"application/x-www-form-urlencoded"}, "req_1", 0)
        try:
            parsed = route.handle.parse(call, self.encode(body))
            items = batch_of(parsed.items, skip=False).items if isinstance(parsed, Sends) else [parsed]
            if isinstance(parsed, Series):
                items = parsed.part(range(parsed.count)).items
            for item in items:
                if isinstance(item, Mime):
                    return [item.recipients, item.data.decode(), item.due_at]
                assert isinstance(item, SendRequest)
                draft(deepcopy(item), TEMPLATE if item.template == "welcome" else None)
        except Refused as refused:
            return refused
        return msgspec.to_builtins([item for item in items if not isinstance(item, Refused)])


RESEND_EMAIL = {
    "from": "Shop <shop@example.com>",
    "to": ["ada@example.net", "Bob <bob@example.net>"],
    "cc": "carol@example.net",
    "bcc": ["dan@example.net"],
    "reply_to": ["help@example.com", "sales@example.com"],
    "subject": "Hi",
    "html": "<p>Hi</p>",
    "text": "Hi",
    "headers": {"X-Order": "10045", "X-Service-Stream": "broadcast"},
    "tags": [{"name": "category", "value": "receipt"}],
    "attachments": [
        {"filename": "a.txt", "content": "aGVsbG8=", "content_type": "text/plain", "content_id": "logo"},
        {"filename": "b.txt", "content": {"type": "Buffer", "data": [104, 105]}, "inline_content_id": "mark"},
    ],
    "scheduled_at": "2026-11-15T13:00:00+01:00",
}
RESEND_TEMPLATE = {"from": "shop@example.com", "to": "ada@example.net"}
RESEND_TEMPLATE["template"] = {"id": "welcome", "variables": {"name": "Ada"}}  # type: ignore[assignment]
POSTMARK_MESSAGE = {
    "From": "Shop <shop@example.com>",
    "To": "ada@example.net, Bob <bob@example.net>",
    "Cc": "carol@example.net",
    "Bcc": "dan@example.net",
    "ReplyTo": "help@example.com, sales@example.com",
    "Subject": "Hi",
    "TextBody": "Hi",
    "HtmlBody": "<p>Hi</p>",
    "Tag": "receipt",
    "Metadata": {"order": "10045"},
    "Headers": [{"Name": "X-Order", "Value": "10045"}],
    "Attachments": [
        {
            "Name": "a.txt",
            "Content": "aGVsbG8=",
            "ContentType": "text/plain",
            "ContentID": "cid:logo",
            "ContentLength": 5,
        }
    ],
    "MessageStream": "outbound",
    "TrackOpens": False,
    "TrackLinks": "None",
}
POSTMARK_TEMPLATE = {
    "From": "shop@example.com",
    "To": "ada@example.net",
    "TemplateAlias": "welcome",
    "TemplateModel": {"name": "Ada"},
    "InlineCss": True,
}
MAILGUN_MESSAGE = {
    "from": "Shop <shop@example.com>",
    "to": ["ada@example.net, Bob <bob@example.net>", "eve@example.net"],
    "cc": "carol@example.net",
    "bcc": "dan@example.net",
    "subject": "Hi",
    "text": "Hi",
    "html": "<p>Hi</p>",
    "h:Reply-To": "help@example.com, sales@example.com",
    "h:X-Order": "10045",
    "h:x-service-stream": "broadcast",
    "h:X-Mailgun-Variables": '{"shop": "a"}',
    "v:order": "10045",
    "o:tag": ["receipt", "shop"],
    "o:deliverytime": "Sun, 15 Nov 2026 13:00:00 +0100",
    "o:testmode": "no",
    "o:tracking": "no",
    "o:dkim": "yes",
}
MAILGUN_TEMPLATE = {
    "from": "shop@example.com",
    "to": "ada@example.net",
    "template": "welcome",
    "t:variables": '{"name": "Ada"}',
}
MAILGUN_NEWSLETTER = {
    "from": "shop@example.com",
    "to": ["ada@example.net", "bob@example.net"],
    "subject": "Hi %recipient.name%",
    "html": "<p>Hi %recipient.name%</p>",
    "h:List-Unsubscribe": "<https://example.com/%recipient.id%>",
    "v:reader": "%recipient.id%",
    "recipient-variables": '{"ada@example.net": {"name": "Ada", "id": 1}, "bob@example.net": {"name": "B", "id": 2}}',
}
MAILGUN_MIME = {
    "to": ["ada@example.net, Bob <bob@example.net>"],
    "message": "From: shop@example.com\r\nSubject: Hi\r\n\r\nHi\r\n",
    "v:order": "10045",
    "o:tag": ["receipt", "shop"],
}
MAILGUN_PERSONAL_MIME = MAILGUN_MIME | {
    "to": MAILGUN_NEWSLETTER["to"],
    "message": "From: shop@example.com\r\nSubject: Hi %recipient.name%\r\nX-Id: %recipient.id%\r\n\r\nHi\r\n",
    "recipient-variables": MAILGUN_NEWSLETTER["recipient-variables"],
}
SENDGRID_MAIL = {
    "from": {"email": "shop@example.com", "name": "Shop"},
    "reply_to_list": [{"email": "help@example.com"}, {"email": "sales@example.com"}],
    "subject": "Hi -name-",
    "content": [{"type": "text/plain", "value": "Hi -name-"}, {"type": "text/html", "value": "<p>-name-</p>"}],
    "personalizations": [
        {
            "to": [{"email": "ada@example.net", "name": "Ada"}],
            "cc": [{"email": "carol@example.net"}],
            "bcc": [{"email": "dan@example.net"}],
            "substitutions": {"-name-": "Ada"},
            "custom_args": {"order": "1"},
            "headers": {"X-Order": "-name-"},
            "send_at": 1_795_000_000,
        },
        {"to": [{"email": "bob@example.net"}], "from": {"email": "b@example.com"}, "subject": "Hello"},
    ],
    "headers": {"X-Shop": "a"},
    "categories": ["receipt", "shop"],
    "custom_args": {"shop": "a"},
    "send_at": 1_796_000_000,
    "attachments": [
        {"content": "aGk=", "filename": "a.txt", "type": "text/x-a", "disposition": "inline", "content_id": "logo"},
        {"content": "aGk=", "filename": "b.txt", "disposition": "attachment"},
    ],
    "mail_settings": {"sandbox_mode": {"enable": False}, "footer": {"enable": False}},
    "tracking_settings": {"click_tracking": {"enable": False, "enable_text": False}},
}
SENDGRID_TEMPLATE = {
    "from": {"email": "shop@example.com"},
    "personalizations": [{"to": [{"email": "ada@example.net"}], "dynamic_template_data": {"name": "Ada"}}],
    "template_id": "welcome",
}
SENDGRID_NEWSLETTER = {
    "from": {"email": "shop@example.com"},
    "subject": "Hi -name-",
    "content": [{"type": "text/html", "value": "<p>-name-, -code-</p>"}],
    "personalizations": [
        {"to": [{"email": f"reader{n}@example.net"}], "substitutions": {"-name-": f"R{n}", "-code-": str(n)}}
        for n in range(3)
    ],
    "headers": {"X-Service-Stream": "broadcast", "X-Shop": "a"},
    "reply_to": {"email": "help@example.com", "name": "Help"},
}
# "added" is a substitution of a text that does not occur.
OFF = {"o:testmode", "o:tracking", "o:dkim"}
SETTINGS = {"mail_settings", "tracking_settings", "disposition"}
# Fields of which some values mean the same: false and absent, or a length that the content has anyway.
UNTRACKED = {"MessageStream", "TrackOpens", "TrackLinks", "ContentLength", "InlineCss"}
SAMPLES = {
    "resend": Sample(RESEND, "/emails", RESEND_EMAIL),
    "resend template": Sample(RESEND, "/emails", RESEND_TEMPLATE),
    "resend batch": Sample(RESEND, "/emails/batch", [RESEND_EMAIL, RESEND_TEMPLATE]),
    "postmark": Sample(POSTMARK, "/email", POSTMARK_MESSAGE, UNTRACKED),
    "postmark template": Sample(POSTMARK, "/email/withTemplate", POSTMARK_TEMPLATE, UNTRACKED),
    "mailgun": Sample(MAILGUN, "/v3/example.com/messages", MAILGUN_MESSAGE, OFF, in_form),
    "mailgun template": Sample(MAILGUN, "/v3/example.com/messages", MAILGUN_TEMPLATE, set(), in_form),
    "mailgun newsletter": Sample(MAILGUN, "/v3/example.com/messages", MAILGUN_NEWSLETTER, {"to"}, in_form),
    "mailgun mime": Sample(MAILGUN, "/v3/example.com/messages.mime", MAILGUN_MIME, {"to", "o:tag"}, in_form),
    "mailgun personal mime": Sample(MAILGUN, "/v3/example.com/messages.mime", MAILGUN_PERSONAL_MIME, {"to"}, in_form),
    "sendgrid": Sample(SENDGRID, "/v3/mail/send", SENDGRID_MAIL, SETTINGS),
    "sendgrid newsletter": Sample(SENDGRID, "/v3/mail/send", SENDGRID_NEWSLETTER, {"added"}),
    "sendgrid template": Sample(SENDGRID, "/v3/mail/send", SENDGRID_TEMPLATE),
    "postmark batch": Sample(POSTMARK, "/email/batch", [POSTMARK_MESSAGE, POSTMARK_MESSAGE], UNTRACKED),
}


def entries(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The paths of all values inside, with the object or list that each is in."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in inside:
        yield (*path, key), value
        yield from entries(inner, (*path, key))


def mutated(body: Any, chance: random.Random) -> tuple[Any, tuple[Any, ...]]:
    """A copy with one value replaced, removed, repeated or added; its path."""
    changed = deepcopy(body)
    path, owner = chance.choice(list(entries(changed)))
    kind = chance.randrange(4)
    if kind == 0:
        owner[path[-1]] = deepcopy(chance.choice(VALUES))
    elif kind == 1:
        del owner[path[-1]]
    elif isinstance(owner, list):
        owner.insert(path[-1], deepcopy(owner[path[-1]] if kind == 2 else chance.choice(VALUES)))
    else:
        path = (*path[:-1], "added")
        owner["added"] = deepcopy(chance.choice(VALUES))
    return changed, path


# Texts that choose something: another one is refused.
CHOICES = {"scheduled_at", "template", "TemplateAlias", "template_id", "MessageStream", "TrackLinks", "disposition"}
CHOICES |= {"type", "X-Service-Stream", "h:x-service-stream", "o:deliverytime", "o:testmode", "o:tracking", "o:dkim"}
NAMED = ("headers", "Metadata", "custom_args")  # their members have any name
MARK = re.compile(r"mark\d+x")


def marked(body: Any, chance: random.Random, number: int) -> Any:
    """A copy with a marker in a text or a name, such that it stays valid."""
    changed, marker = deepcopy(body), f"mark{number}x"
    texts = [(path, owner) for path, owner in entries(changed) if isinstance(owner[path[-1]], str)]
    path, owner = chance.choice([(path, owner) for path, owner in texts if not CHOICES & set(path)])
    key, text = path[-1], owner[path[-1]]
    may_rename = key[:2] == "v:" if path[:-1] == () else path[-2] in NAMED
    if isinstance(key, str) and may_rename and chance.random() < 0.5:
        owner[key + marker] = owner.pop(key)
    elif key in ("content", "Content"):
        owner[key] = base64.b64encode(marker.encode()).decode()
        owner.pop("ContentLength", None)
    elif text[:1] == "{":  # JSON in a form
        owner[key] = re.sub(r'": "(\w+)"', rf'": "\1{marker}"', text, count=1)
    else:
        owner[key] = re.sub(r"\w+(?=@)", marker, text, count=1) if "@" in text else text + marker
    return changed


def markers(body: Any) -> set[str]:
    """The markers of a request or its messages, also in files."""
    text = json.dumps(body)
    files = re.findall(r'ontent": "([A-Za-z0-9+/]+=*)"', text)
    decoded = [base64.b64decode(file + "==").decode("latin-1") for file in files]
    return set(MARK.findall(" ".join([text, *decoded])))


def check_mutations(name: str, count: int) -> None:
    sample, chance, accepted = SAMPLES[name], random.Random(name), 0
    expected = sample.parsed(sample.body)
    assert not isinstance(expected, Refused), expected
    for number in range(count):
        changed, path = sample.body, ()
        if number % 2:
            changed, path = mutated(changed, chance)
        if number % 4 != 1:
            changed = marked(changed, chance, number)
        result = sample.parsed(changed)
        if isinstance(result, Refused):
            continue
        accepted += 1
        lost = markers(changed) - markers(result)
        if lost or (result == expected and changed != sample.body):
            assert sample.meaningless & set(path), (path, changed, lost)
    assert accepted >= count / 3, f"only {accepted} of {count} were accepted"


@pytest.mark.parametrize("name", SAMPLES)
def test_each_mutation_is_refused_or_changes_the_message(name: str) -> None:
    check_mutations(name, MUTATIONS)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
def test_of_many_mutations_none_is_dropped(name: str) -> None:
    check_mutations(name, MANY)


STREAMS = {
    "resend": ("resend", {"headers": {"X-Service-Stream": "broadcast"}}),
    "mailgun": ("mailgun template", {"h:X-Service-Stream": "broadcast"}),
    "sendgrid": ("sendgrid template", {"headers": {"x-service-stream": "broadcast"}}),
    "postmark": ("postmark", {"Headers": [{"Name": "X-Service-Stream", "Value": "broadcast"}], "MessageStream": ""}),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_header_chooses_the_stream(name: str) -> None:
    """Providers without a field for it: the header is read, and not written into the message."""
    sample, changes = STREAMS[name]
    (message,) = SAMPLES[sample].parsed(SAMPLES[sample].body | changes)
    assert message["stream"] == "broadcast"
    assert "x-service-stream" not in map(str.lower, message.get("headers", {}))


MIME = {"to": "ada@example.net", "message": "From: shop@example.com\r\n\r\nHi\r\n"}
TWICE = {
    "message": [MIME["message"]] * 2,
    "v:order": ["1", "2"],
    "o:testmode": ["no", "yes"],
    "o:deliverytime": ["1", "2"],
}


@pytest.mark.parametrize("field", TWICE)
def test_a_complete_message_has_each_field_once(field: str) -> None:
    sample = Sample(MAILGUN, "/v3/example.com/messages.mime", MIME, encode=in_form)
    route, params = sample.door.route("POST", sample.path)
    assert isinstance(route.handle, Send)
    call = Call(params, {}, {b"content-type": b"application/x-www-form-urlencoded"}, "req_1", 0)
    with pytest.raises(Refused, match=f"{field}: (this field occurs twice|expected one message)"):
        route.handle.parse(call, in_form(MIME | {field: TWICE[field]}))


def test_a_setting_is_on_or_off() -> None:
    """A sandbox that was spelled in another way would send real mail."""
    settings = {"mail_settings": {"sandbox_mode": {"enable": "true"}}}
    refused = SAMPLES["sendgrid"].parsed(SENDGRID_MAIL | settings)
    assert refused.field == "mail_settings.sandbox_mode.enable"


def test_a_stream_is_named_once() -> None:
    double = {"X-Service-Stream": "broadcast", "x-service-stream": "transactional"}
    refused = SAMPLES["resend"].parsed(RESEND_EMAIL | {"headers": double})
    assert (refused.field, refused.text.partition(" names ")[0]) == ("stream", "stream: X-Service-Stream")
    header = {"Headers": [{"Name": "X-Service-Stream", "Value": "broadcast"}]}
    assert isinstance(SAMPLES["postmark"].parsed(POSTMARK_MESSAGE | header), Refused)
