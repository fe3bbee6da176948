"""`docs/clients.md` is true to the libraries' READMEs and to the rules they share."""

import re
from pathlib import Path

import pytest

from appliance.errors import Code

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "clients.md").read_text()
RULES = (ROOT / "clients" / "conformance" / "README.md").read_text()
HEADINGS = {"python": "Python", "node": "Node", "go": "Go", "php": "PHP", "ruby": "Ruby"}


def first_block(text: str, heading: str) -> str:
    found = re.search(rf"^{heading}\n.*?(^```\w+\n.*?^```$)", text, re.DOTALL | re.MULTILINE)
    assert found, heading
    return found[1]


@pytest.mark.parametrize("language", HEADINGS)
def test_the_first_send_is_the_readme_s(language: str) -> None:
    readme = (ROOT / "clients" / language / "README.md").read_text()
    assert first_block(DOCUMENT, f"### {HEADINGS[language]}") == first_block(readme, "## First send")


@pytest.mark.parametrize("language", HEADINGS)
def test_only_one_example_reads_a_message(language: str) -> None:
    """The others work with a key that may only send. Fakes, and `appliance dev`, need no key."""
    readme = (ROOT / "clients" / language / "README.md").read_text()
    reading = [
        section.partition("\n")[0]
        for section in re.split(r"^## ", readme, flags=re.MULTILINE)
        for block in re.findall(r"^```(?!sh)\w+\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
        if re.search(r"(?<!Header)(?:\.|->)(?:wait|get)\((?!\")", block, re.IGNORECASE)
        and not re.search("Fake|dev", block, re.IGNORECASE)
    ]
    assert reading == ["Delivery status"]


def test_every_class_and_variable_is_explained() -> None:
    classes = {"".join(word.title() for word in code.value.split("_")) for code in Code}
    assert len(classes) == 15
    others = ("ConfigurationError", "ConnectionFailed", "WaitTimeout", "SignatureInvalid", "ApiError", "NotSupported")
    for name in (*classes, *others):
        assert f"`{name}`" in DOCUMENT
        assert f"`{name}`" in RULES
    for variable in ("URL", "USERNAME", "PASSWORD", "TOKEN"):
        assert f"MAIL_APPLIANCE_{variable}" in DOCUMENT
