"""Checks messages that come whole, over SMTP, reads what is recorded of them, and completes them. No I/O, no state.

A submitted message is sent on as its sender wrote it, byte for byte, with these exceptions: a Received field is put on
top, and below it Date, Message-ID and MIME-Version where they are missing, and the fields of one-click unsubscribe if
the message is to have them; the fields that `header_rules.py` lists are removed. Nothing is encoded anew, not even
8-bit text: the sender may have signed it. What is not signed is encoded when it meets a server that cannot take it
(`seven_bit.py`).

The header is read more strictly than RFC 5322's obsolete syntax wherever mail readers disagree about it: no space in
front of a colon, no line of spaces alone, no control characters. Such things hide a field from one reader and show it
to the next. Whether a sender may use a domain depends on the From, so only what every mail reader reads the same way is
accepted: comments only where they look like part of a name, and one mailbox, since DMARC (RFC 7489 6.6.1) has receivers
refuse more than one.

The fingerprint compares two submissions under one Idempotency-Key. A client that retries may send the bytes it kept, or
write the message anew: then its library gives it another Date, Message-ID and multipart boundaries, signs it again, and
a relay in between adds its own Received. These do not count. Everything else does: the envelope, every other field, and
the body.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Final

import idna
from msgspec import Struct
from msgspec.structs import replace

from appliance.errors import Code, Refused, invalid
from appliance.message import header_lines, limits
from appliance.message.addresses import Address, parse, unique
from appliance.message.characters import fault_in_line, has_lone_line_end, joined, number_of_long_line
from appliance.message.decoding import decode_words, header_text, one_line, unlisted_charset
from appliance.message.header_rules import OWN_UNSUBSCRIBE, OverSmtp, over_smtp, read_tags

Field = tuple[bytes, bytes]  # a name, and all that stands between its colon and the CRLF at its end

# ---- the header

# RFC 5322 2.2: a name is printable ASCII but for the colon; a continued line has more than white space. A match begins
# at the beginning of a line, and no repeat can take the character that must follow it: there is one way to match, so
# the time grows with the header and no faster.
_FIELD: Final = re.compile(rb"^([!-9;-~]+):([^\r]*(?:\r\n[ \t]+[^ \t\r][^\r]*)*)\r\n", re.MULTILINE)
_COLON_AND_END: Final = len(":\r\n")
_CONTROLS: Final = bytes(octet for octet in (*range(0x20), 0x7F) if octet not in b"\t\r\n")
_UNFIT: Final = re.compile("[\x80-\x9f\u2028\u2029]")  # C1 and Unicode's line separators
_NAME: Final = re.compile(rb"[!-9;-~]+")

_CACHED: Final = 2_000  # senders, by their whole From
_CACHED_LENGTH: Final = 320  # octets

# In every pattern no repeat can take the character that must follow it: there is one way to match, in linear time.
_COMMENT: Final = r'\([^()<>@"\\]*\)'
_QUOTED_TEXT: Final = r'[^"\\]*(?:\\.[^"\\]*)*'
_BARE: Final = re.compile(rf'([^ <>()",;:\\]+) *({_COMMENT})?')
# RFC 5322 3.4: a phrase is quoted strings and atoms; dots and brackets are not, and widely written all the same.
_ATOMS: Final = r'[^"<>@,;:\\()]*'
_PHRASE: Final = rf'{_ATOMS}(?:(?:"{_QUOTED_TEXT}"|{_COMMENT}){_ATOMS})*'
_NAMED: Final = re.compile(rf"({_PHRASE})<([^<>]*)> *(?:{_COMMENT})?")
_TWICE: Final = re.compile(r'([^ <>()",;:\\]+) *< *(\1) *>', re.IGNORECASE)
_QUOTED: Final = re.compile(f'"({_QUOTED_TEXT})"')
_ESCAPED: Final = re.compile(r"\\(.)")
_NEEDS_QUOTES: Final = re.compile(r'["<>,;\\]')

_ONE = "must name one mailbox, as `Name <address>`; a name with a comma or other special characters in double quotes"


def end_of_header(message: bytes) -> int:
    """Where the header ends: behind the CRLF of its last field. What follows is an empty line and the body."""
    if message.startswith(b"\r\n"):
        return 0
    end = message.find(b"\r\n\r\n")
    return len(message) if end < 0 else end + 2


def fields_of(header: bytes) -> list[Field]:
    """The fields of a header of whole lines, in their order."""
    if len(header) > limits.HEADER_SIZE or header.count(b"\r\n") > limits.HEADER_LINES:
        raise invalid(
            "header",
            f"has more than {limits.HEADER_SIZE // 1024} KiB or {limits.HEADER_LINES} lines;"
            " is the empty line between header and body missing?",
        )
    _check_characters(header)
    fields: list[Field] = _FIELD.findall(header)
    taken = _COLON_AND_END * len(fields)
    for name, value in fields:
        taken += len(name) + len(value)
    if taken != len(header):
        raise _fault(header)
    if len(fields) > limits.HEADER_FIELDS:
        raise invalid("header", f"has more than {limits.HEADER_FIELDS} fields")
    return fields


def name_to_show(name: bytes) -> str:
    """A field's name, cut to what a refusal may repeat: it may be as long as a line."""
    return name[: limits.HEADER_NAME_LENGTH].decode("ascii")


