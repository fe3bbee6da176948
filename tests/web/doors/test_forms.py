"""Forms that clients send: every value is read exactly, and a hostile form is refused within bounds."""

import random
from urllib.parse import unquote_plus, urlencode

import pytest

from appliance.errors import Code, Refused
from appliance.web.doors.forms import PostedFile, PostedForm, check_form_type, form_type, read_form

URLENCODED = b"application/x-www-form-urlencoded"
MULTIPART = b"multipart/form-data; boundary=b1"


def urlencoded(body: bytes | str) -> dict[str, list[str]]:
    return read_form(URLENCODED, body if isinstance(body, bytes) else body.encode()).fields


def part(disposition: str, content: bytes, *headers: str) -> bytes:
    lines = [f"Content-Disposition: form-data; {disposition}", *headers]
    return b"--b1\r\n" + "\r\n".join(lines).encode() + b"\r\n\r\n" + content + b"\r\n"


def multipart(*parts: bytes) -> PostedForm:
    return read_form(MULTIPART, b"".join(parts) + b"--b1--\r\n")


def refused(content_type: bytes, body: bytes) -> Refused:
    with pytest.raises(Refused) as caught:
        read_form(content_type, body)
    return caught.value


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        (URLENCODED, None),
        (b"Application/X-WWW-Form-Urlencoded; charset=UTF-8", None),
        (b"multipart/form-data; boundary=b1", b"b1"),
        (b'multipart/form-data; charset=utf-8; boundary="a b:1"', b"a b:1"),
        (b"multipart/form-data; boundary=b1;", b"b1"),
    ],
)
def test_the_type_names_the_boundary(content_type: bytes, boundary: bytes | None) -> None:
    assert form_type(content_type) == boundary


@pytest.mark.parametrize(
    "content_type",
    [
        *(b"", b"application/json", b"text/plain", b"multipart/mixed; boundary=b1", b"multipart/form-data"),
        *(
            b"multipart/form-data; boundary=",
            b'multipart/form-data; boundary="b "',
            b"multipart/form-data; boundary=\xff",
        ),
        *(URLENCODED + b"; charset=latin-1", b"multipart/form-data; boundary=" + b"b" * 71),
        *(b"multipart/form-data" + b"; a=b" * 5_000 + b"; boundary=b1\0", URLENCODED + b'; a="'),
    ],
)
def test_other_types_are_refused(content_type: bytes) -> None:
    with pytest.raises(Refused, match="Content-Type: "):
        check_form_type(content_type)


def test_urlencoded_fields() -> None:
    assert urlencoded("to=a%40b.c&to=d%40b.c&text=a+b%2Bc%26&empty=&alone&&h%3AX-A=%C3%A9%0d%0a") == {
        "to": ["a@b.c", "d@b.c"],
        "text": ["a b+c&"],
        "empty": [""],
        "alone": [""],
        "h:X-A": ["é\r\n"],
    }
    assert urlencoded("") == {}
    assert urlencoded("a=%zz%4") == {"a": ["%zz%4"]}


def test_long_values_are_decoded_exactly() -> None:
    """Escapes lie at every offset to the pieces in which a value is decoded."""
    chance = random.Random("forms")
    for _ in range(20):
        value = "".join(chance.choices(["é", "%", "+", "a", "&", "😀"], k=20_000))
        assert urlencoded(urlencode({"text": value})) == {"text": [value]}


def test_escapes_are_decoded_as_the_standard_library_does() -> None:
    chance = random.Random("escapes")
    pieces = ["%", "=", "_", ".", "+", "5", "%41", "%3D", "%0d%0a", "%25", "%E2%82%AC", "%4", "\n", "\r", "\t"]
    for _ in range(5_000):
        value = "".join(chance.choices(pieces, k=chance.randrange(1, 9)))
        assert urlencoded(f"text={value}") == {"text": [unquote_plus(value)]}


def test_urlencoded_text_is_utf_8() -> None:
    assert refused(URLENCODED, b"text=%ff").text == "text: not valid UTF-8 (byte 0)"
    assert refused(URLENCODED, b"%ff=1").text == "body: not valid UTF-8 (byte 0)"
    for name in (b"a" * 257, b"a%00", b"a%0a"):
        assert "printable characters" in refused(URLENCODED, name + b"=1").text


