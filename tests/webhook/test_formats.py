"""Events in the shapes of other providers: what django-anymail and listmonk understand, and the documented examples."""

import json
import re
import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta, Struct

from appliance.model.webhooks import DuePost, EventType, Lane, Trigger, WebhookFormat, example_envelope
from appliance.webhook.formats import shaped
from appliance.webhook.post import JSON_CONTENT
from appliance.webhook.signatures import sendgrid_public_key, sign
from tests.fakes.anymail import tracked
from tests.webhook.native_events import CASES, EVENT_ID, LABELS, MESSAGE_ID, native

RESEND, POSTMARK, MAILGUN, SENDGRID = (each for each in WebhookFormat if each is not WebhookFormat.NATIVE)
SECRET = b"whsec_" + 43 * b"A" + b"="
DOCS = (Path(__file__).parents[2] / "docs" / "webhook-formats.md").read_text()


def posted(format: WebhookFormat, body: bytes) -> tuple[dict[str, str], bytes]:
    due = DuePost(Lane("whk_1", Trigger.EVENT), "whd_1", 0, shaped(format, body), EVENT_ID, format=format)
    headers, signed = sign(SECRET, due, round(time.time()))
    return dict([("content-type", JSON_CONTENT), *headers]), signed


def anymail(format: WebhookFormat, body: bytes) -> Any:
    key = sendgrid_public_key(SECRET) if format is SENDGRID else SECRET.decode()
    return tracked(format, *posted(format, body), key)


# ---- django-anymail

# Its event type and reject reason, from Resend, Postmark, Mailgun and SendGrid.
BOUNCE = [("bounced", "bounced"), ("bounced", "bounced"), ("bounced", "bounced"), ("bounced", None)]
FAILURE = [("unknown", None), ("bounced", "bounced"), ("bounced", "other"), ("bounced", None)]
ANYMAIL: dict[str, list[tuple[str, str | None]]] = {
    "delivered": [("delivered", None)] * 4,
    "bounced": BOUNCE,
    "refused": BOUNCE,
    "suppressed": [("bounced", "blocked"), ("rejected", "blocked"), ("bounced", "bounced"), ("rejected", "other")],
    "failed": FAILURE,
    "unreached": FAILURE,
    "delayed": [("deferred", None), ("deferred", None), ("deferred", "other"), ("deferred", None)],
    "late_bounced": BOUNCE,
    "late_full": BOUNCE,
    "complained": [("complained", None), ("complained", "spam"), ("complained", None), ("complained", None)],
}


@pytest.mark.parametrize("case", CASES)
def test_anymail_understands_it(case: str) -> None:
    """Every provider's view verifies the post, and finds the result, the recipient, the ids, tags and metadata."""
    for format, expected in zip((RESEND, POSTMARK, MAILGUN, SENDGRID), ANYMAIL[case], strict=True):
        event = anymail(format, native(case))
        assert (event.event_type, event.reject_reason) == expected, format
        assert event.recipient == "ada@example.net"
        assert event.timestamp.timestamp() == pytest.approx(1_750_000_000, abs=1)
        in_brackets = f"<{LABELS['message_id']}>"
        assert event.message_id == (in_brackets if format in (MAILGUN, SENDGRID) else MESSAGE_ID)
        if format is not RESEND:  # anymail takes its own headers for these, which events do not have
            assert event.tags == (LABELS["tags"][:1] if format is POSTMARK else LABELS["tags"])
            assert event.metadata.items() >= LABELS["metadata"].items()
            assert (event.mta_response or "") == ("" if format is SENDGRID and case == "suppressed" else CASES[case][2])


@pytest.mark.parametrize("kind", sorted(set(EventType) - {EventType.RECEIVED}))
@pytest.mark.parametrize("format", [RESEND, POSTMARK, MAILGUN, SENDGRID])
def test_an_event_with_nothing_else_has_the_shape(format: WebhookFormat, kind: EventType) -> None:
    """A message without labels, and an event without a result; an example says that it is a test."""
    bare = {"id": EVENT_ID, "type": kind.value, "created_at": "2025-06-15T15:06:40.123Z"}
    event = anymail(format, json.dumps(bare | {"data": {"email_id": MESSAGE_ID, "to": "ada@example.net"}}).encode())
    assert event.recipient == "ada@example.net"
    assert anymail(format, example_envelope(EVENT_ID, kind, 1_750_000_000_123_456)).recipient == "ada@example.net"
    assert b'"test":"true"' in shaped(format, example_envelope(EVENT_ID, kind, 1_750_000_000_123_456))


def test_metadata_replaces_no_field_of_sendgrid() -> None:
    (event,) = json.loads(shaped(SENDGRID, native("bounced", metadata={"event": "delivered", "email": "x", "a": "b"})))
    assert (event["event"], event["email"], event["a"]) == ("bounce", "ada@example.net", "b")


