"""Checks messages that come whole, over SMTP, reads what is recorded of them, and completes them. No I/O, no state.

A submitted message is sent on as its sender wrote it, byte for byte, with these exceptions: a Received field is put on
top, and below it Date, Message-ID and MIME-Version where they are missing; the fields that `header_rules.py` lists are
removed. Nothing is encoded anew, not even 8-bit text: the sender may have signed it.

The fingerprint compares two submissions under one Idempotency-Key. A client that retries may send the bytes it kept, or
write the message anew: then its library gives it another Date, Message-ID and multipart boundaries, signs it again, and
a relay in between adds its own Received. These do not count. Everything else does: the envelope, every other field, and
the body.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from msgspec import Struct

from appliance.errors import Code, Refused, invalid
from appliance.message import header_lines, limits
from appliance.message.addresses import Address, parse, unique
from appliance.message.characters import fault_in_line, has_lone_line_end, joined, number_of_long_line
from appliance.message.decoding import decode_words, header_text, unlisted_charset
from appliance.message.header_rules import OverSmtp, over_smtp, read_tags
from appliance.message.submitted_header import Field, end_of_header, fields_of, name_to_show, read_from

# RFC 5322 3.6, and the three of RFC 2045 that say how the body is read: two of one mean different things to different
# readers. Bcc would be one of them; it is removed, however often it stands there.
_ONCE: Final = frozenset(
    b"from sender reply-to to cc subject date message-id in-reply-to references mime-version content-type"
    b" content-transfer-encoding idempotency-key".split()
)
# Fields that mail readers display. Encoded words in them must not decode to what the header itself may not hold.
_SHOWN: Final = frozenset(
    b"from sender reply-to to cc subject comments keywords resent-from resent-sender resent-to resent-cc"
    b" resent-reply-to".split()
)
# The codes of NUL, LF and CR in the Q encoding, however loosely a reader takes what an encoded word is.
_LINE_END_CODE: Final = re.compile(rb"=0[0AaDd]")
_TAG_FIELD: Final = b"x-service-tag"

_KEY: Final = re.compile(r"[!-~](?:[ -~]*[!-~])?")  # as over HTTP
_MESSAGE_ID: Final = re.compile(rb"<[!-;=?-~\x80-\xff]+>")
_TAGS_LENGTH: Final = 4 * 1024  # octets of one X-Service-Tag: twenty tags of 64 characters, in any folding

_VARIES: Final = frozenset(
    b"date message-id received return-path dkim-signature idempotency-key bcc resent-bcc".split()
)
_BOUNDARY: Final = re.compile(rb'boundary="?([^"\s;]{1,70})')  # as every library writes it, RFC 2046 5.1.1
_BOUNDARIES: Final = 8  # looked for: a message of three levels has three
_SLICE: Final = 16 * 1024  # bytes searched at once, since searching holds the interpreter lock


class SubmittedMessage(Struct, frozen=True, gc=False):
    """A submitted message that keeps every rule; only its id is missing, and the sender's domain is not checked yet."""

    envelope_from: Address
    recipients: tuple[Address, ...]  # the unique ones, each in its first spelling
    sender: Address  # the From, its `text` as the HTTP API would show it
    subject: str
    tags: tuple[str, ...]
    key: str | None  # the Idempotency-Key, if there is one
    fingerprint: bytes  # empty without a key
    data: bytes
    header_end: int  # where in `data` the header ends
    header: bytes | None  # in place of what is before that; None: the header as it is
    missing: frozenset[bytes]
    responsible: tuple[tuple[str, Address], ...]  # by field: further mailboxes that must be the account's own

    def __repr__(self) -> str:
        """Without the message: a customer's text stays out of logs and tracebacks."""
        return f"SubmittedMessage(size={len(self.data)})"


