"""Checks templates and variables, and renders templates. Pure: no I/O, no state.

A placeholder is `{{name}}`, with optional spaces inside the braces. A name starts with a letter or an underscore,
continues with letters, digits, `_`, `.` and `-`, and has at most 64 characters. Any other `{{` stays as it is.
"""

import html
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Final

from msgspec import Meta

from appliance.errors import Code, Refused, invalid
from appliance.message import limits
from appliance.message.characters import BODY_PATTERN, check_body, check_subject, cost_of_size, fault_in_line
from appliance.message.text_from_html import cost_of_html
from appliance.model.mail import StoredTemplate

_ESCAPED: Final = 6  # characters of `&quot;`, the longest escape
ALIAS: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")  # use fullmatch: `$` would allow a final newline
_PLACEHOLDER: Final = re.compile(r"\{\{ *([A-Za-z_][A-Za-z0-9_.-]{0,63}) *\}\}")
_LINE_BREAKS: Final = str.maketrans({"\r": None, "\n": None, "\u2028": None, "\u2029": None, "\t": " "})

Text = Annotated[str, Meta(extra_json_schema={"pattern": BODY_PATTERN})]
Variable = Text | int | float | bool  # integers within `check_numbers`


def placeholders(source: str) -> frozenset[str]:
    return frozenset(_PLACEHOLDER.findall(source))


def check_template(alias: str, subject: str | None, text: str | None, html: str | None) -> None:
    """Refuse a template that no variables could make valid."""
    if not ALIAS.fullmatch(alias):
        raise invalid("alias", "expected 1 to 64 of a-z, 0-9, `_` and `-`, beginning with a letter or digit")
    if text is None and html is None:
        raise invalid("text", "a template needs at least one of text and html")
    if subject is not None:
        check_subject(subject)
    for field, body in (("text", text), ("html", html)):
        if body is not None:
            check_body(field, body)
            if len(body) > limits.MESSAGE_SIZE:
                raise Refused(Code.PAYLOAD_TOO_LARGE, "larger than a message may be (10 MiB)", field=field)


def check_numbers(variables: Mapping[str, Variable]) -> None:
    """Refuse integers beyond the range of a double: formatting takes quadratic time.

    msgspec decodes up to 4,300 digits; formatting 32 such numbers takes 10 ms.
    """
    for name, value in variables.items():
        if isinstance(value, int) and value.bit_length() > limits.NUMBER_BITS:
            raise invalid(f"variables.{name[: limits.VARIABLE_NAME_LENGTH]}", "this number is out of range")


def check_variables(variables: Mapping[str, Variable]) -> None:
    if len(variables) > limits.VARIABLES:
        raise invalid("variables", f"at most {limits.VARIABLES} keys are allowed")
    for name, value in variables.items():
        if not 1 <= len(name) <= limits.VARIABLE_NAME_LENGTH:
            raise invalid("variables", f"a key has 1 to {limits.VARIABLE_NAME_LENGTH} characters")
        if fault := fault_in_line(name):
            raise invalid("variables", f"a key must not contain {fault}")
        if isinstance(value, str):
            check_body(f"variables.{name}", value)


def written(value: Variable) -> str:
    """Format a value: numbers and booleans as in JSON, a whole float without `.0`."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    # As JSON writers do: no `.0`, no leading zero in an exponent; -0.0 + 0.0 is 0.0.
    return repr(value + 0.0).removesuffix(".0").replace("e-0", "e-")


def render(
    template: StoredTemplate, variables: Mapping[str, Variable], subject: str | None
) -> tuple[str | None, str | None, str | None]:
    """Render subject, text and HTML; placeholders inside values are not expanded.

    Refuses a missing value by name. `subject` overrides the template's subject and is not rendered. Line breaks of
    values are removed in the subject.
    """
    check_variables(variables)
    values = {name: written(value) for name, value in variables.items()}
    text = _pieces(template.text, values, str)
    html_text = _pieces(template.html, values, html.escape)
    # Check the size before joining: a thousand placeholders times a megabyte is a gigabyte.
    if sum(map(len, text)) + sum(map(len, html_text)) > limits.MESSAGE_SIZE:
        raise Refused(Code.PAYLOAD_TOO_LARGE, "the rendered message is larger than 10 MiB", field="template")
    if subject is None and template.subject is not None:
        pieces = _pieces(template.subject, values, lambda value: value.translate(_LINE_BREAKS))
        if sum(map(len, pieces)) > limits.SUBJECT_LENGTH:
            raise invalid("subject", f"must have at most {limits.SUBJECT_LENGTH} characters")
        subject = "".join(pieces)
    return subject, template.text and "".join(text), template.html and "".join(html_text)


def _pieces(source: str | None, values: Mapping[str, str], write: Callable[[str], str]) -> list[str]:
    pieces = _PLACEHOLDER.split(source or "")  # literal, name, literal, name, …, literal
    ready: dict[str, str] = {}
    for name in set(pieces[1::2]):
        if name not in values:
            raise invalid(f"variables.{name}", "the template needs a value for this placeholder")
        ready[name] = write(values[name])
    pieces[1::2] = [ready[name] for name in pieces[1::2]]
    return pieces


def cost_of_template(template: StoredTemplate, variables: Mapping[str, Variable]) -> int:
    """Estimate rendering and composing a template, as if every placeholder had the longest value."""
    longest = max((len(written(value)) for value in variables.values()), default=0)
    cost = 0
    for source, growth in ((template.text, 1), (template.html, _ESCAPED)):
        if source is not None:
            count = source.count("{{")
            cost += count + cost_of_size(len(source) + count * longest * growth)
    if template.html is not None and template.text is None:
        cost += cost_of_html(template.html, template.html.count("{{") * longest)
    return cost


def cost_of_placeholders(*sources: str | None) -> int:
    return sum(source.count("{{") + cost_of_size(len(source)) for source in sources if source)
