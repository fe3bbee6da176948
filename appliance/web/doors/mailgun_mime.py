"""Turns a complete message into a form, so that its texts are filled for each recipient. No I/O.

The server composes a new message for each recipient, from the sender, header, texts and files, with its own Date,
Message-ID and To. A message with content that a form does not have, such as a signature, is refused.
"""

from typing import Final

from appliance.errors import invalid
from appliance.message.decoding import Field, display_text, read_from
from appliance.message.limits import MESSAGE_SIZE
from appliance.message.reader import AttachedFile, MimeReader
from appliance.web.doors.forms import PostedFile, PostedForm

_REPLACED: Final = frozenset(
    b"date message-id mime-version to content-type content-transfer-encoding content-disposition".split()
)
_SIGNED: Final = ("application/pgp-", "application/pkcs7-", "application/x-pkcs7-")
_AS_IT_IS: Final = "Leave recipient-variables out to send it as it is"


def form_of(header: list[Field], message: bytes) -> PostedForm:
    """The fields and files of `/messages` for this message, whose header is valid."""
    form = PostedForm({}, {})
    for name, value in header:
        key = name.lower()
        if key in (b"cc", b"bcc"):
            raise invalid(
                name.decode(), "with recipient-variables, each message has one recipient. Leave the field out"
            )
        if key not in _REPLACED:
            text = display_text(value.replace(b"\r\n", b"").replace(b"\t", b" ").decode())
            field = key.decode() if key in (b"from", b"subject") else f"h:{name.decode()}"
            form.fields.setdefault(field, []).append(read_from(value).text if key == b"from" else text)
    reader = MimeReader(message)
    for part in reader.parts():
        if part.kind.startswith(_SIGNED):
            raise invalid("message", f"it is signed or encrypted. {_AS_IT_IS}")
        listed = len(reader.view.attachments)
        reader.show(part)
        for file in reader.view.attachments[listed:]:
            posted = _posted(file, part.parameters, reader.content(part, MESSAGE_SIZE)[0])
            form.files.setdefault("inline" if posted.content_id else "attachment", []).append(posted)
    for field, body in (("text", reader.view.text), ("html", reader.view.html)):
        if body is not None:
            form.fields[field] = [body]
        if "\ufffd" in (body or ""):
            raise invalid("message", f"the {field} is not valid in its charset. Write it in UTF-8")
    if reader.view.truncated:
        raise invalid("message", f"has a text over 1 MiB, or over 200 parts or fields. {_AS_IT_IS}")
    return form


def _posted(file: AttachedFile, parameters: dict[str, str], content: bytes) -> PostedFile:
    if not (name := file.filename or file.content_id):
        raise invalid("message", f"a part of the type {file.content_type} has no file name. {_AS_IT_IS}")
    kind = file.content_type + "".join(f'; {key}="{value}"' for key, value in parameters.items() if key != "name")
    return PostedFile(name, kind, content, file.content_id or "")
