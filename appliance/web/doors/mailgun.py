"""The door for Mailgun's clients: messages. `mailgun_lists.py` has events and suppressions.

With `recipient-variables`, each address in `to` gets a message of its own. All messages of a request have one
Message-ID, which is the id in the answer, as with Mailgun. Its domain is that of the path; the events of a domain are
found by it.
"""

import base64
import re
from collections.abc import Callable, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime

import pybase64

from appliance.config.settings import DoorName
from appliance.errors import Refused, invalid
from appliance.message.addresses import parse
from appliance.message.batch import Series
from appliance.message.decoding import end_of_header, fields_of, read_from
from appliance.message.header_lines import read_tags
from appliance.message.labels import read_metadata
from appliance.message.limits import BATCH_JSON_VALUES, RECIPIENTS, SERIES
from appliance.message.request import Body, Mime
from appliance.message.schedule import microseconds
from appliance.message.schema import SendRequest
from appliance.message.template import Variable, check_numbers, written
from appliance.times import SECOND, rfc3339
from appliance.web.doors import frame
from appliance.web.doors.forms import COSTED_BYTES, PostedFile, PostedForm, check_form_type, cost_of_form, read_form
from appliance.web.doors.mailgun_lists import LIST_ROUTES, domain_of
from appliance.web.doors.mailgun_mime import form_of
from appliance.web.doors.personal import PersonalText, check_placeholders, one_for_each

_COST_OF_ADDRESS = 100  # microseconds for a message of its own
_COST_OF_MIME = 2_000  # microseconds to read the parts of a message, which may be many: never on the event loop
_KEY = re.compile(rb"[!-~]+")
_DATE_LENGTH = 64  # characters
Values = Mapping[str, Variable]

_PLACEHOLDER = re.compile(r"%recipient(?:_email|_name|_fname|_lname|\.[^%\s]{1,128})?%")
_UNSUBSCRIBE = re.compile(r"%(?:tag_|mailing_list_)?unsubscribe_(?:url|email)%")
_OWN_ENTRY = re.compile(rf"<{_UNSUBSCRIBE.pattern}>")
_FIELDS = ("from", "to", "cc", "bcc", "subject", "text", "html", "template", "t:variables", "recipient-variables")
_OPTIONS = ("o:tag", "o:deliverytime", "o:testmode")
_REPEATED = ("to", "cc", "bcc", "o:tag")
_NO_TRACKING = "this server does not track opens and clicks. Send no, or leave the field out"
# Options that have the one value that this server can keep.
_ONLY = {
    "o:tracking": ("no", _NO_TRACKING),
    "o:tracking-opens": ("no", _NO_TRACKING),
    "o:tracking-clicks": ("no", _NO_TRACKING),
    "o:dkim": ("yes", "this server signs every message"),
    "o:require-tls": ("no", "the recipient's domain decides about TLS, by MTA-STS and DANE"),
    "o:skip-verification": ("no", "the recipient's domain decides about TLS, by MTA-STS and DANE"),
    "o:tracking-pixel-location-top": ("no", _NO_TRACKING),
    "t:text": ("no", "this server makes a text from the HTML of every message without one"),
}
_BOOLEANS = {"yes": "yes", "true": "yes", "no": "no", "false": "no"}


# ---- messages


def _parse(call: frame.Call, body: Body) -> SendRequest | Series:
    return _request(call, _form(call, body))


def _request(call: frame.Call, form: PostedForm) -> SendRequest | Series:
    unknown = [name for name in form.files if name not in ("attachment", "inline")]
    for name, values in form.fields.items():
        if name in ("attachment", "inline"):
            raise invalid(name, "expected a file, with a filename")
        if name in _ONLY:
            _check_only(name, values)
        elif name not in _FIELDS and name not in _OPTIONS and name[:2] not in ("h:", "v:"):
            unknown.append(name)
        _check_once(name, values)
    if unknown:
        raise invalid(unknown[0][:64], "this server has no such field. docs/doors.md lists those it has")
    message = _Message(call, form)
    if message.values is None:
        return message.request(message.addresses("to"), str)
    return one_for_each(len(message.to), message.personal)


def _check_once(name: str, values: list[str]) -> None:
    if len(values) > 1 and name not in _REPEATED:
        raise invalid(name, "this field occurs twice")


def _check_only(name: str, values: list[str]) -> None:
    only, text = _ONLY[name]
    if any(_BOOLEANS.get(value.lower()) != only for value in values):
        raise invalid(name, text)


