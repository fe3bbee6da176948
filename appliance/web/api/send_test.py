"""In charge of the owner's own test message: /v1/emails/test. It costs nothing and is really delivered."""

import math
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType
from quart import Blueprint, Response

from appliance.errors import Code, Refused
from appliance.intake.accept import MessageIntake
from appliance.message.characters import BODY_PATTERN, LINE_PATTERN
from appliance.message.limits import ALIAS_LENGTH, SUBJECT_LENGTH, VARIABLES
from appliance.message.schema import Mailbox, SendRequest
from appliance.message.template import Variable
from appliance.model.mail import Caller, MessageStatus, Source
from appliance.times import SECOND
from appliance.web.app import Services, answer, json_request, request_id
from appliance.web.operations import for_customers

COOLDOWN = 15_000_000  # microseconds between two tests of an account
REMEMBERED = 10_000  # accounts
SUBJECT = "A test message"
TEXT = "This is a test message. If you can read it, mail from this domain arrives."


class TestMailRequest(msgspec.Struct, forbid_unknown_fields=True, rename={"sender": "from"}):
    """The body of a POST: one address, and what to send to it; without anything else, a short text."""

    __test__ = False  # not for the runner of our own tests

    to: Annotated[Mailbox, Meta(examples=["ada@example.net"])]
    sender: Mailbox | UnsetType = UNSET
    subject: (
        Annotated[str, Meta(max_length=SUBJECT_LENGTH, extra_json_schema={"pattern": LINE_PATTERN})] | UnsetType
    ) = UNSET
    text: Annotated[str, Meta(extra_json_schema={"pattern": BODY_PATTERN})] | UnsetType = UNSET
    html: Annotated[str, Meta(extra_json_schema={"pattern": BODY_PATTERN})] | UnsetType = UNSET
    template: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=ALIAS_LENGTH,
                examples=["order-shipped"],
                extra_json_schema={"pattern": "^[a-z0-9][a-z0-9_-]{0,63}$"},
            ),
        ]
        | UnsetType
    ) = UNSET
    variables: Annotated[dict[str, Variable], Meta(max_length=VARIABLES)] | UnsetType = UNSET


class TestMailAnswer(msgspec.Struct, rename={"sender": "from"}):
    """A test that is on its way."""

    __test__ = False

    id: str
    status: MessageStatus
    source: Source
    sender: str
    to: str
    request_id: str


BODY = msgspec.json.Decoder(TestMailRequest)


def blueprint(services: Services, door: MessageIntake) -> Blueprint:
    """The routes."""
    routes = Blueprint("test_mail", __name__)
    last: dict[str, int] = {}  # by account: when its last test was sent

    def take_turn(account_id: str) -> None:
        now = services.outside.now()
        wait = last.get(account_id, -COOLDOWN) + COOLDOWN - now
        if 0 < wait <= COOLDOWN:  # or the clock has been put back
            seconds = math.ceil(wait / SECOND)
            text = f"A test can be sent every 15 seconds. Wait {seconds} seconds, then try again."
            raise Refused(Code.RATE_LIMITED, text, retry_after=seconds)
        if len(last) >= REMEMBERED:
            last.clear()
        last[account_id] = now

    @routes.post("/v1/emails/test")
    async def send() -> Response:
        user, body = await services.customer(), await json_request(BODY)
        caller = services.store.access.caller_by_account(user.account_id)
        assert caller is not None  # noqa: S101 - its user has just been let in
        door.check_open(caller)
        wanted = _request(body, caller)
        take_turn(user.account_id)
        try:
            receipt = await door.send_test(caller, wanted, request_id())
        except Refused:
            last.pop(user.account_id, None)  # nothing was sent
            raise
        sent = TestMailAnswer(
            receipt.id, MessageStatus.QUEUED, Source.TEST, receipt.sender, receipt.to[0], request_id()
        )
        return answer(sent, 202)

    return routes


def _request(body: TestMailRequest, caller: Caller) -> SendRequest:
    """What is to be sent, with everything filled in that was left out."""
    if body.sender is UNSET and not caller.domains:
        raise Refused(Code.FORBIDDEN, "from: this account has no verified domain yet. Add one first.")
    empty = body.text is UNSET and body.html is UNSET and body.template is UNSET
    return SendRequest(
        sender=f"test@{min(caller.domains)}" if body.sender is UNSET else body.sender,
        to=body.to,
        subject=SUBJECT if body.subject is UNSET and body.template is UNSET else body.subject,
        text=TEXT if empty else body.text,
        html=body.html,
        template=body.template,
        variables=body.variables,
    )


OPERATIONS = (
    for_customers(
        "post",
        "/v1/emails/test",
        "Send a test to one address: free of charge, really delivered, at most every 15 seconds.",
        (202, TestMailAnswer, "Accepted and on disk."),
        Code.FORBIDDEN,
        Code.ACCOUNT_SUSPENDED,
        Code.PAYLOAD_TOO_LARGE,
        Code.RATE_LIMITED,
        body=TestMailRequest,
    ),
)
