"""A stored message as the doors show it: with the content of its body, while that is kept."""

from collections.abc import Mapping

from msgspec import Struct

from appliance.errors import Code, Refused
from appliance.model.mail import header_id_of
from appliance.web.doors.frame import Api, Call, Json, message_id, split_addresses


class StoredEmail(Struct, frozen=True):
    message: Json  # of our own API
    headers: Mapping[str, str]  # by their names in lower case; empty without the body
    text: str | None
    html: str | None
    files: list[str]  # names

    @property
    def recipients(self) -> list[str]:
        return [recipient["email"] for recipient in self.message["recipients"]]

    @property
    def to(self) -> list[str]:
        return self.listed("to") or self.recipients

    @property
    def bcc(self) -> list[str]:
        """The recipients that the message does not name."""
        written = " ".join([self.headers.get("to", ""), self.headers.get("cc", "")])
        return [address for address in self.recipients if self.headers and address not in written]

    @property
    def header_id(self) -> str:
        domain = self.message["from"].rpartition("@")[2].rstrip("> ")
        return self.headers.get("message-id", f"<{header_id_of(self.message['id'], domain)}>")

    def listed(self, name: str) -> list[str]:
        return split_addresses(self.headers.get(name, ""))


async def stored_email(call: Call, api: Api) -> StoredEmail:
    """The message that the path names."""
    message = await api("GET", f"/v1/emails/{message_id(call)}")
    if message["body_kept"]:
        try:
            content = await api("GET", f"/v1/emails/{message['id']}/body")
        except Refused as refused:
            if refused.code is not Code.NOT_FOUND:  # deleted meanwhile, or confidential
                raise
        else:
            headers = {header["name"].lower(): header["value"] for header in content["headers"]}
            files = [file["filename"] for file in content["attachments"]]
            return StoredEmail(message, headers, content["text"], content["html"], files)
    return StoredEmail(message, {}, None, None, [])
