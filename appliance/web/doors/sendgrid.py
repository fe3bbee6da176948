"""The door for SendGrid's clients: mail/send of the v3 API. `sendgrid_suppressions.py` has its lists of addresses.

Each personalization is a message of its own. The answer has the id of the first one; the events of a message have its
own id.
"""

import re
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from msgspec import Meta, Struct

from appliance.config.settings import DoorName
from appliance.errors import invalid
from appliance.message.batch import Series
from appliance.message.characters import cost_of_size
from appliance.message.limits import BATCH_JSON_VALUES, SERIES
from appliance.message.request import Body
from appliance.message.schema import SendRequest
from appliance.times import SECOND, rfc3339
from appliance.web.doors import frame
from appliance.web.doors.forms import COSTED_BYTES
from appliance.web.doors.personal import PersonalText, check_placeholders, finder, one_for_each
from appliance.web.doors.sendgrid_suppressions import SUPPRESSION_ROUTES

_NO_LISTS = "This server keeps no lists of contacts and sends no campaigns. Send with /v3/mail/send."
_SUBSTITUTIONS = 100  # different keys of one request
_OF_EACH = 10  # placeholders that each personalization adds to the limit
_COST_OF_OBJECT = 50  # microseconds; a personalization has at least two

# ---- requests

_Headers = dict[str, str]
_Seconds = Annotated[int, Meta(ge=0, le=2**33)]  # since 1970


class _Mailbox(Struct, forbid_unknown_fields=True):
    email: str
    name: str | None = None

    def __str__(self) -> str:
        if not self.name:
            return self.email
        quoted = self.name.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{quoted}" <{self.email}>'


class _Content(Struct, forbid_unknown_fields=True):
    type: str
    value: str


class _File(Struct, forbid_unknown_fields=True):
    content: str
    filename: str
    type: str | None = None
    disposition: str | None = None
    content_id: str | None = None


class _Personalization(Struct, forbid_unknown_fields=True, rename={"sender": "from"}):
    to: Annotated[list[_Mailbox], Meta(min_length=1)]
    sender: _Mailbox | None = None
    cc: list[_Mailbox] = []
    bcc: list[_Mailbox] = []
    subject: str | None = None
    headers: _Headers = {}
    substitutions: dict[str, str | None] = {}
    dynamic_template_data: dict[str, Any] | None = None
    custom_args: dict[str, str] = {}
    send_at: _Seconds | None = None


class _Mail(Struct, forbid_unknown_fields=True, rename={"sender": "from"}):
    sender: _Mailbox
    personalizations: Annotated[list[_Personalization], Meta(min_length=1, max_length=SERIES)]
    subject: str | None = None
    content: list[_Content] = []
    attachments: list[_File] = []
    template_id: str | None = None
    headers: _Headers = {}
    categories: list[str] | str = []
    custom_args: dict[str, str] = {}
    send_at: _Seconds | None = None
    reply_to: _Mailbox | None = None
    reply_to_list: list[_Mailbox] = []
    mail_settings: dict[str, dict[str, frame.Json] | None] | None = None
    tracking_settings: dict[str, dict[str, frame.Json] | None] | None = None
    asm: frame.Json = None
    batch_id: frame.Json = None
    ip_pool_name: frame.Json = None
    sections: frame.Json = None


_MISSING = {
    "asm": "this server has no unsubscribe groups. Leave the field out.",
    "batch_id": "this server has no batch ids. Cancel a scheduled message by its own id.",
    "ip_pool_name": "the operator of this server chooses the outgoing addresses. Leave the field out.",
    "sections": "this server has no sections. Write their texts into the substitutions.",
}
_MAIL_SETTINGS = {
    "bypass_list_management": "suppressed addresses never get mail",
    "bypass_spam_management": "suppressed addresses never get mail",
    "bypass_bounce_management": "suppressed addresses never get mail",
    "bypass_unsubscribe_management": "suppressed addresses never get mail",
    "footer": "this server adds no footer. Write it into the content",
    "spam_check": "this server does not check for spam",
    "sandbox_mode": "",
    "bcc": "name the address in bcc of each personalization",
}
_TRACKING = {
    "click_tracking": "this server does not track clicks",
    "open_tracking": "this server does not track opens",
    "subscription_tracking": "this server adds no links to unsubscribe for this setting. See docs/unsubscribe.md",
    "ganalytics": "this server does not change links",
}


