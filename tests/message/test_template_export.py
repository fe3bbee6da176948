"""Templates of other providers: what their APIs return becomes a template here, or is skipped with the reason."""

import json
from typing import Any

import pytest

from appliance.message.template_export import ExportedTemplate, Exporter, read_templates

SENDGRID_ID, RESEND_ID = "d-8096b5dacb254c8b882816f22d1d11fe", "34a080c9-b17d-4187-ad80-5af20266e535"
BODY = "<p>{{ name }}</p>"
POSTMARK = {"Alias": "welcome", "Subject": "Hi {{name}}", "HtmlBody": BODY, "TextBody": "", "TemplateId": 1}
MAILGUN = {"template": BODY, "engine": "handlebars", "tag": "initial", "headers": {"Subject": "Hi {{name}}"}}
RESEND = {
    "object": "template",
    "id": RESEND_ID,
    "alias": "welcome",
    "subject": "Hi {{{name}}}",
    "html": "<p>{{{ name }}}</p>",
    "text": None,
    "variables": [{"key": "name", "type": "string", "fallback_value": None}],
}
SENDGRID_VERSIONS = [
    {"active": 0, "subject": "Old", "html_content": "old", "plain_content": "old"},
    {"active": 1, "subject": "Hi {{name}}", "html_content": BODY, "plain_content": ""},
]
SENDGRID = {"id": SENDGRID_ID, "name": "Welcome", "generation": "dynamic", "versions": SENDGRID_VERSIONS}
CASES: list[tuple[Exporter, Any, str]] = [
    (Exporter.POSTMARK, POSTMARK, "welcome"),
    (Exporter.MAILGUN, {"template": {"name": "welcome", "version": MAILGUN}}, "welcome"),
    (Exporter.RESEND, RESEND, "welcome"),
    (Exporter.RESEND, RESEND | {"alias": None}, RESEND_ID),
    (Exporter.SENDGRID, SENDGRID, SENDGRID_ID),
    (
        Exporter.SES,
        {"TemplateName": "Welcome", "TemplateContent": {"Subject": "Hi {{name}}", "Html": BODY}},
        "welcome",
    ),
    (
        Exporter.SES,
        {"Template": {"TemplateName": "Welcome", "SubjectPart": "Hi {{name}}", "HtmlPart": BODY}},
        "welcome",
    ),
]


@pytest.mark.parametrize(("exporter", "exported", "alias"), CASES)
def test_a_template_keeps_the_name_that_applications_send(exporter: Exporter, exported: Any, alias: str) -> None:
    templates, skipped = read_templates(json.dumps(exported), exporter)
    assert skipped == []
    assert [one._replace(html=str(one.html).replace("{{name}}", "{{ name }}")) for one in templates] == [
        ExportedTemplate(alias, "Hi {{name}}", None, BODY)
    ]


@pytest.mark.parametrize(
    ("exporter", "changed", "name", "reason"),
    [
        (Exporter.POSTMARK, POSTMARK | {"HtmlBody": "{{#each a}}{{b}}{{/each}}"}, "welcome", "has placeholders other"),
        (Exporter.POSTMARK, POSTMARK | {"HtmlBody": "{{{name}}}"}, "welcome", "has placeholders other"),
        (Exporter.POSTMARK, POSTMARK | {"Alias": None, "Name": "Nameless"}, "Nameless", "alias: expected 1 to 64"),
        (Exporter.POSTMARK, POSTMARK | {"LayoutTemplate": "frame"}, "welcome", "has or is a layout"),
        (Exporter.POSTMARK, POSTMARK | {"TemplateType": "Layout"}, "welcome", "has or is a layout"),
        (Exporter.POSTMARK, POSTMARK | {"Subject": 1}, "welcome", "is not a template of postmark"),
        (Exporter.POSTMARK, 7, "number 1", "is not a JSON object"),
        (Exporter.MAILGUN, {"name": "a.b", "version": MAILGUN}, "a.b", "alias: expected 1 to 64"),
        (Exporter.MAILGUN, {"name": "a", "version": MAILGUN | {"engine": "go"}}, "a", "is not in Handlebars"),
        (Exporter.MAILGUN, {"template": {"name": "a"}}, "a", "text: a template needs at least one"),
        (Exporter.RESEND, RESEND | {"variables": [{"key": "A", "fallback_value": 0}]}, "welcome", "A has a fallback"),
        (Exporter.RESEND, RESEND | {"html": "{{{contact.name}}}"}, "welcome", "has placeholders other"),
        (Exporter.SENDGRID, SENDGRID | {"generation": "legacy"}, "Welcome", "is a legacy template"),
        (Exporter.SENDGRID, SENDGRID | {"versions": SENDGRID_VERSIONS[:1]}, "Welcome", "has no active version"),
        (Exporter.SENDGRID, {"result": [SENDGRID]}, "number 1", "has no active version"),
        (Exporter.SES, {"TemplateName": 1}, "number 1", "is not a template of ses"),
    ],
)
def test_a_template_that_cannot_be_rendered_is_skipped(
    exporter: Exporter, changed: Any, name: str, reason: str
) -> None:
    templates, ((skipped, error),) = read_templates(json.dumps([changed]), exporter)
    assert (templates, skipped) == ([], name)
    assert error.startswith(reason)


def test_the_first_of_two_with_one_alias_is_taken() -> None:
    templates, skipped = read_templates(json.dumps([POSTMARK, POSTMARK | {"Subject": "Later"}]), Exporter.POSTMARK)
    assert [one.subject for one in templates] == ["Hi {{name}}"]
    assert [one.error for one in skipped] == ["has the alias of an earlier one"]
