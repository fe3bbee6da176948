"""Checks messages submitted over SMTP, extracts what the store records, and completes the header. No I/O, no state.

A submitted message is relayed byte for byte, because the sender may have signed it, with these exceptions: a Received
field, missing Date, Message-ID and MIME-Version fields and the fields of one-click unsubscribe are added; the fields
that `header_lines.py` lists are removed.

The fingerprint recognizes a retry under one Idempotency-Key, even if the client wrote the message again: Date,
Message-ID, signatures, Received fields and multipart boundaries do not count.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from msgspec import Struct

from appliance.errors import Code, Refused, invalid
from appliance.message import header_lines, limits
from appliance.message.addresses import Address, cost_of_address, parse, unique
from appliance.message.characters import cost_of_size, fault_in_line, has_lone_line_end, joined, number_of_long_line
from appliance.message.decoding import (
    Field,
    decode_words,
    end_of_header,
    fields_of,
    header_text,
    name_to_show,
    read_from,
    unlisted_charset,
)
from appliance.message.header_lines import OWN_UNSUBSCRIBE, OverSmtp, over_smtp, read_tags
from appliance.message.labels import read_labels
from appliance.model.mail import header_id_of

# RFC 5322 3.6, and the three of RFC 2045 that define the body: readers interpret duplicates differently. Bcc is removed
# anyway.
_ONCE: Final = frozenset(
    b"from sender reply-to to cc subject date message-id in-reply-to references mime-version content-type"
    b" content-transfer-encoding idempotency-key resend-idempotency-key x-service-stream".split()
)
# Fields that mail readers display. Their encoded words must not decode to characters that a header must not contain.
_SHOWN: Final = frozenset(
    b"from sender reply-to to cc subject comments keywords resent-from resent-sender resent-to resent-cc"
    b" resent-reply-to".split()
)
# NUL, LF and CR in the Q encoding, even in what only a lenient reader takes for an encoded word.
_LINE_END_CODE: Final = re.compile(rb"=0[0AaDd]")
_TAG_FIELD: Final = b"x-service-tag"
_OWN_UNSUBSCRIBE: Final = frozenset(name.encode() for name in OWN_UNSUBSCRIBE)

_KEY: Final = re.compile(r"[!-~](?:[ -~]*[!-~])?")  # as over HTTP
_MESSAGE_ID: Final = re.compile(rb"<[!-;=?-~\x80-\xff]+>")
_STREAM_FIELD: Final = b"x-service-stream"
_TAGS_LENGTH: Final = 4 * 1024  # octets of one X-Service-Tag: twenty tags of 64 characters, in any folding

_VARIES: Final = frozenset(
    b"date message-id received return-path dkim-signature idempotency-key resend-idempotency-key bcc resent-bcc".split()
)
_BOUNDARY: Final = re.compile(rb'boundary="?([^"\s;]{1,70})')  # as every library writes it, RFC 2046 5.1.1
_BOUNDARIES: Final = 8  # a message of three levels has three
_COUNTED: Final = 64 * 1024  # bytes whose lines count for the cost; a longer message is expensive by its size
_SLICE: Final = 16 * 1024  # bytes per search, which holds the interpreter lock


class SubmittedMessage(Struct, frozen=True, gc=False):
    """A valid submitted message, without an id; the sender's domain is not checked yet."""

    envelope_from: Address
    recipients: tuple[Address, ...]  # unique, in their first spelling
    sender: Address  # the From; `text` as in the HTTP API
    subject: str
    tags: tuple[str, ...]
    key: str | None  # the Idempotency-Key
    fingerprint: bytes  # empty without a key
    data: bytes
    header_end: int  # offset in `data`
    header: bytes | None  # replaces the header in `data`; None: unchanged
    missing: frozenset[bytes]
    responsible: tuple[tuple[str, Address], ...]  # by field: other mailboxes that must belong to the account
    header_id: str | None  # its Message-ID, without brackets
    metadata: str | None  # JSON
    stream: str | None = None  # its name, as requested
    own_unsubscribe: bool = False  # has unsubscribe fields, or a signature that they would break

    def __repr__(self) -> str:
        """Omit the content: customers' text stays out of logs and tracebacks."""
        return f"SubmittedMessage(size={len(self.data)})"


