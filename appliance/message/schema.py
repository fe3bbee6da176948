"""The fields of a send request and its 202, for the decoder and the published JSON Schema. Pure: no I/O, no state.

The types bound sizes during decoding. `compose.py` checks all other rules, with its own error texts; here they are
patterns for the schema only. Null for an optional field means the same as omitting it.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import fields

from appliance.errors import Code
from appliance.message import limits
from appliance.message.characters import BODY_PATTERN, LINE_PATTERN
from appliance.message.template import Variable
from appliance.model.mail import Billing

_CONTROLS = r"\u0000-\u001f\u007f-\u009f\u2028\u2029"
_ADDRESS = rf"^[^{_CONTROLS}]*[^{_CONTROLS}\s@<>,;]+@[^{_CONTROLS}\s@<>,;]+>? *$"
_DIGIT, _PAD = r"[A-Za-z0-9+/][\r\n]*", r"=[\r\n]*"
_BASE64 = rf"^[\r\n]*(?:(?:{_DIGIT}){{4}})*(?:(?:{_DIGIT}){{2}}(?:{_PAD}{_PAD})?|(?:{_DIGIT}){{3}}(?:{_PAD})?)?$"
_TOKEN = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"  # noqa: S105 (RFC 2045 5.1's word for it, not a secret)
_QUOTED = r"\u0022[ !#-\[\]-~]*\u0022"  # not `"`: generators write patterns into quotes
_MEDIA_TYPE = rf"^{_TOKEN}/{_TOKEN}(?:; ?{_TOKEN}=(?:{_TOKEN}|{_QUOTED}))*$"
METADATA_KEY = rf"^[A-Za-z0-9_.-]{{1,{limits.METADATA_KEY_LENGTH}}}$"
_VARIABLE_NAME = {"minLength": 1, "maxLength": limits.VARIABLE_NAME_LENGTH, "pattern": LINE_PATTERN}


def _text(pattern: str, least: int | None, most: int | None, description: str | None = None, *examples: str) -> Meta:
    """Bounds, which msgspec enforces, and a pattern, description and examples for the schema."""
    shown: Any = {"description": description, "examples": list(examples) or None}
    return Meta(min_length=least, max_length=most, extra_json_schema={"pattern": pattern}, **shown)


def _mailbox(description: str | None = None, *examples: str) -> Meta:
    return _text(_ADDRESS, 1, limits.MAILBOX_LENGTH, description, *examples)


Mailbox = Annotated[str, _mailbox()]
Mailboxes = Mailbox | Annotated[list[Mailbox], Meta(max_length=limits.ADDRESS_ENTRIES)]
Tag = Annotated[str, _text("^[!-+\\--~](?:[ -+\\--~]*[!-+\\--~])?$", 1, limits.TAG_LENGTH)]
MetadataValue = Annotated[str, _text(LINE_PATTERN, None, limits.METADATA_VALUE_LENGTH)]
HeaderValue = Annotated[str, _text(LINE_PATTERN, None, limits.HEADER_VALUE_LENGTH)]

_FILENAME = _text(
    rf"^(?!\.\.?$|\s*$)[^{_CONTROLS}/\\]+$", 1, limits.FILENAME_LENGTH, "File name without a path.", "invoice.pdf"
)
_CONTENT = Meta(
    extra_json_schema={"pattern": _BASE64, "contentEncoding": "base64"},
    description="The file in standard base64; line breaks are ignored, and padding is optional.",
    examples=["aGVsbG8="],
)
_TYPE_HELP = "Media type (default: from the extension of the file name)."
_CONTENT_TYPE = _text(_MEDIA_TYPE, None, limits.CONTENT_TYPE_LENGTH, _TYPE_HELP, "application/pdf")
_ID_HELP = "Marks an inline image; the HTML refers to it as `cid:<content_id>`."
_CONTENT_ID = _text("^[A-Za-z0-9._%+@-]+$", 1, limits.CONTENT_ID_LENGTH, _ID_HELP, "logo")


class Attachment(Struct, forbid_unknown_fields=True):
    """One file of a send request."""

    filename: Annotated[str, _FILENAME]
    content: Annotated[str, _CONTENT]
    content_type: Annotated[str, _CONTENT_TYPE] | UnsetType = UNSET
    content_id: Annotated[str, _CONTENT_ID] | UnsetType = UNSET


_FROM_HELP = "Sender, `a@b.c` or `Name <a@b.c>`, at a domain that the account has registered."
_SENDER = _mailbox(_FROM_HELP, "Shop <orders@example.com>")
_TO = Meta(
    description=f"One address or a list; at most {limits.RECIPIENTS} unique addresses across to, cc and bcc.",
    examples=["ada@example.net", ["ada@example.net", "Grace <grace@example.net>"]],
)
_TO_LIST = Meta(min_length=1, max_length=limits.ADDRESS_ENTRIES)
_CC = Meta(description="One address or a list.")
_REPLY_TO_LIST = Meta(min_length=1, max_length=limits.REPLY_TO)
_BCC = Meta(description="One address or a list; never written into the message.")
_SUBJECT_HELP = "Required unless the template has one; overrides the subject of the template, without placeholders."
_SUBJECT = _text(LINE_PATTERN, None, limits.SUBJECT_LENGTH, _SUBJECT_HELP, "Your order")
_TEMPLATE_HELP = "Alias of a stored template; cannot be combined with text or html."
_TEMPLATE = _text("^[a-z0-9][a-z0-9_-]{0,63}$", 1, limits.ALIAS_LENGTH, _TEMPLATE_HELP, "order-shipped")
_VARIABLES = Meta(
    extra_json_schema={"propertyNames": _VARIABLE_NAME},
    max_length=limits.VARIABLES,
    description="Values for the template's `{{name}}` placeholders.",
    examples=[{"name": "Ada", "items": 3}],
)
_HEADERS = Meta(
    extra_json_schema={"propertyNames": {"pattern": "^[A-Za-z0-9-]{1,76}$"}},
    max_length=limits.HEADERS,
    description="Additional headers of the message; headers that the service writes itself are refused.",
    examples=[{"List-Unsubscribe": "<https://example.com/unsubscribe>"}],
)
_TAG_LIST = Meta(max_length=limits.TAGS)
_TAGS = Meta(description="Printable ASCII without commas; written as `X-Service-Tag`.", examples=[["order"]])
_METADATA = Meta(
    extra_json_schema={"propertyNames": {"pattern": METADATA_KEY}},
    max_length=limits.METADATA,
    description="Data of your own, returned in the message and in its events; never written into the message.",
    examples=[{"order": "10045"}],
)
_ATTACHMENTS = Meta(max_length=limits.ATTACHMENTS, description="Files.")
_SCHEDULED_HELP = "Time of delivery, at most 30 days ahead: RFC 3339 with an offset (default: at once)."
_SCHEDULED = Meta(
    max_length=limits.TIME_LENGTH,
    extra_json_schema={"format": "date-time"},
    description=_SCHEDULED_HELP,
    examples=["2026-11-15T13:00:00+01:00"],
)
ScheduledAt = Annotated[str, _SCHEDULED]
_STREAM_HELP = (
    "`transactional` (default), `broadcast` or a configured stream. Default: that of the template, then of the key."
)
_STREAM = Meta(max_length=limits.STREAM_LENGTH, description=_STREAM_HELP, examples=["broadcast"])
StreamName = Annotated[str, _STREAM]


class SendRequest(Struct, forbid_unknown_fields=True, rename={"sender": "from"}):
    """The body of `POST /emails`.

    At least one of `text`, `html`, `template` and a non-empty `attachments` is required. `template` cannot be combined
    with `text` or `html`, and `variables` require `template`. `subject` is required unless the template has one. Null
    for an optional field means the same as omitting it.
    """

    sender: Annotated[str, _SENDER]
    to: Annotated[Mailbox | Annotated[list[Mailbox], _TO_LIST], _TO]
    cc: Annotated[Mailboxes, _CC] | UnsetType = UNSET
    bcc: Annotated[Mailboxes, _BCC] | UnsetType = UNSET
    reply_to: Annotated[str, _mailbox("A single address.")] | UnsetType = UNSET
    subject: Annotated[str, _SUBJECT] | UnsetType = UNSET
    text: Annotated[str, _text(BODY_PATTERN, None, None, "Plain-text body.")] | UnsetType = UNSET
    html: Annotated[str, _text(BODY_PATTERN, None, None, "HTML body.")] | UnsetType = UNSET
    template: Annotated[str, _TEMPLATE] | UnsetType = UNSET
    variables: Annotated[dict[str, Variable], _VARIABLES] | UnsetType = UNSET
    headers: Annotated[dict[str, HeaderValue], _HEADERS] | UnsetType = UNSET
    tags: Annotated[Tag | Annotated[list[Tag], _TAG_LIST], _TAGS] | UnsetType = UNSET
    attachments: Annotated[list[Attachment], _ATTACHMENTS] | UnsetType = UNSET
    scheduled_at: ScheduledAt | UnsetType = UNSET
    metadata: Annotated[dict[str, MetadataValue], _METADATA] | UnsetType = UNSET
    stream: StreamName | UnsetType = UNSET


class DoorRequest(SendRequest):
    """A request of another provider's client: several Reply-To addresses, and a Message-ID that the door chose."""

    header_id: str | UnsetType = UNSET

    reply_to: Annotated[Mailbox | Annotated[list[Mailbox], _REPLY_TO_LIST], _CC] | UnsetType = UNSET  # type: ignore[assignment]  # wider


