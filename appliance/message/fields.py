"""In charge of the shape of a send request: its fields, as the decoder and the published schema see them."""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType, defstruct
from msgspec.structs import fields

from appliance.message import limits
from appliance.message.characters import BODY_PATTERN, LINE_PATTERN
from appliance.message.variables import Variable

# Patterns go into the schema only: the rules themselves stand in draft.py, where each has a sentence of its own.
_CONTROLS = r"\u0000-\u001f\u007f-\u009f\u2028\u2029"
_LINE = {"pattern": LINE_PATTERN}
_BODY = {"pattern": BODY_PATTERN}
_ADDRESS = {
    "pattern": rf"^[^{_CONTROLS}]*[^{_CONTROLS}\s@<>,;]+@[^{_CONTROLS}\s@<>,;]+>? *$",
}
_DIGIT, _PAD = r"[A-Za-z0-9+/][\r\n]*", r"=[\r\n]*"
_BASE64 = {
    "pattern": rf"^[\r\n]*(?:(?:{_DIGIT}){{4}})*(?:(?:{_DIGIT}){{2}}(?:{_PAD}{_PAD})?|(?:{_DIGIT}){{3}}(?:{_PAD})?)?$",
    "contentEncoding": "base64",
}
_FILENAME = {"pattern": rf"^(?!\.\.?$|\s*$)[^{_CONTROLS}/\\]+$"}
_TOKEN = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"  # noqa: S105 (RFC 2045 5.1's word for it, not a secret)
_CONTENT_TYPE = {"pattern": rf"^{_TOKEN}/{_TOKEN}(?:; ?{_TOKEN}=(?:{_TOKEN}|\"[ !#-\[\]-~]*\"))*$"}
_CONTENT_ID = {"pattern": "^[A-Za-z0-9._%+@-]+$"}
_TAG = {"pattern": "^[!-+\\--~](?:[ -+\\--~]*[!-+\\--~])?$"}
_HEADER_NAMES = {"propertyNames": {"pattern": "^[A-Za-z0-9-]{1,76}$"}}
_VARIABLE_NAMES = {"propertyNames": {"minLength": 1, "maxLength": limits.VARIABLE_NAME_LENGTH, **_LINE}}

Mailbox = Annotated[str, Meta(min_length=1, max_length=limits.MAILBOX_LENGTH, extra_json_schema=_ADDRESS)]
Mailboxes = Mailbox | Annotated[list[Mailbox], Meta(max_length=limits.ADDRESS_ENTRIES)]
Tag = Annotated[str, Meta(min_length=1, max_length=limits.TAG_LENGTH, extra_json_schema=_TAG)]
HeaderValue = Annotated[str, Meta(max_length=limits.HEADER_VALUE_LENGTH, extra_json_schema=_LINE)]


class Attachment(Struct, forbid_unknown_fields=True):
    """One file of a send request, as the caller wrote it."""

    filename: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=limits.FILENAME_LENGTH,
            description="File name without a path.",
            examples=["invoice.pdf"],
            extra_json_schema=_FILENAME,
        ),
    ]
    content: Annotated[
        str,
        Meta(
            description="The file, in standard base64; line breaks are skipped, and padding may be left out.",
            examples=["aGVsbG8="],
            extra_json_schema=_BASE64,
        ),
    ]
    content_type: (
        Annotated[
            str,
            Meta(
                max_length=limits.CONTENT_TYPE_LENGTH,
                description="Media type; by default it follows from the file name's extension.",
                examples=["application/pdf"],
                extra_json_schema=_CONTENT_TYPE,
            ),
        ]
        | UnsetType
    ) = UNSET
    content_id: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=limits.CONTENT_ID_LENGTH,
                description="Marks an inline image; the HTML refers to it as `cid:<content_id>`.",
                examples=["logo"],
                extra_json_schema=_CONTENT_ID,
            ),
        ]
        | UnsetType
    ) = UNSET