def test_a_number_identifies_an_event_of_postmark() -> None:
    """JavaScript reads it exactly; it depends on the event's id alone."""
    ids = [json.loads(shaped(POSTMARK, native(case)))["ID"] for case in ("bounced", "complained")]
    assert ids[0] == ids[1]
    assert 0 < ids[0] < 2**53


# ---- listmonk's handlers for bounces (internal/bounce/webhooks): the fields that they read, with the types of Go

HARD, SOFT, COMPLAINT = "hard", "soft", "complaint"
Rfc3339 = Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$")]
POSTMARK_TYPES = {
    **dict.fromkeys(("HardBounce", "BadEmailAddress", "ManuallyDeactivated"), HARD),
    **dict.fromkeys(("SoftBounce", "Transient", "DnsError", "SpamNotification", "VirusNotification"), SOFT),
    "DMARCPolicy": SOFT,
    "SpamComplaint": COMPLAINT,
}


class PostmarkNotice(Struct):
    RecordType: str
    MessageStream: str
    ID: int
    Type: str
    TypeCode: int
    Name: str
    Tag: str
    MessageID: str
    Metadata: dict[str, str]
    ServerID: int
    Description: str
    Details: str
    Email: str
    From: str
    BouncedAt: Rfc3339
    DumpAvailable: bool
    Inactive: bool
    CanActivate: bool
    Subject: str


class SendgridNotice(Struct):
    email: str
    timestamp: int
    event: str
    bounce_classification: str = ""
    XListmonkCampaign: str = ""


LISTMONK = {  # from Postmark, and from SendGrid
    "delivered": (None, None),
    "bounced": (HARD, HARD),
    "refused": (SOFT, SOFT),
    "suppressed": (HARD, None),
    "failed": (SOFT, SOFT),
    "unreached": (SOFT, SOFT),
    "delayed": (SOFT, None),
    "late_bounced": (HARD, HARD),
    "late_full": (SOFT, SOFT),
    "complained": (COMPLAINT, None),
}


def test_postmark_has_other_streams_by_their_name() -> None:
    for stream, name in (("transactional", "outbound"), ("broadcast", "broadcast")):
        assert json.loads(shaped(POSTMARK, native("bounced", stream=stream)))["MessageStream"] == name


@pytest.mark.parametrize("case", CASES)
def test_listmonk_counts_it(case: str) -> None:
    """Hard only where the address is at fault; with the subscriber and the campaign. It refuses an unknown `Type`."""
    labels = {"metadata": {"X-Listmonk-Campaign": "c1", "XListmonkCampaign": "c1"}}
    by_postmark, by_sendgrid = (shaped(format, native(case, **labels)) for format in (POSTMARK, SENDGRID))
    counted: list[str | None] = [None, None]
    if json.loads(by_postmark)["RecordType"] in ("Bounce", "SpamComplaint"):
        notice = msgspec.json.decode(by_postmark, type=PostmarkNotice)
        counted[0] = POSTMARK_TYPES[notice.Type]
        assert (notice.Email, notice.Metadata["X-Listmonk-Campaign"]) == ("ada@example.net", "c1")
    (event,) = msgspec.json.decode(by_sendgrid, type=list[SendgridNotice])
    assert (event.email, event.XListmonkCampaign, event.timestamp) == ("ada@example.net", "c1", 1_750_000_000)
    if event.event == "bounce":
        counted[1] = SOFT if event.bounce_classification in ("technical", "content") else HARD
    assert tuple(counted) == LISTMONK[case]


# ---- docs/webhook-formats.md


@pytest.mark.parametrize("format", [RESEND, POSTMARK, MAILGUN, SENDGRID])
def test_the_docs_show_it(format: WebhookFormat) -> None:
    """Each format's example is the bounce of this message, and its table names every field of every event."""
    section = re.split(r"^## ", DOCS, flags=re.MULTILINE)
    (chapter,) = [each for each in section if each.lower().startswith(format.value)]
    (example,) = re.findall(r"^```json\n(.*?)^```$", chapter, re.DOTALL | re.MULTILINE)
    made = json.loads(posted(format, native("bounced", tags=["receipt"]))[1])
    shown = json.loads(example)
    if format is MAILGUN:
        assert set(made.pop("signature")) == set(shown.pop("signature"))
    assert shown == made
    rows = set(re.findall(r"`([^`]+)`", "".join(re.findall(r"^\| `[^|]*\|.*$", chapter, re.MULTILINE))))
    names = {name.rpartition(".")[2] for name in rows} | {part for name in rows for part in name.split(".")}
    for case in CASES:
        for fields in leaves(json.loads(posted(format, native(case))[1])):
            assert fields in names, (case, fields)


def leaves(value: Any) -> set[str]:
    """The names of fields at any depth, without those of the customer."""
    if isinstance(value, list):
        return set().union(*map(leaves, value))
    if not isinstance(value, dict):
        return set()
    own = {name: inner for name, inner in value.items() if name not in ("order", "receipt", "eu")}
    return set(own).union(*map(leaves, own.values()))
