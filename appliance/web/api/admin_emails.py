"""Messages of other accounts, read by administrators: /v1/admin/accounts/{id}/emails.

Invariant: the audit logs of that account, of the administrator's account and of the installation record every read
before the response. Nothing here changes a message.
"""

from dataclasses import replace

from quart import Response, request

from appliance.errors import Code
from appliance.model.accounts import User
from appliance.store.audit import about, concerns
from appliance.web.api.emails import EMAIL_FILTERS, FILE_NUMBER, EmailRoutes, EmailsAnswer
from appliance.web.api.message_body import OCTETS, RAW_MESSAGE, BodyAnswer
from appliance.web.api.message_objects import MessageDetails
from appliance.web.app import ApiServices, Routes
from appliance.web.operations import PAGING_BACK, Tag, for_admins, identifier, parameter

INSTALLATION = ""  # stands for the installation's own log

_ACCOUNT_ID = identifier("Account id.", "^acc_[0-9a-f]{32}$")
_MESSAGE_ID = parameter("message_id", "path", "Message id.", {"type": "string"})
_OF_MESSAGE = (_ACCOUNT_ID, _MESSAGE_ID)
_FILTER_NAMES = frozenset(declared["name"] for declared in EMAIL_FILTERS)


class AdminEmailRoutes(Routes):
    tag = Tag.ADMINISTRATION

    def __init__(self, services: ApiServices) -> None:
        super().__init__(services)
        self.emails = EmailRoutes(services)

    async def _reader(self, admin: User, account_id: str, message_id: str = "") -> User:
        """The administrator acting as a user of the account. Every read is recorded."""
        account = await self.store.accounts.find(account_id)
        about(message_id or account.name, {"account": account.name})
        concerns(INSTALLATION)
        return replace(admin, account_id=account.id)

    @for_admins(
        "GET /v1/admin/accounts/{id}/emails",
        EmailsAnswer,
        Code.NOT_FOUND,
        parameters=(_ACCOUNT_ID, *EMAIL_FILTERS, *PAGING_BACK),
        action="email.listed",
    )
    async def list_managed_emails(self, admin: User, account_id: str) -> bytes:
        """List an account's messages, newest first, with the filters of `GET /v1/emails`.

        The request and its filters are recorded in the audit log.
        """
        reader = await self._reader(admin, account_id)
        about(details={name: value for name, value in request.args.items() if name in _FILTER_NAMES})
        return await self.emails.list_emails(reader)

    @for_admins(
        "GET /v1/admin/accounts/{id}/emails/{message_id}",
        MessageDetails,
        Code.NOT_FOUND,
        parameters=_OF_MESSAGE,
        action="email.read",
    )
    async def get_managed_email(self, admin: User, account_id: str, message_id: str) -> bytes:
        """Read a message of an account with every attempt. Recorded in the audit log."""
        return await self.emails.get_email_details(await self._reader(admin, account_id, message_id), message_id)

    @for_admins(
        "GET /v1/admin/accounts/{id}/emails/{message_id}/body",
        BodyAnswer,
        Code.NOT_FOUND,
        parameters=_OF_MESSAGE,
        action="email.body_read",
    )
    async def get_managed_email_body(self, admin: User, account_id: str, message_id: str) -> Response:
        """Read the content of an account's message. Recorded in the audit log."""
        return await self.emails.get_email_body(await self._reader(admin, account_id, message_id), message_id)

    @for_admins(
        "GET /v1/admin/accounts/{id}/emails/{message_id}/raw",
        (200, bytes, "The stored message, before signing."),
        Code.NOT_FOUND,
        parameters=_OF_MESSAGE,
        media=RAW_MESSAGE,
        action="email.downloaded",
    )
    async def get_managed_email_raw(self, admin: User, account_id: str, message_id: str) -> Response:
        """Download an account's message. Recorded in the audit log."""
        return await self.emails.get_email_raw(await self._reader(admin, account_id, message_id), message_id)

    @for_admins(
        "GET /v1/admin/accounts/{id}/emails/{message_id}/attachments/{number}",
        (200, bytes, "The file."),
        Code.NOT_FOUND,
        parameters=(*_OF_MESSAGE, FILE_NUMBER),
        media=OCTETS,
        action="email.file_downloaded",
    )
    async def get_managed_email_attachment(
        self, admin: User, account_id: str, message_id: str, number: str
    ) -> Response:
        """Download an attachment of an account's message. Recorded in the audit log."""
        reader = await self._reader(admin, account_id, message_id)
        about(details={"file": number})
        return await self.emails.get_email_attachment(reader, message_id, number)
