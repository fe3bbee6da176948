"""In charge of the shape of a send request: its fields, as the decoder and the published schema see them."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

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
_BASE64 = {
    "pattern": "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
    "contentEncoding": "base64",
}
_FILENAME = {"pattern": rf"^(?!\.\.?$)[^{_CONTROLS}/\\]+$"}
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
            description="The file, in standard base64 with padding and without line breaks.",
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