class _Message:
    """What the messages of one request share, with the placeholders of their texts."""

    def __init__(self, call: frame.Call, form: PostedForm) -> None:
        fields = {name: values[0] for name, values in form.fields.items() if name not in _REPEATED}
        self._form, self._header_id = form, _new_header_id(call)
        call.kept = self._header_id
        headers, reply_to, sender, labels = _headers(fields)
        variables = _object("t:variables", fields.get("t:variables"))
        metadata = labels | {name[2:]: value for name, value in fields.items() if name[:2] == "v:"}
        self._template = fields.get("template") or None
        if variables and self._template is None:
            raise invalid("t:variables", "needs a template")
        self._variables = variables
        texts = {name: fields.get(name) or None for name in ("subject", "text", "html")}
        if sender is not None and parse(sender, "h:Sender").key != parse(fields.get("from", ""), "from").key:
            raise invalid("h:Sender", "must be the address in from. Leave the field out.")
        call.is_test = _is_on(fields, "o:testmode")
        self._shared: dict[str, frame.Json] = {
            "from": fields.get("from"),
            "cc": self.addresses("cc") or None,
            "bcc": self.addresses("bcc") or None,
            "reply_to": frame.split_addresses(reply_to) if reply_to else None,
            "tags": form.fields.get("o:tag") or None,
            "template": self._template,
            "scheduled_at": _due(fields.get("o:deliverytime"), call.now),
            "header_id": self._header_id,
            "attachments": _files(form) or None,
        }
        if "from" not in fields:
            raise invalid("from", "this field is required")
        values = fields.get("recipient-variables")
        self.values: dict[str, Values] | None = None
        self._texts = {name: _personal(name, text, values) for name, text in texts.items() if text is not None}
        self._headers = {name: _personal(f"h:{name}", text, values) for name, text in headers.items()}
        self._metadata = {name: _personal(f"v:{name}", text, values) for name, text in metadata.items()}
        if values is not None:
            check_placeholders((*self._texts.values(), *self._headers.values(), *self._metadata.values()))
            self.to = list({parse(one, "to").key: one for one in self.addresses("to", SERIES)}.values())
            self.values = _by_recipient(values)

    def addresses(self, name: str, most: int = RECIPIENTS) -> list[str]:
        values = self._form.fields.get(name, [])
        listed = [one for value in values for one in frame.split_addresses(value)]
        if len(values) > 1 and not all(value.strip() for value in values):
            raise invalid(name, "an address is empty")
        if name == "to" and not listed:
            raise invalid("to", "this field is required")
        if len(listed) > most:
            text = " Send recipient-variables for one message to each of up to 1,000." if most < SERIES else ""
            raise invalid(name, f"has {len(listed)} addresses (limit {most}).{text}")
        return listed

    def personal(self, index: int) -> SendRequest:
        address = parse(self.to[index], "to")
        values = (self.values or {}).get(address.key, {})
        first, _, last = address.name.partition(" ")
        own = {"": address.spelling, "_email": address.spelling, "_name": address.name}
        own |= {"_fname": first, "_lname": last.rpartition(" ")[2]}

        def value(placeholder: str) -> str:
            name = placeholder.removeprefix("%recipient").removesuffix("%")
            if name in own:
                return own[name]
            if name[1:] not in values:
                raise invalid("recipient-variables", f"{address.spelling} has no value for {placeholder}")
            return written(values[name[1:]])

        return self.request([self.to[index]], value)

    def request(self, to: list[str], value: Callable[[str], str]) -> SendRequest:
        """The message to these addresses; `value` returns that of a placeholder."""

        def filled(texts: Mapping[str, PersonalText]) -> dict[str, str]:
            return {name: text.filled(value) for name, text in texts.items()}

        metadata, variables = filled(self._metadata), None
        if self._template is not None:
            variables = {**metadata, **self._variables}
        shared = self._shared | {"to": to, "headers": filled(self._headers), "metadata": metadata or None}
        return frame.send_request(shared | filled(self._texts) | {"variables": variables})


def _personal(field: str, text: str, values: str | None) -> PersonalText:
    if values is None:
        return PersonalText(text, iter(()))
    own = _UNSUBSCRIBE.search(text)
    if own is not None and field == "h:List-Unsubscribe":  # remove Mailgun's addresses, keep the sender's
        text = ",".join([entry for entry in text.split(",") if not _OWN_ENTRY.fullmatch(entry.strip())]).strip()
        own = own if not text else _UNSUBSCRIBE.search(text)
    if own is not None:
        raise invalid(field, f"{own[0]} is an address of Mailgun. Send your own, or see docs/unsubscribe.md.")
    return PersonalText(text, _PLACEHOLDER.finditer(text))


