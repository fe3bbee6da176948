"""Two thousand messages of every kind a request can ask for, composed and signed by us: dkimpy verifies all of them."""

import base64
from random import Random
from typing import Any

from tests.message.samples import composed
from tests.message.test_dkim import signed, verified

MESSAGES = 2_000
SEED = 20

# What headers are made of: words that need encoding and words that need none, and white space that may be folded.
WORDS = (
    "Your", "order", "№", "12345", "Grüße", "café", "naïve", "漢字", "かな", "한국어", "привет", "שלום", "مرحبا",
    "😀", "👩‍👩‍👧", "e\u0301", "=?utf-8?q?no?=", "a=b;", "b=", "(x)", "\\", "<i>", "--", ".", ":", "x" * 60, "é" * 60,
)  # fmt: skip
GAPS = (" ", " ", " ", " ", "  ", "   ", "\u00a0")
# And bodies: what canonicalisation, transfer encodings and SMTP have an opinion about.
LINES = (
    "", "", "", " ", "\t", "   \t  ", "a", "a ", "a\t", "a  b\t\tc", " indented", ".", "..", ".a", "From here on", "--",
    "--=_", "=", "=3D", "x" * 76, "x" * 77, "x" * 997, "x" * 998, "x" * 999, "y z " * 800, "é", "é" * 500, "漢字" * 300,
    "😀", "<p>Hi &amp; bye</p>", "DKIM-Signature: v=1; b=", "tail=",
)  # fmt: skip
ENDS = ("", "\n", "\n\n\n\n", "\r\n", "\r\n\r\n\r\n", " ", " \n \n", "\t\r\n\t")
NAMES = ("", "Ada", "Ada Lovelace", 'Ada "Countess" L.', "Zoë Müller", "名前 太郎", "a, b; c", "x" * 200, "é" * 200)
LOCAL_PARTS = ("ada", "ada.l+tag", "o'neil", "jürgen", "用户", "x" * 64)
DOMAINS = ("example.net", "sub.sub.example.net", "bücher.example", "xn--bcher-kva.example")
HEADERS = ("List-Unsubscribe", "List-Unsubscribe-Post", "References", "In-Reply-To", "X-A", "x-lower", "Precedence")
FILES = ("a.txt", "Rechnung März.pdf", "写真.jpg", "no-extension", "a'b\"c.bin", "x" * 120 + ".png")


def words(choose: Random, most: int) -> str:
    """A line of words."""
    text = "".join(choose.choice(WORDS) + choose.choice(GAPS) for _ in range(choose.randint(1, most)))
    return text if choose.random() < 0.2 else text.strip()


def address(choose: Random) -> str:
    """A recipient, with or without a name."""
    plain, name = f"{choose.choice(LOCAL_PARTS)}@{choose.choice(DOMAINS)}", choose.choice(NAMES)
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{quoted}" <{plain}>' if name else plain


def body(choose: Random) -> str:
    """A text of some lines, ending in some way."""
    end = choose.choice(("\n", "\n", "\r\n"))
    return end.join(choose.choice(LINES) for _ in range(choose.randint(0, 12))) + choose.choice(ENDS)


def attachment(choose: Random, number: int) -> dict[str, str]:
    """A file of any bytes."""
    content = choose.randbytes(choose.choice((0, 1, 56, 57, 58, 300, 5_000)))
    made = {"filename": choose.choice(FILES), "content": base64.b64encode(content).decode()}
    if choose.random() < 0.3:
        made["content_id"] = f"image{number}@example.com"
    if choose.random() < 0.3:
        made["content_type"] = choose.choice(("image/png", "text/plain", "application/pdf"))
    return made


def request(choose: Random) -> dict[str, Any]:
    """What a customer may ask for."""
    kind = choose.choice(("text", "html", "both", "both", "files"))
    files = choose.choice((0, 0, 1, 3)) or (kind == "files")
    fields: dict[str, Any] = {
        "from": choose.choice(("shop@example.com", "The Shop <shop@example.com>", "Büro München <shop@example.com>")),
        "to": [address(choose) for _ in range(choose.choice((1, 1, 2, 8)))],
        "subject": words(choose, 20)[:500],
        "text": body(choose) if kind in ("text", "both") else None,
        "html": body(choose) if kind in ("html", "both") else None,
        "attachments": [attachment(choose, number) for number in range(files)] or None,
        "headers": {name: words(choose, 8) for name in choose.sample(HEADERS, choose.choice((0, 0, 1, 3, 7)))} or None,
        "tags": [f"tag {number}" for number in range(choose.choice((0, 0, 1, 20)))] or None,
    }
    if choose.random() < 0.3:
        fields["cc"] = [address(choose) for _ in range(choose.choice((1, 5)))]
    if choose.random() < 0.3:
        fields["reply_to"] = address(choose)
    return fields


def test_dkimpy_verifies_two_thousand_messages() -> None:
    """Both signatures, RSA and Ed25519, of all of 2,000 different messages, and all encodings and structures occur."""
    choose, seen = Random(SEED), set()
    for number in range(MESSAGES):
        fields = request(choose)
        message = composed(**fields)
        whole = signed(message)
        assert [verified(whole, index) for index in (0, 1)] == [True, True], f"message {number}: {fields}"
        seen.add(message)
    assert len(seen) == MESSAGES
    for mark in (b"7bit", b"quoted-printable", b"base64", b"alternative", b"mixed", b"related", b"=?utf-8?", b"\xc3"):
        assert sum(mark in message for message in seen) >= MESSAGES // 50, mark