def _check_characters(header: bytes) -> None:
    if len(header.translate(None, _CONTROLS)) != len(header):
        raise invalid("header", "holds a control character; remove it, or write it as an encoded word")
    if header.isascii():
        return
    try:
        text = header.decode("utf-8")
    except UnicodeDecodeError as cause:
        raise invalid("header", "holds 8-bit text that is not UTF-8; write it as encoded words (RFC 2047)") from cause
    if _UNFIT.search(text):
        raise invalid("header", "holds a control character or a Unicode line break; remove it")


def _fault(header: bytes) -> Refused:
    """The refusal of a malformed header, by its first line at fault."""
    for number, line in enumerate(header.removesuffix(b"\r\n").split(b"\r\n"), start=1):
        name, colon, _ = line.partition(b":")
        reason = ""
        if line[:1] in (b" ", b"\t"):
            if number == 1:
                reason = "begins with a space, and there is no field before it to continue"
            elif not line.strip(b" \t"):
                reason = "has nothing but spaces; an empty line between header and body is empty"
        elif not colon:
            reason = "is neither a field nor the continuation of one; an empty line goes between header and body"
        elif not _NAME.fullmatch(name):
            reason = "has a field name with a space or another character that names cannot have"
        if reason:
            return invalid("header", f"line {number} {reason}")
    raise AssertionError("a header of good lines is a good header")


# ---- From


def read_from(value: bytes) -> Address:
    """The mailbox of a From, or a refusal; its `text` is as the HTTP API would show it, with the name decoded."""
    return _cached_from(value) if len(value) <= _CACHED_LENGTH else _read_from(value)


def _read_from(value: bytes) -> Address:
    if len(value) > limits.FROM_LENGTH:
        raise invalid("From", f"must have at most {limits.FROM_LENGTH} octets")
    text = value.replace(b"\r\n", b"").replace(b"\t", b" ").decode("utf-8").strip(" ")
    if not text:
        raise invalid("From", "must not be empty")
    name, bare = _split(text)
    if "=?" in bare:  # some readers decode it, and see another address
        raise invalid("From", "an address must not contain an encoded word")
    address = parse(bare, "From")
    written = address.spelling.rpartition("@")[2].lower()
    # The message keeps its spelling, so the domain must mean the same without the mapping (UTS 46) of a parser.
    if not written.isascii() and idna.decode(address.domain) != written:
        raise invalid("From", "the domain holds characters that readers may read differently; write it plainly")
    name = one_line(name)[: limits.DISPLAY_NAME_LENGTH].strip(" ")
    if not name:
        return address
    shown = name
    if _NEEDS_QUOTES.search(name):
        shown = '"{}"'.format(name.replace("\\", "\\\\").replace('"', '\\"'))
    return replace(address, name=name, text=f"{shown} <{address.spelling}>")


_cached_from = lru_cache(_CACHED)(_read_from)


def _split(text: str) -> tuple[str, str]:
    """The decoded name, and the address."""
    if found := _BARE.fullmatch(text):
        return decode_words((found[2] or "")[1:-1]), found[1]
    if found := _NAMED.fullmatch(text):
        env = _QUOTED.sub("", found[1])
        # Beside a bracket some mail readers take a quoted text, which may hold an `@`, for an address of its own.
        if env != found[1] and ("[" in env or "]" in env):
            raise invalid("From", _ONE)
        name = _QUOTED.sub(lambda quoted: _ESCAPED.sub(r"\1", quoted[1]), found[1])
        return decode_words(name.strip(" ")), found[2].strip(" ")
    if found := _TWICE.fullmatch(text):  # the address as its own name, without quotes: not allowed, and often seen
        return found[1], found[2]
    raise invalid("From", _ONE)


# ---- reading and completing a message

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
_OWN_UNSUBSCRIBE: Final = frozenset(name.encode() for name in OWN_UNSUBSCRIBE)

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
    own_unsubscribe: bool = False  # its sender has told how to unsubscribe, or signed that there is no such field

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
        own_unsubscribe=any(map(_is_about_unsubscribing, fields)),
    )


def write(
    submission: SubmittedMessage,
    *,
    message_id: str,
    now_seconds: int,
    hostname: str,
    secure: bool = True,
    unsubscribe_urls: Sequence[str] = (),
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
    if unsubscribe_urls:
        top.append(header_lines.unsubscribe(unsubscribe_urls))
    added = "".join(top).encode("ascii")
    if submission.header is None:
        return joined((added, submission.data))
    return joined((added, submission.header, memoryview(submission.data)[submission.header_end :]))


_RENEWED: Final = frozenset(b"date message-id received dkim-signature domainkey-signature x-service-repeats".split())


def repeated(mime: bytes, repeats: str, message_id: str, sender_domain: str, now_seconds: int) -> bytes:
    """A stored message as a new one: with a date and a Message-ID of its own, and the id of the one it repeats.

    Signatures of its sender go, for they may cover those fields; so do the traces of its first way.
    """
    end = end_of_header(mime)
    kept = [b"%b:%b\r\n" % field for field in fields_of(mime[:end]) if field[0].lower() not in _RENEWED]
    top = f"{header_lines.date(now_seconds)}Message-ID: <{message_id.removeprefix('msg_')}@{sender_domain}>\r\n"
    top += f"X-Service-Repeats: {repeats}\r\n"
    return joined((top.encode("ascii"), *kept, memoryview(mime)[end:]))


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


# ---- the message as a whole


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


def _is_about_unsubscribing(field: Field) -> bool:
    """Whether it is such a field, or a signature that another one would break (RFC 6376 8.15)."""
    name, value = field[0].lower(), field[1]
    return name in _OWN_UNSUBSCRIBE or (name == b"dkim-signature" and b"list-unsubscribe" in value.lower())


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
