"""The fields of a send request, as the decoder and the published JSON Schema see them. Pure: no I/O, no state.

The types bound sizes while a body is decoded; every other rule is checked in draft.py, in a sentence of its own, and
stands here as a pattern for the schema only. Null for an optional field is the same as leaving the field out.
"""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import fields

from appliance.message import limits
from appliance.message.characters import BODY_PATTERN, LINE_PATTERN
from appliance.message.template import Variable

_CONTROLS = r"\u0000-\u001f\u007f-\u009f\u2028\u2029"
_ADDRESS = rf"^[^{_CONTROLS}]*[^{_CONTROLS}\s@<>,;]+@[^{_CONTROLS}\s@<>,;]+>? *$"
_DIGIT, _PAD = r"[A-Za-z0-9+/][\r\n]*", r"=[\r\n]*"
_BASE64 = rf"^[\r\n]*(?:(?:{_DIGIT}){{4}})*(?:(?:{_DIGIT}){{2}}(?:{_PAD}{_PAD})?|(?:{_DIGIT}){{3}}(?:{_PAD})?)?$"
_TOKEN = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"  # noqa: S105 (RFC 2045 5.1's word for it, not a secret)
_MEDIA_TYPE = rf"^{_TOKEN}/{_TOKEN}(?:; ?{_TOKEN}=(?:{_TOKEN}|\"[ !#-\[\]-~]*\"))*$"
_VARIABLE_NAME = {"minLength": 1, "maxLength": limits.VARIABLE_NAME_LENGTH, "pattern": LINE_PATTERN}


def _meta(pattern: str | None = None, schema: Any = None, **options: Any) -> Meta:
    """A field's bounds, which msgspec applies, and its description, examples and pattern, for the schema only."""
    if pattern is not None:
        schema = {"pattern": pattern, **(schema or {})}
    return Meta(extra_json_schema=schema, **options)


_MAILBOX: Any = {"min_length": 1, "max_length": limits.MAILBOX_LENGTH}
Mailbox = Annotated[str, _meta(_ADDRESS, **_MAILBOX)]
Mailboxes = Mailbox | Annotated[list[Mailbox], Meta(max_length=limits.ADDRESS_ENTRIES)]
Tag = Annotated[str, _meta("^[!-+\\--~](?:[ -+\\--~]*[!-+\\--~])?$", min_length=1, max_length=limits.TAG_LENGTH)]
HeaderValue = Annotated[str, _meta(LINE_PATTERN, max_length=limits.HEADER_VALUE_LENGTH)]

_FILENAME = _meta(
    rf"^(?!\.\.?$|\s*$)[^{_CONTROLS}/\\]+$",
    min_length=1,
    max_length=limits.FILENAME_LENGTH,
    description="File name without a path.",
    examples=["invoice.pdf"],
)
_CONTENT = _meta(
    _BASE64,
    schema={"contentEncoding": "base64"},
    description="The file, in standard base64; line breaks are skipped, and padding may be left out.",
    examples=["aGVsbG8="],
)
_CONTENT_TYPE = _meta(
    _MEDIA_TYPE,
    max_length=limits.CONTENT_TYPE_LENGTH,
    description="Media type; by default it follows from the file name's extension.",
    examples=["application/pdf"],
)
_CONTENT_ID = _meta(
    "^[A-Za-z0-9._%+@-]+$",
    min_length=1,
    max_length=limits.CONTENT_ID_LENGTH,
    description="Marks an inline image; the HTML refers to it as `cid:<content_id>`.",
    examples=["logo"],
)


class Attachment(Struct, forbid_unknown_fields=True):
    """One file of a send request, as the caller wrote it."""

    filename: Annotated[str, _FILENAME]
    content: Annotated[str, _CONTENT]
    content_type: Annotated[str, _CONTENT_TYPE] | UnsetType = UNSET
    content_id: Annotated[str, _CONTENT_ID] | UnsetType = UNSET


