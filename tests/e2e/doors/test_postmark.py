"""Postmark's library for Node and postmarker for Python, unmodified, with only their URL and token changed."""

from typing import Any

import pytest
from postmarker.core import PostmarkClient
from postmarker.exceptions import ClientError

from tests.e2e.contract.service import eventually
from tests.e2e.doors.libraries import add_template, manage_key, mime, node
from tests.e2e.webhooks.customer import Customer

SIMPLE: dict[str, Any] = {"From": "shop@example.com", "To": "ada@example.net", "Subject": "Hi", "TextBody": "Hi"}
FULL: dict[str, Any] = SIMPLE | {
    "To": '"Lovelace, Ada" <ada@example.net>, bob@example.net',
    "Cc": "carol@example.net",
    "Bcc": "dan@example.net",
    "ReplyTo": "help@example.com, sales@example.com",
    "HtmlBody": '<img src="cid:logo">',
    "Tag": "receipt",
    "Metadata": {"order": "10045"},
    "MessageStream": "outbound",
    "TrackOpens": False,
    "TrackLinks": "None",
}
FILES = [
    {"Name": "a.txt", "Content": "aGVsbG8=", "ContentType": "text/plain"},
    {"Name": "logo.png", "Content": "iVBORw==", "ContentType": "image/png", "ContentID": "cid:logo"},
]


def in_node(customer: Customer, key: str, *calls: list[Any]) -> list[Any]:
    host = customer.sender.running.url.removeprefix("http://")
    options = f"{{ useHttps: false, requestHost: '{host}/postmark' }}"
    return node("postmark", f"new library.ServerClient('{key}', {options})", *calls)


@pytest.fixture
def python(customer: Customer) -> Any:
    return PostmarkClient(customer.sender.account.full_key, root_api_url=customer.sender.running.url)


def check_full(customer: Customer, sent: Any) -> None:
    assert (sent["ErrorCode"], sent["Message"], sent["To"]) == (0, "OK", FULL["To"])
    made = mime(customer, sent["MessageID"])
    assert (made["To"], made["Cc"], made["Bcc"]) == (FULL["To"], "carol@example.net", None)
    assert (made["Reply-To"], made["X-Order"]) == (FULL["ReplyTo"], "10045")
    assert made["X-Service-Tag"] == "receipt"
    files = {part.get_filename(): part.get_content() for part in made.walk() if part.get_filename()}
    assert files == {"a.txt": "hello", "logo.png": b"\x89PNG"}
    read = customer.sender.read(sent["MessageID"])
    assert (read["recipient_count"], read["metadata"]) == (4, {"order": "10045"})


def test_python_sends_what_it_can(customer: Customer, python: Any) -> None:
    add_template(customer, "welcome", subject="Hello {{name}}", text="Order {{number}}")
    check_full(customer, python.emails.send(**FULL, Headers={"X-Order": "10045"}, Attachments=FILES))
    batch = python.emails.send_batch(SIMPLE, SIMPLE | {"To": "no address"}, SIMPLE)
    assert [answer["ErrorCode"] for answer in batch] == [0, 300, 0]
    address = {"From": "shop@example.com", "To": "ada@example.net"}
    model = {"TemplateAlias": "welcome", "TemplateModel": {"name": "Ada", "number": 7}}
    sent = python.emails.send_with_template(**address, **model)
    assert mime(customer, sent["MessageID"])["Subject"] == "Hello Ada"
    (sent,) = python.emails.send_template_batch(address | model)
    found = eventually(
        lambda: python.messages.outbound.get(sent["MessageID"]), lambda found: found.MessageEvents and found
    )
    assert (found.Status, found.Subject, found.Recipients) == ("Sent", "Hello Ada", ["ada@example.net"])
    with pytest.raises(ClientError, match=r"\[1101\] TemplateAlias"):
        python.emails.send_with_template(**address, TemplateAlias="unknown", TemplateModel={})