def read(envelope_from: str, recipients: Sequence[str], data: bytes) -> SubmittedMessage:
    """Check a message as it came after DATA, dots unstuffed; raises Refused, and nothing else."""
    sender_path, addresses = _read_envelope(envelope_from, recipients)
    _check_octets(data)
    if not data.endswith(b"\r\n"):
        data += b"\r\n"
    header_end = end_of_header(data)
    header = data[:header_end]
    fields = fields_of(header)
    once, tag_values, own, removes = _sorted_out(fields)
    if (sender := once.get(b"from")) is None:
        raise invalid("From", "this field is required")
    key = _read_key(once.get(b"idempotency-key"))
    return SubmittedMessage(
        envelope_from=sender_path,
        recipients=addresses,
        sender=read_from(sender),
        subject=header_text(once.get(b"subject", b""))[: limits.SUBJECT_LENGTH],
        tags=_read_tags(tag_values) if tag_values else (),
        key=key,
        fingerprint=_fingerprint(sender_path, addresses, fields, data, header_end) if key is not None else b"",
        data=data,
        header_end=header_end,
        header=_without_removed(fields) if removes else None,
        missing=_missing(once),
        responsible=tuple((name_to_show(name), _mailbox(name, value)) for name, value in own),
    )


def write(
    submission: SubmittedMessage, *, message_id: str, now_seconds: int, hostname: str, secure: bool = True
) -> bytes:
    """The message as it is sent on; `message_id` is ours, `secure` whether it came over TLS."""
    date = header_lines.date(now_seconds)
    # The trace field, RFC 5321 4.4, without `from` and `for`: the client's address and login are not disclosed to
    # recipients, and the log has them under the id. The protocols' names: RFC 3848, RFC 6531 4.3.
    protocol = "ESMTP" if submission.data[: submission.header_end].isascii() else "UTF8SMTP"
    by = f"Received: by {hostname} (appliance) with {protocol}{'SA' if secure else 'A'}"
    top = [f"{by}\r\n id {message_id}; {date.removeprefix('Date: ')}"]
    if b"date" in submission.missing:
        top.append(date)
    if b"message-id" in submission.missing:
        top.append(f"Message-ID: <{message_id.removeprefix('msg_')}@{submission.sender.domain}>\r\n")
    if b"mime-version" in submission.missing:
        top.append("MIME-Version: 1.0\r\n")
    added = "".join(top).encode("ascii")
    if submission.header is None:
        return joined((added, submission.data))
    return joined((added, submission.header, memoryview(submission.data)[submission.header_end :]))


# ---- the envelope


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
    if "<" in text:  # the parser would take `Name <a@b.c>`, which is no path
        raise invalid(field, "expected an address alone, without a name")
    return parse(text, field)


# ---- the message


def _check_octets(data: bytes) -> None:
    if len(data) > limits.MESSAGE_SIZE:
        raise Refused(Code.PAYLOAD_TOO_LARGE, f"The message is larger than {limits.MESSAGE_SIZE} bytes (10 MiB).")
    if b"\0" in data:
        raise invalid("message", "holds a NUL; send binary data as a base64 part")
    if has_lone_line_end(data):
        raise invalid("message", "holds a CR or LF on its own; end every line with CRLF")
    if (number := number_of_long_line(data)) is not None:
        raise invalid(
            "message",
            f"line {number} is longer than {limits.LINE_LENGTH} octets;"
            " fold the header, and encode the body as quoted-printable or base64",
        )


def _sorted_out(fields: Sequence[Field]) -> tuple[dict[bytes, bytes], list[bytes], list[Field], bool]:
    """The fields that may stand once, by their names in lower case; those with tags; those that must name the account's
    own domains; whether any is to be removed.
    """
    once: dict[bytes, bytes] = {}
    tags: list[bytes] = []
    own: list[Field] = []
    removes = False
    hops = words = 0
    for name, value in fields:
        key = name.lower()
        if key in _ONCE:
            if key in once:
                raise invalid(name_to_show(name), "this field may stand only once")
            once[key] = value
        elif key == _TAG_FIELD:
            tags.append(value)
        elif key == b"received":
            hops += 1
        action = over_smtp(key)
        if action is OverSmtp.REMOVED:
            removes = True
        elif action is OverSmtp.OWN:
            own.append((name, value))
        if b"=?" in value and key in _SHOWN:
            words += min(value.count(b"=?"), value.count(b"?="))
            _check_words(name, value, words)
    if hops > limits.HOPS:
        raise invalid("Received", f"the message has come more than {limits.HOPS} hops: it goes round in a loop")
    return once, tags, own, removes