def _nullable(kind: type[Struct], **types: Any) -> type[Struct]:
    """Return the same struct with null allowed for optional fields; `types` replaces the types of some."""
    nullable: list[tuple[str, Any, Any]] = [
        (one.name, types.get(one.name, one.type) | None, UNSET) for one in fields(kind) if not one.required
    ]
    same: Any = {"bases": (kind,), "namespace": {"__doc__": kind.__doc__}, "module": __name__}
    return msgspec.defstruct(kind.__name__, nullable, forbid_unknown_fields=True, **same)


NullableAttachment = _nullable(Attachment)
NullableSendRequest = _nullable(
    SendRequest,
    attachments=Annotated[list[NullableAttachment], _ATTACHMENTS] | UnsetType,  # type: ignore[valid-type]  # made here
)


class AttachmentReceipt(Struct, omit_defaults=True):
    """An attachment of an accepted message."""

    filename: Annotated[str, Meta(description="File name without a path.")]
    content_type: Annotated[str, Meta(description="Media type.")]
    size: Annotated[int, Meta(description="Decoded size in bytes.")]
    content_id: Annotated[str | UnsetType, Meta(description="Content id of an inline image.")] = UNSET


class Receipt(Struct, rename={"sender": "from"}):
    """An accepted message, in the spelling of the request."""

    id: Annotated[str, Meta(description="Message id, `msg_…`.")]
    status: Annotated[Literal["queued"], Meta(description="Always `queued`.")]
    source: Annotated[Literal["api"], Meta(description="Always `api`.")]
    request_id: Annotated[str, Meta(description="Request id, equal to the header `X-Request-ID`.")]
    sender: Annotated[str, Meta(description="Sender, as submitted.")]
    to: Annotated[list[str], Meta(description="Recipients as submitted, without duplicates.")]
    cc: Annotated[list[str], Meta(description="Cc recipients as submitted, without duplicates.")]
    bcc: Annotated[list[str], Meta(description="Bcc recipients as submitted, without duplicates.")]
    subject: Annotated[str, Meta(description="Subject, with the template's placeholders filled in.")]
    billing_status: Annotated[Billing, Meta(description="Always `reserved`.")]
    recipient_count: Annotated[int, Meta(description="Number of unique recipients.")]
    credits_reserved: Annotated[int, Meta(description="Credits reserved: one per recipient, none for test mail.")]
    headers: Annotated[dict[str, str], Meta(description="Custom headers.")]
    tags: Annotated[list[str], Meta(description="Tags.")]
    attachments: Annotated[list[AttachmentReceipt], Meta(description="Attached files.")]
    reply_to: Annotated[str | UnsetType, Meta(description="Reply-To as submitted; omitted without one.")] = UNSET
    scheduled_at: Annotated[
        str | UnsetType, Meta(description="Scheduled time (RFC 3339, UTC); omitted without one.")
    ] = UNSET