def cost_of_submission(data: bytes, recipients: Iterable[str]) -> int:
    """Estimate a microsecond per line, three more for a header line or encoded word, bytes and recipients."""
    end = data.find(b"\r\n\r\n", 0, _COUNTED)
    header_end = _COUNTED if end < 0 else end
    dear = data.count(b"\n", 0, header_end) + data.count(b"=?", 0, header_end)
    lines = data.count(b"\n", 0, _COUNTED) + 3 * dear
    return cost_of_size(len(data)) + lines + sum(map(cost_of_address, recipients))


def read(envelope_from: str, recipients: Sequence[str], data: bytes) -> SubmittedMessage:
    """Check the content of DATA, dots unstuffed; raises only Refused."""
    sender_path, addresses = _read_envelope(envelope_from, recipients)
    _check_octets(data)
    if not data.endswith(b"\r\n"):
        data += b"\r\n"
    header_end = end_of_header(data)
    header = data[:header_end]
    fields = fields_of(header)
    once, tag_values, own, removed = _classify(fields)
    if (sender := once.get(b"from")) is None:
        raise invalid("From", "this field is required")
    key = _read_key(once, "Idempotency-Key") or _read_key(once, "Resend-Idempotency-Key")
    tags, metadata = _read_tags(tag_values) if tag_values else (), None
    if removed:
        tags, metadata = read_labels(tags, removed)
    kept = [field for field in fields if over_smtp(field[0].lower()) is not OverSmtp.REMOVED] if removed else []
    return SubmittedMessage(
        envelope_from=sender_path,
        recipients=addresses,
        sender=read_from(sender),
        subject=header_text(once.get(b"subject", b""))[: limits.SUBJECT_LENGTH],
        tags=tags,
        metadata=metadata,
        stream=_read_stream(once.get(_STREAM_FIELD)),
        key=key,
        fingerprint=_fingerprint(sender_path, addresses, fields, data, header_end) if key is not None else b"",
        data=data,
        header_end=header_end,
        header=b"".join([b"%b:%b\r\n" % field for field in kept]) if removed else None,
        missing=_missing(once),
        header_id=once[b"message-id"].strip()[1:-1].decode() if b"message-id" in once else None,
        responsible=tuple((name_to_show(name), _mailbox(name, value)) for name, value in own),
        own_unsubscribe=any(map(_prevents_unsubscribe, fields)),
    )


def write(
    submission: SubmittedMessage,
    *,
    message_id: str,
    now_seconds: int,
    hostname: str,
    due_seconds: int | None = None,
    secure: bool = True,
    unsubscribe_urls: Sequence[str] = (),
) -> bytes:
    """Return the message as stored; `message_id` is ours, `secure` means received over TLS.

    `due_seconds`: for a missing Date of a scheduled message.
    """
    received_at = header_lines.date(now_seconds).removeprefix("Date: ")
    # The trace field (RFC 5321 4.4) has no `from` and `for`, which would show recipients the client's address; the log
    # has it. Protocol names: RFC 3848, RFC 6531 4.3.
    protocol = "ESMTP" if submission.data[: submission.header_end].isascii() else "UTF8SMTP"
    by = f"Received: by {hostname} (appliance) with {protocol}{'SA' if secure else 'A'}"
    top = [f"{by}\r\n id {message_id}; {received_at}"]
    if b"date" in submission.missing:
        top.append(header_lines.date(due_seconds or now_seconds))  # first, where `redated` expects it
    if b"message-id" in submission.missing:
        top.append(f"Message-ID: <{header_id_of(message_id, submission.sender.domain)}>\r\n")
    if b"mime-version" in submission.missing:
        top.append("MIME-Version: 1.0\r\n")
    if unsubscribe_urls:
        top.append(header_lines.unsubscribe(unsubscribe_urls))
    added = "".join(top).encode("ascii")
    if submission.header is None:
        return joined((added, submission.data))
    return joined((added, submission.header, memoryview(submission.data)[submission.header_end :]))


_RENEWED: Final = frozenset(b"date message-id received dkim-signature domainkey-signature x-service-repeats".split())