def _parse(call: frame.Call, body: Body) -> SendRequest | Series:
    mail = frame.decoded(body, _Mail, BATCH_JSON_VALUES)
    for name, text in _MISSING.items():
        if getattr(mail, name) is not None:
            raise invalid(name, text)
    enabled = _enabled("mail_settings", mail.mail_settings, _MAIL_SETTINGS)
    _enabled("tracking_settings", mail.tracking_settings, _TRACKING)
    call.is_test = call.kept = "sandbox_mode" in enabled
    return one_for_each(len(mail.personalizations), partial(_request, mail, _texts(mail), _shared(mail), call.now))


def _enabled(
    name: str, settings: Mapping[str, dict[str, frame.Json] | None] | None, known: Mapping[str, str]
) -> set[str]:
    """The settings that are on. Refuses those that this server has not."""
    enabled = set()
    for setting, value in (settings or {}).items():
        if setting not in known:
            raise invalid(f"{name}.{setting[:64]}", "there is no such setting")
        if not isinstance((value or {}).get("enable", False), bool):
            raise invalid(f"{name}.{setting}.enable", "expected true or false")
        state = any(inner is True for inner in (value or {}).values())
        if state and known[setting]:
            raise invalid(f"{name}.{setting}", f"{known[setting]}. Disable the setting, or leave it out.")
        if state:
            enabled.add(setting)
    return enabled


def _shared(mail: _Mail) -> dict[str, frame.Json]:
    """The fields that all messages have."""
    reply_to = [mail.reply_to] if mail.reply_to is not None else mail.reply_to_list
    if mail.reply_to is not None and mail.reply_to_list:
        raise invalid("reply_to_list", "cannot be combined with reply_to")
    return {
        "reply_to": [str(mailbox) for mailbox in reply_to] or None,
        "tags": mail.categories or None,
        "template": mail.template_id,
        "attachments": [_file(f"attachments[{at}]", file) for at, file in enumerate(mail.attachments)] or None,
    }


def _file(field: str, file: _File) -> dict[str, str]:
    inline, content_id = file.disposition == "inline", file.content_id or None
    if file.disposition not in (None, "attachment", "inline"):
        raise invalid(f"{field}.disposition", "expected attachment or inline")
    if inline != (content_id is not None):
        text = "an inline file needs it" if inline else "only an inline file has it. Send the disposition inline"
        raise invalid(f"{field}.content_id", text)
    fields = {"filename": file.filename, "content": file.content, "content_type": file.type}
    return {name: value for name, value in (fields | {"content_id": content_id}).items() if value}


# ---- messages


class _Texts(Struct):
    bodies: dict[str, PersonalText]  # by our field
    lines: dict[str, PersonalText]  # subjects and values of headers, by the text


def _texts(mail: _Mail) -> _Texts:
    """All texts with their placeholders: the keys of the substitutions of any personalization."""
    keys = list({key for one in mail.personalizations for key in one.substitutions})
    if len(keys) > _SUBSTITUTIONS or "" in keys:
        raise invalid("personalizations", f"substitutions have at most {_SUBSTITUTIONS} different keys, none empty")
    if keys and mail.template_id is not None:
        raise invalid("personalizations", "a template takes dynamic_template_data, not substitutions")
    holders: list[_Mail | _Personalization] = [mail, *mail.personalizations]
    subjects = {one.subject for one in holders if one.subject is not None}
    values = {value for one in holders for value in one.headers.values()}
    contents = [content.value for content in mail.content]
    occurrences = finder(keys, sum(map(len, (*contents, *subjects, *values))))
    bodies: dict[str, PersonalText] = {}
    for at, content in enumerate(mail.content):
        name = {"text/plain": "text", "text/html": "html"}.get(content.type.partition(";")[0].strip().lower())
        if name is None or name in bodies:
            text = "expected text/plain and text/html, each at most once. Attach other parts as files"
            raise invalid(f"content[{at}].type", text)
        bodies[name] = PersonalText(content.value, occurrences(content.value))
    lines = {text: PersonalText(text, occurrences(text)) for text in subjects | values}
    check_placeholders((*bodies.values(), *lines.values()), _OF_EACH * len(mail.personalizations))
    return _Texts(bodies, lines)


