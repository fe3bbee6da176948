"""Free test messages to one address: POST /v1/emails/test."""

import math
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from appliance.errors import Code, PublicError, Refused
from appliance.intake.account_rules import TEST_SUBJECT, TEST_TEXT, test_sender
from appliance.message.limits import ALIAS_LENGTH, SUBJECT_LENGTH, VARIABLES
from appliance.message.schema import Mailbox, SendRequest
from appliance.message.template import Variable, check_numbers
from appliance.model.accounts import Caller, Principal
from appliance.model.mail import MessageStatus, Source
from appliance.times import SECOND
from appliance.web.api.templates import BODY, LINE
from appliance.web.app import ApiServices, Routes
from appliance.web.exchange import ApiAnswer, request_id
from appliance.web.operations import Limited, Tag, for_customers

TEST_INTERVAL = 15_000_000  # microseconds between two tests of an account
TRACKED_ACCOUNTS = 10_000  # with the time of their last test

_SUBJECT = Meta(max_length=SUBJECT_LENGTH, extra_json_schema=LINE, description="Default: a sample subject.")
_PATTERN = Meta(extra_json_schema={"pattern": "^[a-z0-9][a-z0-9_-]{0,63}$"})
_Alias = Annotated[str, Meta(min_length=1, max_length=ALIAS_LENGTH, examples=["order-shipped"]), _PATTERN]
_Variables = Annotated[dict[str, Variable], Meta(max_length=VARIABLES)]


class TestMailRequest(msgspec.Struct, forbid_unknown_fields=True, rename={"sender": "from"}):
    """The recipient and optional content of a test message."""

    __test__ = False  # not a pytest class

    to: Annotated[Mailbox, Meta(examples=["ada@example.net"], description="Recipient.")]
    sender: Annotated[Mailbox | UnsetType, Meta(description="Default: `test@` and the first domain.")] = UNSET
    subject: Annotated[str, _SUBJECT] | UnsetType = UNSET
    text: Annotated[str, Meta(extra_json_schema=BODY, description="Default: a sample text.")] | UnsetType = UNSET
    html: Annotated[str, Meta(extra_json_schema=BODY, description="HTML body.")] | UnsetType = UNSET
    template: Annotated[_Alias | UnsetType, Meta(description="Template alias, instead of a body.")] = UNSET
    variables: Annotated[_Variables | UnsetType, Meta(description="Values of the placeholders, by name.")] = UNSET


class TestMailAnswer(ApiAnswer, rename={"sender": "from"}):
    """An accepted test message."""

    __test__ = False

    id: Annotated[str, Meta(description="Message id, `msg_…`.")]
    status: Annotated[MessageStatus, Meta(description="Always `queued`.")]
    source: Annotated[Source, Meta(description="Always `test`.")]
    sender: Annotated[str, Meta(description="Sender, as submitted.")]
    to: Annotated[str, Meta(description="Recipient.")]


_SENT = (202, TestMailAnswer, "Stored on disk.")


class SendTestRoutes(Routes):
    tag = Tag.MESSAGES

    def __init__(self, services: ApiServices) -> None:
        super().__init__(services)
        self._last: dict[str, int] = {}  # time of each account's last test

    def _check_interval(self, account_id: str) -> None:
        now = self.services.env.now()
        wait = self._last.get(account_id, -TEST_INTERVAL) + TEST_INTERVAL - now
        if 0 < wait <= TEST_INTERVAL:  # unless the clock was set back
            seconds = math.ceil(wait / SECOND)
            text = f"Tests are limited to one every 15 seconds. Retry in {seconds} seconds."
            raise Refused(Code.RATE_LIMITED, text, retry_after=seconds)
        if len(self._last) >= TRACKED_ACCOUNTS:
            self._last.clear()
        self._last[account_id] = now

    @for_customers("POST /v1/emails/test", _SENT, Code.ACCOUNT_SUSPENDED, limited=Limited.NARROWED)
    async def send_test_email(self, user: Principal, body: TestMailRequest) -> TestMailAnswer:
        """Send a test message to one address. It is free, really delivered, and limited to one every 15 seconds.

        Only `to` is required.
        """
        caller = await self.caller_of(user)
        self.services.intake.check_open(caller)
        message = _request(body, caller)
        self._check_interval(user.account_id)
        try:
            receipt = await self.services.intake.send_test(caller, message, request_id())
        except PublicError:
            self._last.pop(user.account_id, None)  # nothing was sent
            raise
        sent = receipt.id, MessageStatus.QUEUED, Source.TEST, receipt.sender, receipt.to[0]
        return TestMailAnswer(*sent)


def _request(body: TestMailRequest, caller: Caller) -> SendRequest:
    if body.variables is not UNSET:
        check_numbers(body.variables)
    empty = body.text is UNSET and body.html is UNSET and body.template is UNSET
    return SendRequest(
        sender=test_sender(caller) if body.sender is UNSET else body.sender,
        to=body.to,
        subject=TEST_SUBJECT if body.subject is UNSET and body.template is UNSET else body.subject,
        text=TEST_TEXT if empty else body.text,
        html=body.html,
        template=body.template,
        variables=body.variables,
    )
