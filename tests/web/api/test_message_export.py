"""Messages as CSV: every cell in its column, and none that a spreadsheet evaluates."""

import csv
import io

from appliance.model.dashboard import ExportedRecipient
from appliance.web.api.message_export import COLUMNS, encoded_lines

LINE = ExportedRecipient(
    message_id="msg_1",
    recipient_id="rcp_1",
    created_at=0,
    source="api",
    sender="=HYPERLINK(1) <a@example.com>",
    subject='+1, "quoted"\nnext line',
    tags='["@one","two"]',
    credential="key_1",
    email="-x@example.net",
    outcome="bounced",
    attempt_count=2,
    last_smtp_code=550,
    last_smtp_response="=cmd()",
    delivered_at=None,
    metadata='{"a":"=1"}',
    scheduled_at=3_600_000_000,
    stream="broadcast",
)


def test_no_cell_is_a_formula() -> None:
    ((*cells,),) = csv.reader(io.StringIO(encoded_lines([LINE]).decode(), newline=""))
    row = dict(zip(COLUMNS, cells, strict=True))
    assert row["subject"] == '\'+1, "quoted"\nnext line'
    for name in ("from", "tags", "recipient", "last_smtp_response"):
        assert row[name].startswith("'"), name
    assert (row["key"], row["attempts"], row["last_smtp_code"], row["delivered_at"]) == ("key_1", "2", "550", "")
    assert row["metadata"] == '{"a":"=1"}'
    assert row["accepted_at"] == "1970-01-01T00:00:00.000Z"
    assert row["scheduled_at"] == "1970-01-01T01:00:00.000Z"
