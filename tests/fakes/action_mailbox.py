"""Rails Action Mailbox: its ingresses verify a post, and pass the message to a mailbox of the application."""

import base64
import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.model.webhooks import WebhookFormat
from appliance.webhook.received_formats import basic_password
from tests.programs import require

SCRIPT = Path(__file__).with_suffix(".rb")
PATHS = {
    WebhookFormat.POSTMARK: "/rails/action_mailbox/postmark/inbound_emails",
    WebhookFormat.MAILGUN: "/rails/action_mailbox/mailgun/inbound_emails/mime",
    WebhookFormat.SENDGRID: "/rails/action_mailbox/sendgrid/inbound_emails",
}


@dataclass(frozen=True)
class ActionMailbox:
    process: subprocess.Popen[str]

    def post(self, format: WebhookFormat, headers: Mapping[str, str], body: bytes) -> tuple[int, Any]:
        """The status of the answer, and the message in the mailbox or None."""
        asked = {"ingress": format.value, "path": PATHS[format], "headers": dict(headers)}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(asked | {"body": base64.b64encode(body).decode()}) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        return answer["status"], answer["mail"]


@contextmanager
def action_mailbox(directory: Path, secret: bytes) -> Iterator[ActionMailbox]:
    for library in ("action-mailbox", "railties", "ruby-sqlite3"):
        require(library)
    command = [require("ruby"), str(SCRIPT), basic_password(secret), secret.decode(), str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield ActionMailbox(process)
        finally:
            process.terminate()