_SENDER = _meta(
    _ADDRESS,
    **_MAILBOX,
    description="Sender, `a@b.c` or `Name <a@b.c>`; its domain is one the account has registered.",
    examples=["Shop <orders@example.com>"],
)
_TO = Meta(
    description="One address or a list. "
    f"The unique addresses across to, cc and bcc number at most {limits.RECIPIENTS}.",
    examples=["ada@example.net", ["ada@example.net", "Grace <grace@example.net>"]],
)
_TO_LIST = Meta(min_length=1, max_length=limits.ADDRESS_ENTRIES)
_CC = Meta(description="One address or a list.")
_BCC = Meta(description="One address or a list; never written into the message.")
_SUBJECT = _meta(
    LINE_PATTERN,
    max_length=limits.SUBJECT_LENGTH,
    description="Required unless the template has one; given beside a template, it wins literally.",
    examples=["Your order"],
)
_TEMPLATE = _meta(
    "^[a-z0-9][a-z0-9_-]{0,63}$",
    min_length=1,
    max_length=limits.ALIAS_LENGTH,
    description="Alias of a stored template; not together with text or html.",
    examples=["order-shipped"],
)
_VARIABLES = _meta(
    schema={"propertyNames": _VARIABLE_NAME},
    max_length=limits.VARIABLES,
    description="Values for the template's `{{name}}` placeholders.",
    examples=[{"name": "Ada", "items": 3}],
)
_HEADERS = _meta(
    schema={"propertyNames": {"pattern": "^[A-Za-z0-9-]{1,76}$"}},
    max_length=limits.HEADERS,
    description="Further headers of the message; names the service writes itself are refused.",
    examples=[{"List-Unsubscribe": "<https://example.com/unsubscribe>"}],
)
_TAG_LIST = Meta(max_length=limits.TAGS)
_TAGS = Meta(description="Printable ASCII without commas; written as `X-Service-Tag`.", examples=[["order"]])
_ATTACHMENTS = Meta(max_length=limits.ATTACHMENTS, description="Files.")


class SendRequest(Struct, forbid_unknown_fields=True, rename={"sender": "from"}):
    """The body of `POST /emails`, as the caller wrote it."""

    sender: Annotated[str, _SENDER]
    to: Annotated[Mailbox | Annotated[list[Mailbox], _TO_LIST], _TO]
    cc: Annotated[Mailboxes, _CC] | UnsetType = UNSET
    bcc: Annotated[Mailboxes, _BCC] | UnsetType = UNSET
    reply_to: Annotated[str, _meta(_ADDRESS, **_MAILBOX, description="A single address.")] | UnsetType = UNSET
    subject: Annotated[str, _SUBJECT] | UnsetType = UNSET
    text: Annotated[str, _meta(BODY_PATTERN, description="Plain-text body.")] | UnsetType = UNSET
    html: Annotated[str, _meta(BODY_PATTERN, description="HTML body.")] | UnsetType = UNSET
    template: Annotated[str, _TEMPLATE] | UnsetType = UNSET
    variables: Annotated[dict[str, Variable], _VARIABLES] | UnsetType = UNSET
    headers: Annotated[dict[str, HeaderValue], _HEADERS] | UnsetType = UNSET
    tags: Annotated[Tag | Annotated[list[Tag], _TAG_LIST], _TAGS] | UnsetType = UNSET
    attachments: Annotated[list[Attachment], _ATTACHMENTS] | UnsetType = UNSET


# ---- null for an optional field


def _nullable(kind: type[Struct], **types: Any) -> type[Struct]:
    """The same struct, with null allowed for what need not be given; some fields may have another type."""
    optional: list[tuple[str, Any, Any]] = [
        (each.name, types.get(each.name, each.type) | None, UNSET) for each in fields(kind) if not each.required
    ]
    return msgspec.defstruct(
        kind.__name__,
        optional,
        bases=(kind,),
        namespace={"__doc__": kind.__doc__},
        module=__name__,
        forbid_unknown_fields=True,
    )


NullableAttachment = _nullable(Attachment)
NullableSendRequest = _nullable(
    SendRequest,
    attachments=Annotated[list[NullableAttachment], _ATTACHMENTS] | UnsetType,  # type: ignore[valid-type]  # made here
)


def leave_out_nulls(request: SendRequest) -> None:
    """Turn every null of a decoded request into UNSET."""
    if type(request) is SendRequest:
        return
    _unset_nulls(request)
    for attachment in request.attachments or ():
        _unset_nulls(attachment)


def _unset_nulls(given: Struct) -> None:
    for name in given.__struct_fields__:
        if getattr(given, name) is None:
            setattr(given, name, UNSET)


# ---- the schema


def _given(*names: str) -> dict[str, Any]:
    """All of these are there, and none is null, which is the same as leaving it out."""
    return {"required": list(names), "properties": {name: {"not": {"type": "null"}} for name in names}}


# At least one kind of content; a template alone or none; variables only beside one; a subject unless a template has it.
_RULES: dict[str, Any] = {
    "anyOf": [
        _given("text"),
        _given("html"),
        _given("template"),
        {"required": ["attachments"], "properties": {"attachments": {"type": "array", "minItems": 1}}},
    ],
    "allOf": [
        {"not": _given("template", "text")},
        {"not": _given("template", "html")},
        {"anyOf": [_given("subject"), _given("template")]},
        {"anyOf": [{"not": _given("variables")}, _given("template")]},
    ],
}


def components(ref_template: str = "#/components/schemas/{name}") -> dict[str, Any]:
    """The schemas of `SendRequest` and `Attachment` by name, for the components of an OpenAPI 3.1 document."""
    _, found = msgspec.json.schema_components([NullableSendRequest, NullableAttachment], ref_template=ref_template)
    return {**found, "SendRequest": {**found["SendRequest"], **_RULES}}