class SendRequest(Struct, forbid_unknown_fields=True, rename={"sender": "from"}):
    """The body of `POST /emails`, as the caller wrote it: right in shape, its contents not yet judged."""

    sender: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=limits.MAILBOX_LENGTH,
            description="Sender, `a@b.c` or `Name <a@b.c>`; its domain is one the account has registered.",
            examples=["Shop <orders@example.com>"],
            extra_json_schema=_ADDRESS,
        ),
    ]
    to: Annotated[
        Mailbox | Annotated[list[Mailbox], Meta(min_length=1, max_length=limits.ADDRESS_ENTRIES)],
        Meta(
            description=(
                f"One address or a list. The unique addresses across to, cc and bcc number at most {limits.RECIPIENTS}."
            ),
            examples=["ada@example.net", ["ada@example.net", "Grace <grace@example.net>"]],
        ),
    ]
    cc: Annotated[Mailboxes, Meta(description="One address or a list.")] | UnsetType = UNSET
    bcc: (
        Annotated[Mailboxes, Meta(description="One address or a list; never written into the message.")] | UnsetType
    ) = UNSET
    reply_to: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=limits.MAILBOX_LENGTH,
                description="A single address.",
                extra_json_schema=_ADDRESS,
            ),
        ]
        | UnsetType
    ) = UNSET
    subject: (
        Annotated[
            str,
            Meta(
                max_length=limits.SUBJECT_LENGTH,
                description="Required unless the template has one; given beside a template, it wins literally.",
                examples=["Your order"],
                extra_json_schema=_LINE,
            ),
        ]
        | UnsetType
    ) = UNSET
    text: Annotated[str, Meta(description="Plain-text body.", extra_json_schema=_BODY)] | UnsetType = UNSET
    html: Annotated[str, Meta(description="HTML body.", extra_json_schema=_BODY)] | UnsetType = UNSET
    template: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=limits.ALIAS_LENGTH,
                description="Alias of a stored template; not together with text or html.",
                examples=["order-shipped"],
                extra_json_schema={"pattern": "^[a-z0-9][a-z0-9_-]{0,63}$"},
            ),
        ]
        | UnsetType
    ) = UNSET
    variables: (
        Annotated[
            dict[str, Variable],
            Meta(
                max_length=limits.VARIABLES,
                description="Values for the template's `{{name}}` placeholders.",
                examples=[{"name": "Ada", "items": 3}],
                extra_json_schema=_VARIABLE_NAMES,
            ),
        ]
        | UnsetType
    ) = UNSET
    headers: (
        Annotated[
            dict[str, HeaderValue],
            Meta(
                max_length=limits.HEADERS,
                description="Further headers of the message; names the service writes itself are refused.",
                examples=[{"List-Unsubscribe": "<https://example.com/unsubscribe>"}],
                extra_json_schema=_HEADER_NAMES,
            ),
        ]
        | UnsetType
    ) = UNSET
    tags: (
        Annotated[
            Tag | Annotated[list[Tag], Meta(max_length=limits.TAGS)],
            Meta(description="Printable ASCII without commas; written as `X-Service-Tag`.", examples=[["order"]]),
        ]
        | UnsetType
    ) = UNSET
    attachments: Annotated[list[Attachment], Meta(max_length=limits.ATTACHMENTS, description="Files.")] | UnsetType = (
        UNSET
    )


# ---- null for an optional field is the same as leaving it out


def _nullable(kind: type[Struct], **types: Any) -> type[Struct]:
    """The same struct, with null allowed for what need not be given; some fields may have another type."""
    optional: list[tuple[str, Any, Any]] = [
        (each.name, types.get(each.name, each.type) | None, UNSET) for each in fields(kind) if not each.required
    ]
    return defstruct(
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
    attachments=Annotated[
        list[NullableAttachment],  # type: ignore[valid-type]  # made just now
        Meta(max_length=limits.ATTACHMENTS, description="Files."),
    ]
    | UnsetType,
)


def leave_out_nulls(request: SendRequest) -> None:
    """Make every null of a decoded request what a field is that was not given."""
    if type(request) is SendRequest:
        return
    _unset_nulls(request)
    for attachment in request.attachments or ():
        _unset_nulls(attachment)


def _unset_nulls(given: Struct) -> None:
    for name in given.__struct_fields__:
        if getattr(given, name) is None:
            setattr(given, name, UNSET)
