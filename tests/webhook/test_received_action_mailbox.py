"""Received messages in other providers' formats: Rails Action Mailbox verifies them, and passes them to a mailbox."""

import base64
from collections.abc import Iterator

import pytest
import trio

from appliance.model.webhooks import WebhookFormat
from tests.fakes.action_mailbox import ActionMailbox, action_mailbox
from tests.webhook.test_received_formats import FILE, FORMATS, MIME_URL, SECRET, mail, posted


@pytest.fixture(scope="module")
def rails(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ActionMailbox]:
    with action_mailbox(tmp_path_factory.mktemp("rails"), SECRET) as started:
        yield started


@pytest.mark.parametrize("format", FORMATS)
async def test_action_mailbox_takes_it(rails: ActionMailbox, format: WebhookFormat) -> None:
    """With the files as they were sent, and nothing that another secret signed."""
    headers, body = await posted(format, mail(), MIME_URL)
    status, message = await trio.to_thread.run_sync(rails.post, format, headers, body)
    assert status == 204
    assert (message["from"], message["subject"]) == (["ada@example.net"], "Grüße")
    assert [base64.b64decode(content) for _, content in message["files"]] == [FILE, FILE]
    headers.pop("Authorization", "")
    forged = body.replace(b'name="signature"\r\n\r\n', b'name="signature"\r\n\r\n0')
    status, message = await trio.to_thread.run_sync(rails.post, format, headers, forged)
    assert (status, message) == (401, None)


@pytest.mark.parametrize("format", FORMATS)
async def test_bytes_that_are_no_utf8_arrive_whole(rails: ActionMailbox, format: WebhookFormat) -> None:
    """JSON and forms are in UTF-8: other 8-bit content is encoded in seven bits."""
    head = b"From: a@b.c\r\nSubject: x\r\nMIME-Version: 1.0\r\nMessage-ID: <2@b.c>\r\n"
    part = b'Content-Type: application/x-thing; name="x.bin"\r\nContent-Disposition: attachment\r\n'
    part += b"Content-Transfer-Encoding: 8bit\r\n\r\nGr\xfc\xdfe\r\n"
    mime = head + b'Content-Type: multipart/mixed; boundary="x"\r\n\r\n--x\r\n' + part + b"--x--\r\n"
    _, message = await trio.to_thread.run_sync(rails.post, format, *await posted(format, mime, MIME_URL))
    assert [base64.b64decode(content).strip() for _, content in message["files"]] == [b"Gr\xfc\xdfe"]