def _by_recipient(text: str) -> dict[str, Values]:
    """The variables by the key of the address."""
    try:
        objects = frame.decoded(text.encode(), dict[str, dict[str, Variable]], BATCH_JSON_VALUES)
    except Refused as refused:
        raise refused.within("recipient-variables") from refused.__cause__
    for values in objects.values():
        check_numbers(values)
    return {parse(address, "recipient-variables").key: values for address, values in objects.items()}


def _headers(fields: Mapping[str, str]) -> tuple[dict[str, str], str | None, str | None, dict[str, str]]:
    """The headers, Reply-To, Sender, and the variables of a header."""
    headers = {name[2:]: value for name, value in fields.items() if name[:2] == "h:"}
    special = {name.lower(): name for name in headers}
    if len(special) < len(headers):
        raise invalid("h:", "a header occurs twice, in other letters")
    taken = [headers.pop(special[name]) if name in special else None for name in ("reply-to", "sender")]
    labels = headers.pop(special["x-mailgun-variables"]) if "x-mailgun-variables" in special else None
    variables = _object("h:X-Mailgun-Variables", labels)
    for name in headers:
        if name.lower().startswith("x-mailgun-"):
            raise invalid(f"h:{name[:64]}", "this server reads o: and v: fields, not headers of Mailgun")
    return headers, taken[0], taken[1], {name: written(value) for name, value in variables.items()}


def _object(field: str, text: str | None) -> dict[str, Variable]:
    try:
        values = frame.decoded(text.encode(), dict[str, Variable]) if text else {}
        check_numbers(values)
    except Refused as refused:
        raise refused.within(field) from refused.__cause__
    return values


def _files(form: PostedForm) -> list[dict[str, str]]:
    inline = [_file(file) | {"content_id": file.content_id or file.filename} for file in form.files.get("inline", ())]
    return [*map(_file, form.files.get("attachment", ())), *inline]


def _file(file: PostedFile) -> dict[str, str]:
    fields = {"filename": file.filename, "content": pybase64.b64encode_as_string(file.content)}
    kind = re.sub(r"\s*;\s*", "; ", file.content_type.strip())
    return fields if kind in ("", "application/octet-stream") else fields | {"content_type": kind}


def _due(text: str | None, now: int) -> str | None:
    """The time of delivery; None: at once. A time that has passed means that, too."""
    if text is None:
        return None
    try:
        if text.isascii() and text.isdecimal() and len(text) <= len(str(2**33)):
            due_at = int(text) * SECOND
        else:
            moment = parsedate_to_datetime(text[:_DATE_LENGTH])
            due_at = round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * SECOND)
    except (ValueError, OverflowError, TypeError) as cause:
        raise invalid(
            "o:deliverytime", "expected a date as in mail, such as Fri, 14 Nov 2026 13:00:00 +0100"
        ) from cause
    return rfc3339(due_at) if due_at > now else None


def _is_on(fields: Mapping[str, str], name: str) -> bool:
    value = _BOOLEANS.get(fields.get(name, "no").lower())
    if value is None:
        raise invalid(name, "expected yes or no")
    return value == "yes"


def _form(call: frame.Call, body: Body) -> PostedForm:
    return read_form(call.headers.get(b"content-type", b""), body)


def _new_header_id(call: frame.Call) -> str:
    return f"{call.request_id.replace('req_', 'msg_')}@{domain_of(call)}"


# ---- messages in MIME