def _check_words(name: bytes, value: bytes, words: int) -> None:
    """Refuse encoded words (RFC 2047) that smuggle in a line end or another control character; a tab is harmless."""
    if words > limits.ENCODED_WORDS:
        raise invalid("header", f"has more than {limits.ENCODED_WORDS} encoded words in fields that people are shown")
    text = value.replace(b"\r\n", b"").decode("utf-8")
    is_coded = b"?q?" in value.lower() and _LINE_END_CODE.search(value)
    if is_coded or fault_in_line(decode_words(text).replace("\t", " ")):
        raise invalid(name_to_show(name), "holds an encoded word with a control character or a line break")
    if (charset := unlisted_charset(text)) is not None:
        raise invalid(name_to_show(name), f"has an encoded word in the charset {charset!r}; use UTF-8")


def _mailbox(name: bytes, value: bytes) -> Address:
    try:
        return read_from(value)
    except Refused as refused:
        raise invalid(name_to_show(name), "must name one mailbox, of a domain of the account") from refused


def _without_removed(fields: Sequence[Field]) -> bytes:
    kept = [field for field in fields if over_smtp(field[0].lower()) is not OverSmtp.REMOVED]
    return b"".join([b"%b:%b\r\n" % field for field in kept])


def _missing(once: dict[bytes, bytes]) -> frozenset[bytes]:
    """The fields to be added. A malformed Message-ID is refused here, since some receivers would refuse it later."""
    missing = set()
    if (date := once.get(b"date")) is None:
        missing.add(b"date")
    elif not date.strip():
        raise invalid("Date", "must not be empty; leave the field out to have it written")
    if (given := once.get(b"message-id")) is None:
        missing.add(b"message-id")
    elif not _MESSAGE_ID.fullmatch(given.strip()):
        raise invalid("Message-ID", "must be one <left@right>; leave the field out to have it written")
    # RFC 2045 4: without it a reader may take no notice of how the body is encoded.
    if b"mime-version" not in once and (b"content-type" in once or b"content-transfer-encoding" in once):
        missing.add(b"mime-version")
    return frozenset(missing)


def _read_key(value: bytes | None) -> str | None:
    if value is None:
        return None
    key = value.replace(b"\r\n", b"").strip(b" \t").decode("utf-8")
    if len(key) > limits.KEY_LENGTH or not _KEY.fullmatch(key):
        raise invalid("Idempotency-Key", f"must be 1 to {limits.KEY_LENGTH} printable ASCII characters, once")
    return key


def _read_tags(values: Sequence[bytes]) -> tuple[str, ...]:
    """The tags of all X-Service-Tag fields; an empty field has none."""
    tags: list[str] = []
    for value in values:
        if len(value) > _TAGS_LENGTH:
            raise invalid("X-Service-Tag", f"must have at most {_TAGS_LENGTH} octets")
        text = value.replace(b"\r\n", b"").replace(b"\t", b" ").decode("utf-8").strip(" ")
        tags += [tag.strip(" ") for tag in text.split(",")] if text else []
    return read_tags(tags, "X-Service-Tag")


# ---- the fingerprint


def _fingerprint(
    envelope_from: Address, recipients: Sequence[Address], fields: Sequence[Field], data: bytes, header_end: int
) -> bytes:
    """A SHA-256 that is equal for a message and its retry, and never that of a request over HTTP: those hold no NUL."""
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
    """The boundaries declared in these, as far as they are among the first few."""
    declared = (found[1] for text in texts for found in _BOUNDARY.finditer(text))
    return set(islice(declared, _BOUNDARIES))


def _slices(data: bytes, start: int) -> Iterator[bytes]:
    """The data from `start` on in pieces that end with a line, as no boundary goes beyond one."""
    while start < len(data):
        end = data.rfind(b"\n", start, start + _SLICE) + 1 if start + _SLICE < len(data) else len(data)
        end = end or data.find(b"\n", start) + 1 or len(data)
        yield data[start:end]
        start = end


def _without(text: bytes, boundaries: set[bytes]) -> bytes:
    """A text without these boundaries, where they are declared and where they stand between parts."""
    for boundary in sorted(boundaries, key=lambda each: (-len(each), each)):  # a short one may begin a longer one
        for mark in (b"--", b'="', b"="):
            text = text.replace(mark + boundary, mark)
    return text
