"""Reads templates as the APIs of other providers return them. No I/O.

A template that this server cannot render is skipped with the reason, so one bad template does not lose the others. The
alias is what a client of that provider sends as the name of the template, so the application keeps its calls.
"""

import json
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from appliance.errors import Refused
from appliance.message.template import check_template

# What other languages have besides values: sections, loops, partials, comments, and values that are not escaped.
_UNKNOWN_SYNTAX = re.compile(r"\{\{\{|\{\{(?! *[A-Za-z_][A-Za-z0-9_.-]{0,63} *\}\})")
_RESEND_PLACEHOLDER = re.compile(r"\{\{(\{ *[A-Za-z_][A-Za-z0-9_]{0,63} *\})\}\}")
_Fields = Mapping[str, Any]


class Exporter(StrEnum):
    MAILGUN = "mailgun"
    POSTMARK = "postmark"
    RESEND = "resend"
    SENDGRID = "sendgrid"
    SES = "ses"


class ExportedTemplate(NamedTuple):
    alias: str
    subject: str | None
    text: str | None
    html: str | None


class SkippedTemplate(NamedTuple):
    name: str
    error: str


def read_templates(text: str, exporter: Exporter) -> tuple[list[ExportedTemplate], list[SkippedTemplate]]:
    """Read one template or an array of them. Raise ValueError if the text is not JSON."""
    exported = json.loads(text)
    templates, skipped = dict[str, ExportedTemplate](), list[SkippedTemplate]()
    for number, one in enumerate(exported if isinstance(exported, list) else [exported], 1):
        name = _name(one) or f"number {number}"
        try:
            if not isinstance(one, dict):
                raise ValueError("is not a JSON object")
            parts = [part or None for part in _READERS[exporter](one)]
            if not all(isinstance(part, str | None) for part in parts):
                raise ValueError(f"is not a template of {exporter}")
            template = ExportedTemplate(parts[0] or "", *parts[1:])
            if any(part is not None and _UNKNOWN_SYNTAX.search(part) for part in template[1:]):
                raise ValueError("has placeholders other than {{name}}; render them in the application")
            if template.alias in templates:
                raise ValueError("has the alias of an earlier one")
            check_template(*template)
        except Refused as refused:
            skipped.append(SkippedTemplate(name, refused.text))
        except ValueError as fault:
            skipped.append(SkippedTemplate(name, str(fault)))
        else:
            templates[template.alias] = template
    return [*templates.values()], skipped


def _fields(value: object) -> _Fields:
    return value if isinstance(value, dict) else {}


def _items(value: object) -> list[_Fields]:
    return [_fields(item) for item in value] if isinstance(value, list) else []


def _name(one: object) -> str | None:
    outer = _fields(one)
    fields = _fields(outer.get("template")) or _fields(outer.get("Template")) or outer
    names = (fields.get(key) for key in ("Alias", "alias", "Name", "name", "TemplateName", "id"))
    return next((name for name in names if name and isinstance(name, str)), None)


# ---- one reader per provider: the alias, the subject, and the text and HTML bodies

_Read = tuple[Any, Any, Any, Any]


def _mailgun(one: _Fields) -> _Read:
    """`/v3/{domain}/templates/{name}?active=yes`."""
    template = _fields(one.get("template")) or one
    version = _fields(template.get("version"))
    if version.get("engine", "handlebars") != "handlebars":
        raise ValueError("is not in Handlebars; rewrite its placeholders as {{name}}")
    return template.get("name"), _fields(version.get("headers")).get("Subject"), None, version.get("template")


def _postmark(one: _Fields) -> _Read:
    """`/templates/{alias}`."""
    if one.get("LayoutTemplate") or one.get("TemplateType", "Standard") != "Standard":
        raise ValueError("has or is a layout; put the layout into the template")
    return one.get("Alias"), one.get("Subject"), one.get("TextBody"), one.get("HtmlBody")


def _resend(one: _Fields) -> _Read:
    """`/templates/{id}`. Its placeholders have three braces."""
    for variable in _items(one.get("variables")):
        if variable.get("fallback_value") is not None:
            text = f"{variable.get('key')} has a fallback value; always send the value, and set fallback_value to null"
            raise ValueError(text)
    subject, body, html = (one.get(name) and _with_two_braces(one[name]) for name in ("subject", "text", "html"))
    return one.get("alias") or one.get("id"), subject, body, html


def _with_two_braces(part: object) -> object:
    return _RESEND_PLACEHOLDER.sub(r"{\1}", part) if isinstance(part, str) else part


def _sendgrid(one: _Fields) -> _Read:
    """`/v3/templates/{id}`: the active version."""
    if one.get("generation", "dynamic") != "dynamic":
        raise ValueError("is a legacy template; write its substitutions as {{name}}")
    active = [version for version in _items(one.get("versions")) if version.get("active")]
    if not active:
        raise ValueError("has no active version")
    return one.get("id"), active[0].get("subject"), active[0].get("plain_content"), active[0].get("html_content")


def _ses(one: _Fields) -> _Read:
    """`aws sesv2 get-email-template`, or `aws ses get-template`. The alias is the name in lower case."""
    content, end = _fields(one.get("TemplateContent")), ""
    if template := _fields(one.get("Template")):
        one = content = template
        end = "Part"
    name = one.get("TemplateName")
    subject, text, html = (content.get(part + end) for part in ("Subject", "Text", "Html"))
    return name.lower() if isinstance(name, str) else name, subject, text, html


_READERS: dict[Exporter, Callable[[_Fields], _Read]] = {
    Exporter.MAILGUN: _mailgun,
    Exporter.POSTMARK: _postmark,
    Exporter.RESEND: _resend,
    Exporter.SENDGRID: _sendgrid,
    Exporter.SES: _ses,
}
