"""Every limit from both sides: the last that is allowed, and the first that is not."""

import pytest

from tests.e2e.contract.service import Caller, accepted, error, message, new_key

MESSAGE_SIZE = 10_485_760  # bytes of MIME, by the interface


@pytest.mark.parametrize(("length", "status"), [(1, 202), (255, 202), (256, 400), (0, 400)])
def test_a_key_has_1_to_255_characters(caller: Caller, length: int, status: int) -> None:
    key = (new_key() * 8)[:length] if length != 1 else "~"
    response = caller.post(message(), key=key)
    assert response.status_code == status
    if status == 400:
        assert error(response, 400, "invalid_request").startswith("Idempotency-Key:")


def test_a_header_name_has_76_characters(caller: Caller) -> None:
    name = "X-" + "a" * 74
    assert caller.send(headers={name: "v"})["headers"] == {name: "v"}
    assert caller.refused(headers={f"{name}a": "v"}).startswith("headers")


def test_a_message_has_100_headers(caller: Caller) -> None:
    headers = {f"X-{index}": "v" for index in range(101)}
    assert caller.refused(headers=headers).startswith("headers:")
    headers.popitem()
    caller.send(headers=headers)


@pytest.mark.parametrize(
    ("field", "longest"),
    [
        ("filename", "x" * 251 + ".txt"),
        ("filename", "ä" * 127 + "x"),
        ("content_type", "text/" + "x" * 250),
        ("content_id", "x" * 128),
    ],
)
def test_the_words_of_a_file_have_their_length(caller: Caller, field: str, longest: str) -> None:
    """A file's name has 255 octets, its type 255 characters, its id 128; one more is refused by name."""
    file = {"filename": "a.txt", "content": ""}
    assert caller.send(attachments=[file | {field: longest}])["attachments"][0][field] == longest
    assert caller.refused(attachments=[file | {field: f"x{longest}"}]).startswith(f"attachments[0].{field}:")


# ---- the size of a message


def text_of(size: int) -> str:
    """ASCII text that takes exactly that many bytes in a message: its lines end in CRLF already."""
    line = "x" * 62 + "\r\n"
    return line * (size // 64 - 1) + "y" * (size % 64 + 62) + "\r\n"


def test_a_message_has_10_mib(caller: Caller) -> None:
    """MIME of exactly 10,485,760 bytes is accepted; one byte more is 413."""
    frame = len(caller.mime(caller.send(text=text_of(1024))["id"])) - 1024
    room = MESSAGE_SIZE - frame
    sent = accepted(caller.post(message(text=text_of(room))))
    assert len(caller.mime(sent["id"])) == MESSAGE_SIZE
    error(caller.post(message(text=text_of(room + 1))), 413, "payload_too_large")
    assert caller.final(sent["id"])["status"] == "delivered"


# ---- the size of a body