def test_python_lists_bounces(customer: Customer, python: Any) -> None:
    message_id = python.emails.send(**SIMPLE | {"To": "bounce@example.net"})["MessageID"]
    (bounce,) = eventually(python.bounces.all, bool)
    assert (bounce.MessageID, bounce.Type, bounce.TypeCode) == (message_id, "HardBounce", 1)
    assert (bounce.Email, bounce.Inactive) == ("bounce@example.net", True)
    assert python.bounces.all(type="SoftBounce") == []
    assert len(python.bounces.all(emailFilter="BOUNCE@", fromdate="2020-01-01", todate="2199-01-01")) == 1
    assert python.bounces.all(todate="2020-01-01") == []


def test_node_does_it_all(customer: Customer) -> None:
    add_template(customer, "welcome", subject="Hello {{name}}", text="Order {{number}}")
    full = FULL | {"Attachments": FILES, "Headers": [{"Name": "X-Order", "Value": "10045"}]}
    templated = {"From": "shop@example.com", "To": "bounce@example.net", "TemplateAlias": "welcome"}
    templated["TemplateModel"] = {"name": "Ada", "number": 7}  # type: ignore[assignment]
    sent, batch, one, two = (
        result["value"]
        for result in in_node(
            customer,
            customer.sender.account.full_key,
            ["sendEmail", full],
            ["sendEmailBatch", [SIMPLE | {"Subject": str(number)} for number in range(500)]],
            ["sendEmailWithTemplate", templated],
            ["sendEmailBatchWithTemplates", [templated, templated | {"TemplateModel": {}}]],
        )
    )
    check_full(customer, sent)
    assert len({answer["MessageID"] for answer in batch}) == 500
    assert mime(customer, batch[499]["MessageID"])["Subject"] == "499"
    assert mime(customer, one["MessageID"])["Subject"] == "Hello Ada"
    assert [answer["ErrorCode"] for answer in two] == [0, 300]
    customer.sender.final(one["MessageID"])
    details, bounces = (
        result["value"]
        for result in in_node(
            customer,
            customer.sender.account.full_key,
            ["getOutboundMessageDetails", one["MessageID"]],
            ["getBounces", {"messageID": one["MessageID"], "count": 5}],
        )
    )
    assert details["To"] == [{"Email": "bounce@example.net", "Name": None}]
    assert [event["Type"] for event in details["MessageEvents"]] == ["Bounced"]
    assert [bounces["TotalCount"], bounces["Bounces"][0]["MessageID"]] == [1, one["MessageID"]]


def test_suppressions(customer: Customer) -> None:
    entries = {"Suppressions": [{"EmailAddress": "Ada@Example.net"}, {"EmailAddress": "no address"}]}
    created, dumped, filtered, deleted, empty = (
        result["value"]["Suppressions"]
        for result in in_node(
            customer,
            manage_key(customer),
            ["createSuppressions", "outbound", entries],
            ["getSuppressions", "outbound"],
            ["getSuppressions", "outbound", {"suppressionReason": "HardBounce"}],
            ["deleteSuppressions", "outbound", entries],
            ["getSuppressions", "outbound", {"emailAddress": "ada@example.net"}],
        )
    )
    assert [entry["Status"] for entry in created] == ["Suppressed", "Failed"]
    shown = [(entry["EmailAddress"], entry["SuppressionReason"], entry["Origin"]) for entry in dumped]
    assert shown == [("ada@example.net", "ManualSuppression", "Customer")]
    assert [entry["Status"] for entry in deleted] == ["Deleted", "Failed"]
    assert filtered == empty == []