def _parse_mime(call: frame.Call, body: Body) -> SendRequest | Series | Mime:
    form = _form(call, body)
    known = ("to", "message", "recipient-variables", *_OPTIONS)
    for name, values in form.fields.items():
        if name in _ONLY:
            _check_only(name, values)
        elif name not in known and name[:2] != "v:":
            raise invalid(name[:64], "messages.mime has no such field. Write it into the message")
        _check_once(name, values)
    contents = [*form.fields.pop("message", ()), *(file.content for file in form.files.pop("message", ()))]
    if len(contents) != 1 or form.files:
        raise invalid("message", "expected one message, and no other files")
    content = contents[0].encode() if isinstance(contents[0], str) else contents[0]
    if b"\r\n" not in content:
        content = content.replace(b"\n", b"\r\n")
    if not content.endswith(b"\r\n"):  # also after a header without a body
        content += b"\r\n"
    header = fields_of(content[: end_of_header(content)])
    if "recipient-variables" in form.fields:
        personal = form_of(header, content)
        return _request(call, PostedForm(form.fields | personal.fields, personal.files))
    listed = [one for value in form.fields.get("to", ()) for one in frame.split_addresses(value)]
    if not 1 <= len(listed) <= RECIPIENTS:
        raise invalid("to", f"expected 1 to {RECIPIENTS} addresses")
    to = list({address.key: address.wire for address in (parse(one, "to") for one in listed)}.values())
    fields = {name: values[0] for name, values in form.fields.items()}
    call.is_test, due = _is_on(fields, "o:testmode"), _due(fields.get("o:deliverytime"), call.now)
    names = {name.lower(): value for name, value in header}
    if b"from" not in names:
        raise invalid("From", "this field is required in the message")
    written_id = names.get(b"message-id", b"").strip().decode("utf-8", "replace")
    call.kept = written_id.removeprefix("<").removesuffix(">") or _new_header_id(call)
    added = [] if written_id else [f"Message-ID: <{call.kept}>"]
    added += [f"X-Service-Tag: {tag}" for tag in read_tags(form.fields.get("o:tag", ()), "o:tag")]
    metadata = {name[2:]: value for name, value in fields.items() if name[:2] == "v:"}
    read_metadata(metadata, "v")
    added += [f"X-Service-Metadata: {name}={value}" for name, value in metadata.items()]
    top = "".join(f"{line}\r\n" for line in added).encode()
    return Mime(read_from(names[b"from"]).wire, to, top + content, None if due is None else microseconds(due, "due"))


# ---- answers


def _answer(call: frame.Call, results: list[frame.Result]) -> frame.DoorReply:
    frame.check_all_accepted(results, "recipients")
    return frame.DoorReply({"id": f"<{call.kept}>", "message": "Queued. Thank you."})


_NAMES = {
    "emails": "to",
    "tags": "o:tag",
    "headers": "h",
    "metadata": "v",
    "reply_to": "h:Reply-To",
    "stream": f"h:{frame.STREAM_HEADER}",
    "attachments": "attachment",
    "scheduled_at": "o:deliverytime",
}
_OF_MAP = re.compile(r"^((?:to\[\d+\]\.)?[hv])\.")
_OF_TEMPLATE = re.compile(r"^((?:to\[\d+\]\.)?)variables\b")
_OF_ONE = re.compile(r"^(to\[\d+\])\.to(?:\[0\])?")


def _refuse(refusal: frame.Refusal) -> tuple[int, frame.Json]:
    text = refusal.text
    for pattern, ours in ((_OF_ONE, r"\1"), (_OF_MAP, r"\1:"), (_OF_TEMPLATE, r"\1t:variables")):
        text = pattern.sub(ours, text)
    return refusal.code.status, {"message": text}


def credential(headers: Mapping[bytes, bytes]) -> bytes | None:
    """The key: the password of Basic authentication with the name `api`."""
    scheme, _, encoded = headers.get(b"authorization", b"").partition(b" ")
    try:
        name, colon, key = base64.b64decode(encoded, validate=True).partition(b":")
    except ValueError:
        return None
    return b"Bearer " + key if scheme.lower() == b"basic" and name == b"api" and colon and _KEY.fullmatch(key) else None


def _is_root(path: str, headers: Mapping[bytes, bytes]) -> bool:
    """Ghost keeps only the origin of the URL."""
    parts = path.split("/")
    return len(parts) > 3 and parts[1] == "v3" and "." in parts[2]


def _cost(body: Body) -> int:
    return cost_of_form(len(body)) + _COST_OF_ADDRESS * (
        body.count(b"@", 0, COSTED_BYTES) + body.count(b"%40", 0, COSTED_BYTES)
    )


def _cost_of_mime(body: Body) -> int:
    return _COST_OF_MIME + _cost(body)


MAILGUN = frame.Door(
    name=DoorName.MAILGUN,
    credential=credential,
    login="Send Basic authentication: the user api, and an API key of this server (ma_live_…) as the password.",
    routes=(
        frame.DoorRoute(
            "POST", "/v3/{domain}/messages", frame.Send(_parse, _answer, cost=_cost), check_type=check_form_type
        ),
        frame.DoorRoute(
            "POST",
            "/v3/{domain}/messages.mime",
            frame.Send(_parse_mime, _answer, cost=_cost_of_mime),
            check_type=check_form_type,
        ),
        *LIST_ROUTES,
    ),
    refuse=_refuse,
    names=_NAMES,
    is_root=_is_root,
)