def repeated(mime: bytes, repeats: str, message_id: str, sender_domain: str, now_seconds: int) -> bytes:
    """Turn a stored message into a new one, with its own Date and Message-ID, and the id of the original.

    The sender's signatures may cover those fields, so they are removed, as are Received fields.
    """
    end = end_of_header(mime)
    kept = [b"%b:%b\r\n" % field for field in fields_of(mime[:end]) if field[0].lower() not in _RENEWED]
    top = f"{header_lines.date(now_seconds)}Message-ID: <{header_id_of(message_id, sender_domain)}>\r\n"
    top += f"X-Service-Repeats: {repeats}\r\n"
    return joined((top.encode("ascii"), *kept, memoryview(mime)[end:]))


def _read_envelope(envelope_from: str, recipients: Sequence[str]) -> tuple[Address, tuple[Address, ...]]:
    if not envelope_from.strip(" ").strip("<>"):
        raise Refused(
            Code.FORBIDDEN, "MAIL FROM: the empty sender <> is for bounces. Use an address of the account's domains."
        )
    sender = _bare(envelope_from, "MAIL FROM")
    if not recipients:
        raise invalid("RCPT TO", "a message needs a recipient")
    addresses = unique([_bare(recipient, "RCPT TO") for recipient in recipients])
    if len(addresses) > limits.RECIPIENTS:
        raise invalid("RCPT TO", f"a message may have at most {limits.RECIPIENTS} unique recipients")
    return sender, addresses


def _bare(text: str, field: str) -> Address:
    if "<" in text:  # the parser would accept `Name <a@b.c>`
        raise invalid(field, "expected an address without a name")
    return parse(text, field)


# ---- the whole message
def _check_octets(data: bytes) -> None:
    if len(data) > limits.MESSAGE_SIZE:
        raise Refused(Code.PAYLOAD_TOO_LARGE, f"The message is larger than {limits.MESSAGE_SIZE} bytes (10 MiB).")
    if b"\0" in data:
        raise invalid("message", "contains a NUL byte. Send binary data as a base64 part.")
    if has_lone_line_end(data):
        raise invalid("message", "contains a bare CR or LF. End every line with CRLF.")
    if (number := number_of_long_line(data)) is not None:
        raise invalid(
            "message",
            f"line {number} is longer than {limits.LINE_LENGTH} octets."
            " Fold the header, and encode the body as quoted-printable or base64.",
        )


def _classify(fields: Sequence[Field]) -> tuple[dict[bytes, bytes], list[bytes], list[Field], list[Field]]:
    """Return the fields that may occur once, the tags, those that must name own domains, and those to remove."""
    once: dict[bytes, bytes] = {}
    tags: list[bytes] = []
    own: list[Field] = []
    removed: list[Field] = []
    hops = words = 0
    for name, value in fields:
        key = name.lower()
        if key in _ONCE:
            if key in once:
                raise invalid(name_to_show(name), "this field may occur only once")
            once[key] = value
        elif key == _TAG_FIELD:
            tags.append(value)
        elif key == b"received":
            hops += 1
        action = over_smtp(key)
        if action is OverSmtp.REMOVED:
            removed.append((name, value))
        elif action is OverSmtp.OWN:
            own.append((name, value))
        if b"=?" in value and key in _SHOWN:
            words += min(value.count(b"=?"), value.count(b"?="))
            _check_words(name, value, words)
    if hops > limits.HOPS:
        raise invalid("Received", f"the message has passed more than {limits.HOPS} servers. Remove the mail loop.")
    return once, tags, own, removed


def _check_words(name: bytes, value: bytes, words: int) -> None:
    """Refuse encoded words (RFC 2047) that contain a line end or a control character other than a tab."""
    if words > limits.ENCODED_WORDS:
        raise invalid("header", f"has more than {limits.ENCODED_WORDS} encoded words in displayed fields")
    text = value.replace(b"\r\n", b"").decode("utf-8")
    is_coded = b"?q?" in value.lower() and _LINE_END_CODE.search(value)
    if is_coded or fault_in_line(decode_words(text).replace("\t", " ")):
        raise invalid(name_to_show(name), "contains an encoded word with a control character or a line break")
    if (charset := unlisted_charset(text)) is not None:
        raise invalid(name_to_show(name), f"has an encoded word in the charset {charset!r}. Use UTF-8.")