def test_lists_of_a_stream(customer: Customer) -> None:
    """`broadcast` has its own list of addresses, as with Postmark; `outbound` has those that get no mail at all."""
    entries = {"Suppressions": [{"EmailAddress": "ada@example.net"}]}
    results = in_node(
        customer,
        manage_key(customer),
        ["createSuppressions", "broadcast", entries],
        ["getSuppressions", "broadcast"],
        ["getSuppressions", "outbound"],
        ["deleteSuppressions", "outbound", entries],
        ["getSuppressions", "broadcast"],
        ["deleteSuppressions", "broadcast", entries],
        ["getSuppressions", "broadcast"],
        ["getBounces", {"messageStream": "broadcast"}],
        ["getSuppressions", "news"],
        ["getBounces", {"messageStream": "news"}],
    )
    lists = [result["value"]["Suppressions"] for result in results[:7]]
    assert [[entry["EmailAddress"] for entry in listed] for listed in lists] == [
        *(["ada@example.net"], ["ada@example.net"], [], ["ada@example.net"]),
        *(["ada@example.net"], ["ada@example.net"], []),
    ]
    assert lists[1][0]["SuppressionReason"] == "ManualSuppression"
    assert results[7]["value"] == {"TotalCount": 0, "Bounces": []}
    assert [result["error"]["code"] for result in results[8:]] == [1235, 1235]


REFUSED: list[tuple[list[Any], int, int, str]] = [
    (["sendEmail", SIMPLE | {"TrackOpens": True}], 422, 300, "TrackOpens: this server tracks no opens"),
    (["sendEmail", SIMPLE | {"TrackLinks": "HtmlOnly"}], 422, 300, "TrackLinks: this server tracks no links"),
    (["sendEmail", SIMPLE | {"MessageStream": "news"}], 422, 1235, "MessageStream: "),
    (["sendEmail", SIMPLE | {"From": "shop@other.example"}], 422, 400, "other.example"),
    (["sendEmail", SIMPLE | {"To": ""}], 422, 300, "To: must not be empty"),
    (["sendEmail", SIMPLE | {"Wrong": 1}], 422, 300, "Wrong: there is no such field"),
    (["sendEmail", SIMPLE | {"Headers": [{"Name": "a", "Value": "b"}] * 2}], 422, 300, "Headers: two headers"),
    (["sendEmail", SIMPLE | {"TemplateAlias": "a"}], 422, 1101, "/email/withTemplate"),
    (["sendEmailWithTemplate", SIMPLE | {"TemplateId": 1}], 422, 1101, "Send TemplateAlias"),
    (["sendEmailBatch", [SIMPLE] * 501], 422, 410, "expected 1 to 500 messages, got 501"),
    (["getOutboundMessageDetails", "msg_1"], 404, 701, "No message has this id"),
    (["getBounces", {"tag": "a"}], 422, 300, "tag"),
    (["getBounces", {"fromDate": "x"}], 422, 300, "fromdate: expected a date"),
    (["getBounces", {"toDate": "2026-11-31"}], 422, 300, "todate: expected a date"),
    (["getBounces", {"inactive": "maybe"}], 422, 300, "inactive: expected true or false"),
    (["getServer"], 404, 404, "dashboard"),
    (["getMessageOpens"], 404, 404, "tracks no opens"),
    (["getSuppressions", "outbound"], 401, 10, "scope manage"),
]


def test_what_is_refused(customer: Customer) -> None:
    """The error that the library throws names the reason and has Postmark's code."""
    results = in_node(customer, customer.sender.account.full_key, *(row[0] for row in REFUSED))
    for (_, status, code, part), shown in zip(REFUSED, results, strict=True):
        error = shown["error"]
        assert (error["statusCode"], error["code"]) == (status, code), error
        assert part in error["message"]
    for key in ("re_123", "ma_live_wrong"):
        (shown,) = in_node(customer, key, ["sendEmail", SIMPLE])
        assert (shown["error"]["name"], shown["error"]["code"]) == ("InvalidAPIKeyError", 10)
    empty = customer.sender.client.post("/postmark/email", json=SIMPLE, headers={"X-Postmark-Server-Token": ""})
    assert empty.json() == {
        "ErrorCode": 10,
        "Message": "Send an API key of this server: X-Postmark-Server-Token: ma_live_…",
    }
