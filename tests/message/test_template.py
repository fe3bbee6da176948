"""Templates: what may be stored, and what filling one in gives."""

import json
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from appliance.errors import Code, Refused
from appliance.message.template import ALIAS, Variable, check_template, check_variables, placeholders, render, written
from appliance.model.mail import StoredTemplate
from tests.message.samples import drafted, hostile_text


def template(subject: str | None = None, text: str | None = None, html: str | None = None) -> StoredTemplate:
    return StoredTemplate("welcome", 1, subject, text, html, 0, 0)


def filled(source: str, **values: Variable) -> str | None:
    return render(template(text=source), values, None)[1]


def test_placeholders() -> None:
    source = "{{a}} {{ b_1 }} {{  c.d-e  }} {{}} {{1a}} {{a b}} {a} {{{d}}} {{é}} {{ a\n}}"
    assert placeholders(source) == {"a", "b_1", "c.d-e", "d"}


def test_filled_in() -> None:
    rendered = render(
        template("Hi {{n}}!", "Hi {{ n }}", "<b>{{n}}</b>"), {"n": "<A & \"B\" 'C'>\r\nBcc: x", "extra": 1}, None
    )
    assert rendered == (
        "Hi <A & \"B\" 'C'>Bcc: x!",
        "Hi <A & \"B\" 'C'>\r\nBcc: x",
        "<b>&lt;A &amp; &quot;B&quot; &#x27;C&#x27;&gt;\r\nBcc: x</b>",
    )


def test_one_pass() -> None:
    assert filled("{{a}} {{b}}", a="{{b}}", b="{{a}}") == "{{b}} {{a}}"
    assert filled("{{a}}{b}}", a="{", b="x") == "{{b}}"


def test_literal_braces() -> None:
    """Braces that form no placeholder stay as they are."""
    assert filled("{{ {{}} {{1}} }} {{a b}} {x}") == "{{ {{}} {{1}} }} {{a b}} {x}"


def test_missing_value() -> None:
    with pytest.raises(Refused, match=r"variables\.name: the template needs a value"):
        filled("Hello {{name}}", nam="x")


def test_given_subject_wins_literally() -> None:
    assert render(template("{{missing}}", "x"), {}, "Hi {{name}}")[0] == "Hi {{name}}"


def test_amplification_is_stopped() -> None:
    with pytest.raises(Refused) as caught:
        filled("{{a}}" * 10_000, a="x" * 1_000_000)
    assert caught.value.code is Code.PAYLOAD_TOO_LARGE


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x", "x"), (True, "true"), (False, "false"), (0, "0"), (-7, "-7"), (2**63 - 1, "9223372036854775807"),
        (1.0, "1"), (-0.0, "0"), (0.1, "0.1"), (-1.5, "-1.5"), (100.0, "100"), (123.456, "123.456"),
        (1e15, "1000000000000000"), (1e21, "1e+21"), (1.5e21, "1.5e+21"), (0.000123, "0.000123"), (1e-7, "1e-7"),
        (1.25e-7, "1.25e-7"), (1e-10, "1e-10"), (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
    ],
)  # fmt: skip
def test_numbers_and_booleans_are_written_as_json(value: Variable, text: str) -> None:
    assert written(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_written_floats_read_back(value: float) -> None:
    assert float(json.loads(written(value))) == value


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"": "x"}, "variables: a key has 1 to 64 characters"),
        ({"k" * 65: "x"}, "variables: a key has 1 to 64 characters"),
        ({"a\n": "x"}, "variables: a key must not contain a line feed"),
        ({"a": "\x00"}, "variables.a: must not contain a NUL character"),
        ({"a": "x\ry"}, "variables.a: must not contain a carriage return"),
        ({"a": "\x85"}, "variables.a: must not contain a control character (U+0085)"),
        ({str(i): i for i in range(33)}, "variables: at most 32 keys are allowed"),
    ],
)
def test_refused_variables(variables: dict[str, Variable], sentence: str) -> None:
    with pytest.raises(Refused) as caught:
        check_variables(variables)
    assert caught.value.text == sentence


@pytest.mark.parametrize(
    ("alias", "fields", "field"),
    [
        ("Welcome", {"text": "x"}, "alias"),
        ("", {"text": "x"}, "alias"),
        ("-a", {"text": "x"}, "alias"),
        ("a" * 65, {"text": "x"}, "alias"),
        ("a\n", {"text": "x"}, "alias"),
        ("a", {}, "text"),
        ("a", {"subject": "x"}, "text"),
        ("a", {"text": "x", "subject": "x" * 501}, "subject"),
        ("a", {"text": "x", "subject": "x\n"}, "subject"),
        ("a", {"text": "x", "subject": "x\ty"}, "subject"),
        ("a", {"text": "x\x00"}, "text"),
        ("a", {"text": "x\ry"}, "text"),
        ("a", {"text": "x", "html": "\x1b"}, "html"),
        ("a", {"html": "\ud800"}, "html"),
    ],
)
def test_templates_that_may_not_be_stored(alias: str, fields: dict[str, str], field: str) -> None:
    with pytest.raises(Refused, match=f"^{field}: "):
        check_template(alias, fields.get("subject"), fields.get("text"), fields.get("html"))


def test_templates_that_may_be_stored() -> None:
    check_template("a-b_c0", None, "a\tb\r\nc\nd\u2028", None)
    check_template("0", "Hi {{name}}", None, "")
    assert ALIAS.fullmatch("order-shipped")


def test_subject_must_come_from_somewhere() -> None:
    """Neither a subject nor a template that has one: refused."""
    with pytest.raises(Refused, match="subject: this field is required, since the template has no subject"):
        drafted(template(text="x"), subject=None, text=None, template="welcome")


def test_filled_in_subject_has_a_limit_too() -> None:
    fields: dict[str, Any] = {"subject": None, "text": None, "template": "welcome", "variables": {"a": "x" * 500}}
    with pytest.raises(Refused, match="subject: must have at most 500"):
        drafted(template("-{{a}}", "x"), **fields)
    assert drafted(template("{{a}}", "x"), **fields).subject == "x" * 500


@given(hostile_text, st.dictionaries(st.sampled_from(["a", "b"]), hostile_text | st.integers(), min_size=2))
@example("{{a}} {{b}}", {"a": "{{b}}", "b": "\r\nBcc: x"})
def test_any_source_and_values(source: str, values: dict[str, Variable]) -> None:
    """Filling in equals replacing each placeholder once, and the subject never gains a line break from a value."""
    source = f"{{{{a}}}}{source}{{{{ b }}}}"
    try:
        subject, text, _ = render(template(source, source), values, None)
    except Refused:
        return
    expected = re.sub(
        r"\{\{ *([A-Za-z_][\w.-]{0,63}) *\}\}", lambda found: str(values[found[1]]), source, flags=re.ASCII
    )
    assert text == expected
    allowed = set(source)
    assert not (set(subject or "") & set("\r\n\u2028\u2029")) - allowed
