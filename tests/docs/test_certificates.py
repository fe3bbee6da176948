"""Holds docs/certificates.md to the settings, files and waits that there are."""

import re
from pathlib import Path

import pytest

from appliance.acme import schedule
from appliance.acme.records import STATE
from appliance.config.load import parse
from appliance.tls.certificate import ACME_DIRECTORY, CERTIFICATE

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "certificates.md").read_text()
EXAMPLES = re.findall(r"^```toml\n(.*?)^```", DOCUMENT, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("text", EXAMPLES)
def test_the_examples_can_be_used(text: str) -> None:
    named = text if "[server]" in text else f'[server]\nhostname = "mail.example.com"\n{text}'
    assert parse(named, Path("/srv/config.toml")).acme.names == ("mail.example.com",)


def test_files_and_waits_are_those_of_the_program() -> None:
    for name in (f"{ACME_DIRECTORY}/", STATE, CERTIFICATE):
        assert f"`{name}`" in DOCUMENT
    assert list(schedule.RETRY_DELAYS) == [60, 300, 1800, 3600, 6 * 3600]
    assert "1 minute, 5 minutes, 30 minutes and 1 hour, then every 6 hours" in DOCUMENT.replace("\n", " ")
    assert schedule.time_before(0, 90, None) == 30
    assert "a third of its life" in DOCUMENT