def _mailbox(name: bytes, value: bytes) -> Address:
    try:
        return read_from(value)
    except Refused as refused:
        raise invalid(name_to_show(name), "expected one mailbox at a domain of the account") from refused


def _prevents_unsubscribe(field: Field) -> bool:
    """Return whether this is an unsubscribe field, or a signature that adding one would break (RFC 6376 8.15)."""
    name, value = field[0].lower(), field[1]
    return name in _OWN_UNSUBSCRIBE or (name == b"dkim-signature" and b"list-unsubscribe" in value.lower())


def _missing(once: dict[bytes, bytes]) -> frozenset[bytes]:
    missing = set()
    if (date := once.get(b"date")) is None:
        missing.add(b"date")
    elif not date.strip():
        raise invalid("Date", "must not be empty. Omit the field to have it added.")
    if (message_id := once.get(b"message-id")) is None:
        missing.add(b"message-id")
    elif not _MESSAGE_ID.fullmatch(message_id.strip()):
        raise invalid("Message-ID", "expected one <left@right>. Omit the field to have it added.")
    # RFC 2045 4: without it a reader may ignore how the body is encoded.
    if b"mime-version" not in once and (b"content-type" in once or b"content-transfer-encoding" in once):
        missing.add(b"mime-version")
    return frozenset(missing)


def _read_key(once: dict[bytes, bytes], field: str) -> str | None:
    value = once.get(field.lower().encode())
    if value is None:
        return None
    key = value.replace(b"\r\n", b"").strip(b" \t").decode("utf-8")
    if len(key) > limits.KEY_LENGTH or not _KEY.fullmatch(key):
        raise invalid(field, f"must be 1 to {limits.KEY_LENGTH} printable ASCII characters, once")
    return key


def _read_stream(value: bytes | None) -> str | None:
    return None if value is None else header_text(value)[: limits.STREAM_LENGTH]


def _read_tags(values: Sequence[bytes]) -> tuple[str, ...]:
    tags: list[str] = []
    for value in values:
        if len(value) > _TAGS_LENGTH:
            raise invalid("X-Service-Tag", f"must have at most {_TAGS_LENGTH} octets")
        text = value.replace(b"\r\n", b"").replace(b"\t", b" ").decode("utf-8").strip(" ")
        tags += [tag.strip(" ") for tag in text.split(",")] if text else []
    return read_tags(tags, "X-Service-Tag")


def _fingerprint(
    envelope_from: Address, recipients: Sequence[Address], fields: Sequence[Field], data: bytes, header_end: int
) -> bytes:
    """Return a SHA-256 that a message shares with its retries, and never with an HTTP request, which has no NUL."""
    envelope = ["smtp", envelope_from.key, *sorted(address.key for address in recipients), "\0"]
    digest = hashlib.sha256("\0".join(envelope).encode("utf-8"))
    multipart = b""
    for name, value in fields:
        key = name.lower()
        if key in _VARIES:
            continue
        if key == b"content-type":
            multipart = value if value.lstrip().lower().startswith(b"multipart/") else b""
            value = _without(value, _boundaries([multipart]))
        digest.update(b"%b:%b\r\n" % (key, value))
    if multipart:
        boundaries = _boundaries([multipart]) | _boundaries(_slices(data, header_end))
        for part in _slices(data, header_end):
            digest.update(_without(part, boundaries))
    else:
        digest.update(memoryview(data)[header_end:])
    return digest.digest()


def _boundaries(texts: Iterable[bytes]) -> set[bytes]:
    declared = (match[1] for text in texts for match in _BOUNDARY.finditer(text))
    return set(islice(declared, _BOUNDARIES))


def _slices(data: bytes, start: int) -> Iterator[bytes]:
    while start < len(data):
        end = data.rfind(b"\n", start, start + _SLICE) + 1 if start + _SLICE < len(data) else len(data)
        end = end or data.find(b"\n", start) + 1 or len(data)
        yield data[start:end]
        start = end


def _without(text: bytes, boundaries: set[bytes]) -> bytes:
    for boundary in sorted(boundaries, key=lambda text: (-len(text), text)):  # one may be a prefix of another
        for mark in (b"--", b'="', b"="):
            text = text.replace(mark + boundary, mark)
    return text
