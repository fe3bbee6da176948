"""docs/webhooks.md says what is posted; its snippets are run where their language is installed."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from appliance.config.load import parse
from appliance.model.webhooks import EVENT_RESPONSE_CHARACTERS, EVENT_SUBJECT_CHARACTERS, PING_TYPE, EventType
from appliance.webhook.post import JSON_CONTENT, USER_AGENT_HEADER
from appliance.webhook.receivers import DEAD_AFTER, POST_SLOTS, POSTS_PER_RECEIVER
from appliance.webhook.signatures import signature_header
from tests.programs import require

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "webhooks.md").read_text()
TOLERANCE = 300  # seconds that `t` may differ from the receiver's clock, by the interface
SECRET = "whsec_0TfI8yJ0jVx-aB_c"
BODY = '{"id":"evt_1","data":{"subject":"Grüße, \\"Ada\\" = , ."}}'.encode()

# How each is called: the program, the file's name, and what reads secret and header from the command line and the body
# from the standard input, and says whether it is verified.
CALLS = {
    "python": ([sys.executable], "a.py", "import sys\nprint(verify(*sys.argv[1:3], sys.stdin.buffer.read()))"),
    "javascript": (
        ["node"],
        "a.js",
        'console.log(verify(process.argv[2], process.argv[3], require("fs").readFileSync(0)));',
    ),
    "php": (["php"], "a.php", "echo verify($argv[1], $argv[2], file_get_contents('php://stdin')) ? 'true' : 'false';"),
    "ruby": (["ruby"], "a.rb", "STDIN.binmode\nputs verify(ARGV[0], ARGV[1], STDIN.read)"),
    "go": (
        ["go", "run"],
        "a.go",
        "func main() {body, _ := io.ReadAll(os.Stdin); fmt.Println(verify(os.Args[1], os.Args[2], body))}",
    ),
}


def snippet(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    return str(found)


def verified(directory: Path, language: str, secret: str, header: str, body: bytes) -> bool:
    program, name, call = CALLS[language]
    if language != "python":
        require(program[0])
    code = snippet(language)
    if language == "go":  # a program of its own, which also reads and writes
        code = code.replace("package hooks", "package main").replace("import (", 'import (\n"fmt"\n"io"\n"os"')
    (directory / name).write_text(f"{code}\n{call}\n", encoding="utf-8")
    command = [*program, str(directory / name), secret, header]
    done = subprocess.run(command, input=body, capture_output=True, timeout=60, check=True)
    assert done.stderr == b""
    return {"true": True, "false": False}[done.stdout.decode().strip().lower()]


@pytest.mark.parametrize("language", CALLS)
def test_the_snippet_accepts_what_we_sign(tmp_path: Path, language: str) -> None:
    for away in (0, 20 - TOLERANCE, TOLERANCE - 20):
        seconds = round(time.time()) + away
        assert verified(tmp_path, language, SECRET, signature_header(SECRET.encode(), seconds, BODY), BODY)


@pytest.mark.parametrize("language", CALLS)
def test_the_snippet_refuses_what_we_did_not_sign(tmp_path: Path, language: str) -> None:
    now = round(time.time())
    good = signature_header(SECRET.encode(), now, BODY)
    refused = [
        (SECRET, good, BODY + b" "),
        (SECRET, good, b""),
        (SECRET + "x", good, BODY),
        (SECRET, good.replace(f"t={now}", f"t={now - 1}"), BODY),
        (SECRET, good[:-1], BODY),
        (SECRET, good.partition(",")[0], BODY),
        (SECRET, good.partition(",")[2], BODY),
        (SECRET, "", BODY),
        (SECRET, "t=,v1=", BODY),
        (SECRET, "nonsense", BODY),
        (SECRET, signature_header(SECRET.encode(), now - TOLERANCE - 20, BODY), BODY),
        (SECRET, signature_header(SECRET.encode(), now + TOLERANCE + 120, BODY), BODY),  # all of these may take long
    ]
    assert [case for case in refused if verified(tmp_path, language, *case)] == []


@pytest.mark.parametrize("kind", [*(event.value for event in EventType), PING_TYPE])
def test_every_event_has_its_row(kind: str) -> None:
    assert re.search(rf"^\| `{re.escape(kind)}` \|", TEXT, re.MULTILINE)


@pytest.mark.parametrize(
    "field", ["email_id", "recipient_id", "to", "from", "subject", "smtp_code", "smtp_response", "bounce_class", "test"]
)
def test_every_field_has_its_row(field: str) -> None:
    """Each field of `data` stands in the table."""
    assert re.search(rf"^\| `{field}` \|", TEXT, re.MULTILINE)


def test_the_numbers_are_those_that_hold() -> None:
    for name, value in (("Content-Type", JSON_CONTENT), USER_AGENT_HEADER):
        assert f"{name}: {value}\n" in TEXT
    text = " ".join(TEXT.split())
    assert f"first {EVENT_SUBJECT_CHARACTERS} characters" in text
    assert f"first {EVENT_RESPONSE_CHARACTERS} characters" in text
    assert f"more than {TOLERANCE} seconds" in text
    assert f"At most {POSTS_PER_RECEIVER} posts" in text
    assert f"At most {POST_SLOTS} posts" in text
    assert f"after {DEAD_AFTER} failures in a row" in text
    waits = parse("", Path("config.toml")).webhooks.retry_delays
    units = {5.0: "5 s", 300.0: "5 min", 1800.0: "30 min", 7200.0: "2 h", 18000.0: "5 h", 36000.0: "10 h"}
    assert " | ".join(["at once", *(units[wait] for wait in waits)]) in TEXT