def _request(mail: _Mail, texts: _Texts, shared: dict[str, frame.Json], now: int, index: int) -> SendRequest:
    one = mail.personalizations[index]

    def value(key: str) -> str:
        substitute = one.substitutions.get(key, key)
        return "" if substitute is None else substitute

    if one.dynamic_template_data and mail.template_id is None:
        raise invalid("dynamic_template_data", "needs template_id")
    subject = one.subject if one.subject is not None else mail.subject
    send_at = one.send_at if one.send_at is not None else mail.send_at
    is_later = send_at is not None and send_at * SECOND > now
    return frame.send_request(
        shared
        | {name: text.filled(value) for name, text in texts.bodies.items()}
        | {
            "from": str(one.sender or mail.sender),
            "to": list(map(str, one.to)),
            "cc": list(map(str, one.cc)) or None,
            "bcc": list(map(str, one.bcc)) or None,
            "subject": None if subject is None else texts.lines[subject].filled(value),
            "headers": {name: texts.lines[text].filled(value) for name, text in (mail.headers | one.headers).items()},
            "metadata": mail.custom_args | one.custom_args or None,
            "variables": one.dynamic_template_data or None,
            "scheduled_at": rfc3339(send_at * SECOND) if is_later and send_at is not None else None,
        }
    )


# ---- answers


def _answer(call: frame.Call, results: list[frame.Result]) -> frame.DoorReply:
    frame.check_all_accepted(results, "personalizations")
    ids = [result.id for result in results if isinstance(result, frame.Sent)]
    return frame.DoorReply(None, 200 if call.kept else 202, [(b"x-message-id", ids[0].encode())])


_PLACE = re.compile(r"\[(\d+)\]")
_OF_ALL = ("from", "reply_to", "content", "attachments", "categories", "template_id", "headers")
_NAMES = {
    "emails": "personalizations",
    "text": "content",
    "html": "content",
    "tags": "categories",
    "template": "template_id",
    "content_type": "type",
    "variables": "dynamic_template_data",
    "metadata": "custom_args",
    "scheduled_at": "send_at",
    "stream": f"headers.{frame.STREAM_HEADER}",
}


def _refuse(refusal: frame.Refusal) -> tuple[int, frame.Json]:
    name = _PLACE.sub(r".\1", refusal.field)
    place, _, inner = name.rpartition(".") if name.count(".") == 2 else ("", "", name)
    if place.startswith("personalizations.") and inner in _OF_ALL:
        name = inner
    elif name.partition(".")[0] in ("to", "cc", "bcc", "dynamic_template_data"):
        name = f"personalizations.0.{name}"
    text = refusal.text.removeprefix(f"{refusal.field}: ")
    field = None if name in ("", "body") else name
    return refusal.code.status, {"errors": [{"message": text, "field": field, "help": None}]}


def _cost(body: Body) -> int:
    return 2 * cost_of_size(len(body)) + _COST_OF_OBJECT * body.count(b"{", 0, COSTED_BYTES)


SENDGRID = frame.Door(
    name=DoorName.SENDGRID,
    routes=(frame.DoorRoute("POST", "/v3/mail/send", frame.Send(_parse, _answer, cost=_cost)), *SUPPRESSION_ROUTES),
    refuse=_refuse,
    names=_NAMES,
    refused={
        **dict.fromkeys(("/v3/marketing", "/v3/contactdb"), _NO_LISTS),
        "/v3/templates": "Templates are in this server's own API and dashboard. See docs/switch/sendgrid.md.",
        "/v3/asm/groups": "This server has no unsubscribe groups.",
        "/v3/mail/batch": "This server has no batch ids. Cancel a scheduled message by its own id.",
    },
)
