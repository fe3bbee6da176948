"""Checks a send request against every rule of the interface; what passes is a draft, ready to be composed.

A body that is an empty string is present; an empty list of attachments is not. Pure: no I/O, no state.
"""

from typing import TypeVar

from msgspec import UNSET, Struct, UnsetType

from appliance.errors import invalid
from appliance.message import limits
from appliance.message.addresses import Address, parse
from appliance.message.attachments import File, read_files
from appliance.message.header_rules import read_headers, read_tags
from appliance.message.schema import SendRequest
from appliance.message.template import check_body, check_subject, render
from appliance.model.mail import StoredTemplate

Value = TypeVar("Value")


class Draft(Struct, frozen=True, gc=False):
    """A message that keeps every rule; only its id and its date are missing."""

    sender: Address
    to: tuple[Address, ...]
    cc: tuple[Address, ...]
    bcc: tuple[Address, ...]
    recipients: tuple[Address, ...]  # the unique addresses in the order of to, cc and bcc, each in its first spelling
    reply_to: Address | None
    subject: str
    text: str | None
    html: str | None
    headers: tuple[tuple[str, str], ...]
    tags: tuple[str, ...]
    files: tuple[File, ...]


def draft(request: SendRequest, template: StoredTemplate | None) -> Draft:
    """Apply every rule; Refused for the first that is broken. The contents of the attachments are released."""
    _check_combination(request, template)
    sender = parse(request.sender, "from")
    to, cc, bcc, recipients = _read_recipients(request)
    reply_to = None if request.reply_to is UNSET else parse(request.reply_to, "reply_to")
    headers = () if request.headers is UNSET else read_headers(request.headers)
    tags: tuple[str, ...] = ()
    if isinstance(request.tags, str):
        tags = read_tags([request.tags], "tags")
    elif request.tags is not UNSET:
        tags = read_tags(request.tags, "tags", numbered=True)
    subject, text, html = _given(request.subject), _given(request.text), _given(request.html)
    if request.template is not UNSET and template is not None:
        subject, text, html = render(template, _given(request.variables) or {}, subject)
    if subject is None:
        raise invalid("subject", f"this field is required{', since the template has no subject' if template else ''}")
    check_subject(subject)
    for field, body in (("text", text), ("html", html)):
        if body is not None:
            check_body(field, body)
    return Draft(
        sender=sender,
        to=to,
        cc=cc,
        bcc=bcc,
        recipients=recipients,
        reply_to=reply_to,
        subject=subject,
        text=text,
        html=html,
        headers=headers,
        tags=tags,
        files=() if request.attachments is UNSET else read_files(request.attachments),
    )


def _given(value: Value | UnsetType) -> Value | None:
    return None if value is UNSET else value


def _check_combination(request: SendRequest, template: StoredTemplate | None) -> None:
    has_body = request.text is not UNSET or request.html is not UNSET
    if request.template is not UNSET:
        if has_body:
            field = "text" if request.text is not UNSET else "html"
            raise invalid(field, "must not be given together with template")
        if template is None:
            raise invalid("template", "there is no template with this alias")
    elif request.variables is not UNSET:
        raise invalid("variables", "needs a template to be filled in")
    elif not has_body and not _given(request.attachments):
        raise invalid("text", "at least one of text, html, attachments and template must be given")


def _read_recipients(request: SendRequest) -> tuple[tuple[Address, ...], ...]:
    """The addresses of to, cc and bcc, and the unique ones among all of them."""
    if request.to == []:
        raise invalid("to", "must not be empty")
    known: dict[str, Address] = {}
    to = _read_addresses(request.to, "to", known)
    cc = () if request.cc is UNSET else _read_addresses(request.cc, "cc", known)
    bcc = () if request.bcc is UNSET else _read_addresses(request.bcc, "bcc", known)
    return to, cc, bcc, tuple(known.values()) if cc or bcc else to


def _read_addresses(value: str | list[str], field: str, known: dict[str, Address]) -> tuple[Address, ...]:
    """The unique addresses of one field; `known` are those of all fields so far, by their keys."""
    texts = [value] if isinstance(value, str) else value
    if len(texts) > limits.ADDRESS_ENTRIES:
        raise invalid(field, f"must have at most {limits.ADDRESS_ENTRIES} entries")
    mine: dict[str, Address] = {}
    for index, text in enumerate(texts):
        address = parse(text, field if texts is not value else f"{field}[{index}]")
        mine.setdefault(address.key, address)
        known.setdefault(address.key, address)
        if len(known) > limits.RECIPIENTS:  # before the rest is read, which may be hundreds
            raise invalid("to", f"to, cc and bcc together may have at most {limits.RECIPIENTS} unique addresses")
    return tuple(mine.values())