def test_multipart_fields_and_files() -> None:
    form = multipart(
        part('name="to"', b"a@b.c"),
        part('name="to"', "é".encode(), "Content-Type: text/plain; charset=UTF-8"),
        part('name="attachment"; filename="a \\"b\\".bin"', b"\0\r\n--b2\xff", "Content-Type: image/png"),
        part('name="inline"; filename="l"', b"", "Content-Transfer-Encoding: binary"),
    )
    assert form.fields == {"to": ["a@b.c", "é"]}
    assert form.files == {
        "attachment": [PostedFile('a "b".bin', "image/png", b"\0\r\n--b2\xff")],
        "inline": [PostedFile("l", "", b"")],
    }


def test_plain_fields_are_read_as_the_decoder_reads_them() -> None:
    """The decoder reads fields whose header has another spelling."""
    chance = random.Random("plain")
    inserted = (
        b"\r\n",
        b"\n",
        b"\r",
        b"--b1",
        b"\r\n--b1",
        b"\n--b1\r\n",
        b"--",
        b" ",
        b'"',
        b"\xff",
        b"\xc3\xa9",
        b"",
    )
    accepted = 0
    for _ in range(1_000):
        body = bytearray(b"".join(part(f'name="{name}"', b"1\r\n2") for name in ("to", "o:tag", "to")) + b"--b1--\r\n")
        for _ in range(chance.randrange(3)):
            at = chance.randrange(len(body))
            body[at : at + chance.randrange(3)] = chance.choice(inserted)
        both = bytes(body), bytes(body.replace(b"Content-Disposition:", b"content-disposition:"))
        results = []
        for sent in both:
            try:
                results.append(str(read_form(MULTIPART, sent)).lower())
                accepted += 1
            except Refused as error:
                results.append(error.text)
        assert results[0] == results[1], sent
    assert accepted > 500


def test_a_large_file_is_read_exactly() -> None:
    content = random.Random("file").randbytes(300_000)
    form = multipart(part('name="attachment"; filename="a"', content), part('name="to"', b"a@b.c"))
    assert form.files["attachment"][0].content == content
    assert form.fields == {"to": ["a@b.c"]}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (part("filename=a", b"x"), "a part has no name"),
        (part('name="a"', b"x", *(f"X-{n}: y" for n in range(8))), "a: the part has more than 8 headers"),
        (part('name="a"', b"x", "Content-Type: multipart/mixed; boundary=c"), "a: nested multipart"),
        (part('name="a"', b"x", "Content-Transfer-Encoding: base64"), "a: Content-Transfer-Encoding is not"),
        (part('name="a"', b"x", "Content-Type: text/plain; charset=latin-1"), "a: the charset of the part"),
        (part('name="a"', b"\xff"), "a: not valid UTF-8"),
        (part(f'name="{"a" * 257}"', b"x"), "the name of a field has at most"),
        (part('name="a"', b"x", "X-A: " + "y" * 100_000), "the header of a part is longer than"),
        (b"text before " * 10_000, "the header of a part is longer than"),
        (b"--b1\r\nnonsense", "not valid multipart/form-data"),
        (b"", "not valid multipart/form-data"),
    ],
)
def test_a_wrong_part_is_refused(body: bytes, text: str) -> None:
    error = refused(MULTIPART, body + b"--b1--\r\n" if body.startswith(b"--b1\r\nC") else body)
    assert error.code is Code.INVALID_REQUEST
    assert text in error.text


def test_a_form_has_a_limited_number_of_fields() -> None:
    assert len(urlencoded("a=1&" * 1_499 + "a=1")["a"]) == 1_500
    assert refused(URLENCODED, b"a=1&" * 1_500 + b"a=1").code is Code.PAYLOAD_TOO_LARGE
    assert refused(MULTIPART, part('name="a"', b"1") * 1_501 + b"--b1--\r\n").code is Code.PAYLOAD_TOO_LARGE


def test_mutated_forms_are_read_or_refused() -> None:
    chance = random.Random("mutations")
    body = part('name="to"', b"a@b.c") + part('name="attachment"; filename="f"', b"\r\n--b") + b"--b1--\r\n"
    for _ in range(1_000):
        changed = bytearray(body)
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(changed))
            changed[at : at + chance.randrange(3)] = chance.choice([b"", b"\r\n", b"--", b'"', b"\xff", b";", b"\0"])
        try:
            read_form(MULTIPART, bytes(changed))
        except Refused:
            continue
