"""Routes that only `appliance dev` has, or answers in another way: the inbox, and logins without a password."""

import re
from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace
from quart import Response, request

from appliance.dev.access import SESSION_ID
from appliance.dev.inbox import Inbox
from appliance.errors import invalid
from appliance.intake.account_rules import searched_recipient
from appliance.message.checks import check_message, links_of, not_ascii
from appliance.message.limits import MAILBOX_LENGTH, SUBJECT_LENGTH
from appliance.message.reader import read_message
from appliance.model.accounts import Principal
from appliance.web.api.emails import EmailRoutes, mail_filters
from appliance.web.api.login import LoginRequest, LoginRoutes, TokenObject
from appliance.web.api.message_body import JSON
from appliance.web.api.message_objects import EmailsAnswer, encoded_page
from appliance.web.app import ApiServices, Routes, page_limit, text_filter
from appliance.web.exchange import ApiAnswer, DeletedAnswer, request_id
from appliance.web.operations import MESSAGE_ID, Operation, Tag, for_customers

LONGEST_POLL = 60  # seconds
_WAIT = re.compile(r"([0-9]{1,2})s?")


class FindingObject(msgspec.Struct):
    """A fault of a message."""

    level: Annotated[Literal["error", "warning", "info"], Meta(description="How serious it is.")]
    title: Annotated[str, Meta(description="What is wrong.")]
    detail: Annotated[str, Meta(description="Why it matters, and what to do.")]
    source: Annotated[str, Meta(description="URL of the rule, or empty.")]


class LinkObject(msgspec.Struct):
    """A link in the HTML."""

    target: Annotated[str, Meta(description="Target of the link.")]
    text: Annotated[str, Meta(description="Text of the link.")]


class ChecksAnswer(ApiAnswer):
    """The findings about a message, and its links."""

    findings: Annotated[list[FindingObject], Meta(description="Faults, the most serious first.")]
    links: Annotated[list[LinkObject], Meta(description="Links of the HTML, at most 200.")]


class InboxRoutes(Routes):
    tag = Tag.MESSAGES

    def __init__(self, inbox: Inbox, services: ApiServices) -> None:
        super().__init__(services)
        self.inbox, self.emails = inbox, EmailRoutes(services)

    @for_customers("GET /v1/emails", EmailsAnswer)
    async def list_emails(self, user: Principal) -> bytes | Response:
        """List messages; with `to` or `subject` those that match, and with `wait` as soon as there is one."""
        wait, to = request.args.get("wait"), text_filter("to", MAILBOX_LENGTH, searched_recipient)
        subject = text_filter("subject", SUBJECT_LENGTH, str.casefold)
        filters = mail_filters(user)
        if filters is None or (wait is None and to is None and subject is None):
            return await self.emails.list_emails(user)
        filters = replace(filters, recipient=to or filters.recipient)
        search = filters, subject or "", page_limit()
        if wait is None:
            page = await self.inbox.find(*search, request.args.get("before"))
        else:
            page = await self.inbox.wait(*search, _seconds(wait))
        return encoded_page(page, request_id())

    @for_customers("DELETE /v1/emails", DeletedAnswer)
    async def delete_emails(self, user: Principal) -> DeletedAnswer:
        """Empty the inbox."""
        await self.inbox.clear()
        return DeletedAnswer(True)

    @for_customers("GET /v1/emails/{id:not_test}/checks", ChecksAnswer, MESSAGE_ID)
    async def check_email(self, user: Principal, message_id: str) -> Response:
        """Check a message as an expert would."""
        _, facts = await self.emails.visible(user, message_id)
        check = partial(_encoded_checks, request_id())
        return await self.services.bodies.answer(user.account_id, message_id, facts.size, check, JSON)


def _seconds(text: str) -> float:
    match = _WAIT.fullmatch(text)
    if match is None or int(match[1]) > LONGEST_POLL:
        raise invalid("wait", f"must be a number of seconds up to {LONGEST_POLL}, such as 10s")
    return float(match[1])


def _encoded_checks(request_id: str, mime: bytes) -> bytes:
    """Runs on a thread."""
    view = read_message(mime)
    findings = [FindingObject(*finding) for finding in (*check_message(view, len(mime)), *not_ascii(mime))]
    links = [LinkObject(*link) for link in links_of(view)]
    return msgspec.json.encode(ChecksAnswer(findings, links, request_id=request_id))


class OpenLoginRoutes(Routes):
    """Logs everyone in, with any password or none. The token is not checked either."""

    tag = Tag.SESSIONS

    def __init__(self, services: ApiServices) -> None:
        super().__init__(services)
        self.logins = LoginRoutes(services)

    @Operation("POST /v1/auth/login", (200, TokenObject, "Logged in."))
    async def log_in(self, body: LoginRequest) -> Response:
        """Return a token."""
        return await self.refresh_token()

    @Operation("POST /v1/auth/refresh", (200, TokenObject, "A new token."))
    async def refresh_token(self) -> Response:
        """Return a token."""
        user, _ = await self.current_user()
        return self.logins.token_answer(user, SESSION_ID)


def dev_routes(inbox: Inbox) -> tuple[Callable[[ApiServices], Routes], ...]:
    return partial(InboxRoutes, inbox), OpenLoginRoutes
