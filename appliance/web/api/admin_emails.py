"""Other accounts' messages, read by administrators: /v1/admin/accounts/{id}/emails.

Invariant: whatever is read leaves a line in the audit log of that account, of the administrator's own, and of the
installation, before it is answered. Nothing here changes a message.
"""

from dataclasses import replace

from quart import Response, request

from appliance.errors import Code
from appliance.model.accounts import User
from appliance.store.audit import about, concerns
from appliance.web.api.emails import EMAIL_FILTERS, FILE_NUMBER, EmailRoutes, EmailsAnswer
from appliance.web.api.message_body import OCTETS, RAW_MESSAGE, BodyAnswer
from appliance.web.api.timeline import MessageDetails
from appliance.web.app import ApiServices, Routes
from appliance.web.operations import PAGING_BACK, for_admins, identifier, parameter

INSTALLATION = ""  # in the place of an account: the log of the installation itself

_ACCOUNT_ID = identifier("The account's id.", "^acc_[0-9a-f]{32}$")
_MESSAGE_ID = parameter("message_id", "path", "The message's id.", {"type": "string"})
_OF_MESSAGE = (_ACCOUNT_ID, _MESSAGE_ID)
_FILTER_NAMES = frozenset(each["name"] for each in EMAIL_FILTERS)


class AdminEmailRoutes(Routes):
    def __init__(self, services: ApiServices) -> None:
        super().__init__(services)
        self.emails = EmailRoutes(services)

    async def _reader(self, admin: User, account_id: str, message_id: str = "") -> User:
        """The administrator in the place of the account's user; the note says what is read."""
        found = await self.store.accounts.find(account_id)
        about(message_id or found.name, {"account": found.name})
        concerns(INSTALLATION)
        return replace(admin, account_id=found.id)

    @for_admins(
        "GET /v1/admin/accounts/{id}/emails",
        (200, EmailsAnswer, "A page of messages."),
        Code.NOT_FOUND,
        parameters=(_ACCOUNT_ID, *EMAIL_FILTERS, *PAGING_BACK),
        action="email.listed",
    )
    async def list_managed_emails(self, admin: User, account_id: str) -> bytes:
        """List the messages of an account, newest first, with the filters of `GET /v1/emails`.

        That they were listed, and by which filters, is written to the audit log.
        """
        reader = await self._reader(admin, account_id)
        about(details={name: value for name, value in request.args.items() if name in _FILTER_NAMES})
        return await self.emails.list_emails(reader)

    @for_admins(
        "GET /v1/admin/accounts/{id}/emails/{message_id}",
        (200, MessageDetails, "The message."),
        Code.NOT_FOUND,
        parameters=_OF_MESSAGE,
        action="email.read",
    )
    async def get_managed_email(self, admin: User, account_id: str, message_id: str) -> bytes:
        """Read a message of an account with every attempt; that it was read is written to the audit log."""
        return await self.emails.get_email_details(await self._reader(admin, account_id, message_id), message_id)

    @for_admins(
        "GET /v1/admin/accounts/{id}/emails/{message_id}/body",
        (200, BodyAnswer, "Header, texts and attached files."),
        Code.NOT_FOUND,
        parameters=_OF_MESSAGE,
        action="email.body_read",
    )
    async def get_managed_email_body(self, admin: User, account_id: str, message_id: str) -> Response:
        """Read what a message of an account says; that it was read is written to the audit log."""
        return await self.emails.get_email_body(await self._reader(admin, account_id, message_id), message_id)

    @for_admins(
        "GET /v1/admin/accounts/{id}/emails/{message_id}/raw",
        (200, bytes, "The message as it is stored, before it is signed."),
        Code.NOT_FOUND,
        parameters=_OF_MESSAGE,
        media=RAW_MESSAGE,
        action="email.downloaded",
    )
    async def get_managed_email_raw(self, admin: User, account_id: str, message_id: str) -> Response:
        """Download a message of an account; that it was downloaded is written to the audit log."""
        return await self.emails.get_email_raw(await self._reader(admin, account_id, message_id), message_id)

    @for_admins(
        "GET /v1/admin/accounts/{id}/emails/{message_id}/attachments/{number}",
        (200, bytes, "The bytes of the file."),
        Code.NOT_FOUND,
        parameters=(*_OF_MESSAGE, FILE_NUMBER),
        media=OCTETS,
        action="email.file_downloaded",
    )
    async def get_managed_email_attachment(
        self, admin: User, account_id: str, message_id: str, number: str
    ) -> Response:
        """Download a file of a message of an account; that it was downloaded is written to the audit log."""
        reader = await self._reader(admin, account_id, message_id)
        about(details={"file": number})
        return await self.emails.get_email_attachment(reader, message_id, number)