class OnError(StrEnum):
    """What a bad message in a batch does: refuse the batch, or only itself."""

    REJECT = "reject"
    SKIP = "skip"


_ON_ERROR = Meta(
    description="`reject` (default): one bad message refuses all. `skip`: the good messages are accepted.",
    extra_json_schema={"default": "reject"},
)


class BatchRequest(Struct, forbid_unknown_fields=True):
    """The body of `POST /emails/batch`."""

    emails: Annotated[list[SendRequest], Meta(min_length=1, max_length=limits.BATCH_MESSAGES, description="Messages.")]
    on_error: Annotated[OnError | UnsetType | None, _ON_ERROR] = UNSET


class BatchResult(Struct, omit_defaults=True):
    """The result of one message of a batch: it has an `id` if it was accepted, else `error` and `code`."""

    index: Annotated[int, Meta(description="Position of the message in `emails`, from 0.")]
    id: Annotated[str | UnsetType, Meta(description="Message id, `msg_…`.")] = UNSET
    status: Annotated[Literal["queued"] | UnsetType, Meta(description="Always `queued`.")] = UNSET
    recipient_count: Annotated[int | UnsetType, Meta(description="Number of unique recipients.")] = UNSET
    credits_reserved: Annotated[int | UnsetType, Meta(description="Credits reserved.")] = UNSET
    error: Annotated[str | UnsetType, Meta(description="What is wrong; starts with the path of the field.")] = UNSET
    code: Annotated[Code | UnsetType, Meta(description="Stable error code for programs.")] = UNSET


class BatchReceipt(Struct):
    """The results of a batch, in the order of the request."""

    results: Annotated[list[BatchResult], Meta(description="One result per message.")]
    accepted: Annotated[int, Meta(description="Number of accepted messages.")]
    refused: Annotated[int, Meta(description="Number of refused messages; 0 unless `on_error` is `skip`.")]
    request_id: Annotated[str, Meta(description="Request id, equal to the header `X-Request-ID`.")]


def components(ref_template: str = "#/components/schemas/{name}") -> dict[str, Any]:
    """Return the schemas of `SendRequest` and `Attachment` by name, for an OpenAPI 3.1 document.

    Rules between fields are in the description only: from `anyOf` or `allOf` next to properties, client generators
    produce types that do not compile or lack the properties.
    """
    _, schemas = msgspec.json.schema_components([NullableSendRequest, NullableAttachment], ref_template=ref_template)
    return schemas
