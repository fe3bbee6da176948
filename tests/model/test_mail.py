"""The shared records: none can be changed, and none shows what a customer wrote."""

from typing import Any

import pytest

from appliance.model import mail
from appliance.model.mail import (
    Attempt,
    DueRecipient,
    IdempotencyClaim,
    NewMessage,
    NewRecipient,
    Outcome,
    RecipientStatus,
)

RECIPIENT = NewRecipient("rcp_1", "Ada@example.net", "ada@example.net", "example.net")
DUE = DueRecipient("rcp_1", "msg_1", "acc_1", "a@b.c", "b.c", 0, None, None, "s@example.com", "Hi", 1, 1)
MESSAGE = NewMessage(
    id="msg_1",
    account_id="acc_1",
    request_id="req_1",
    source=mail.Source.API,
    simulated=False,
    sender="Shop <s@example.com>",
    envelope_from="s@example.com",
    subject="a secret",
    tags=(),
    template_alias=None,
    template_version=None,
    mime=b"a secret",
    receipt=b"{}",
    recipients=(RECIPIENT,),
    credits=1,
    created_at=0,
    idempotency=None,
)


@pytest.mark.parametrize(
    ("record", "field"),
    [
        (RECIPIENT, "address"),
        (DUE, "attempt_count"),
        (MESSAGE, "mime"),
        (IdempotencyClaim("key:1", "k", b"", 0), "key"),
        (Outcome(DUE, RecipientStatus.DELIVERED, (Attempt(0, 0, 250, "OK"),), 0), "status"),
    ],
)
def test_a_record_stays_as_it_was_made(record: Any, field: str) -> None:
    with pytest.raises(AttributeError):
        setattr(record, field, getattr(record, field))
    with pytest.raises(AttributeError):
        record.something_else = 1


def test_a_new_message_does_not_show_what_it_says() -> None:
    assert repr(MESSAGE) == "NewMessage(id='msg_1')"
