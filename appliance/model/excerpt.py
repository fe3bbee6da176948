"""In charge of the beginning of a body, as a log keeps and shows it. PURE."""

EXCERPT = 2048  # bytes, by the interface


def excerpt(body: bytes) -> str:
    """The beginning of a body as text of at most so many bytes; what is no UTF-8 is shown as U+FFFD."""
    text = body[:EXCERPT].decode("utf-8", "replace")
    if len(body) >= EXCERPT:  # it may have been cut within a character, which is no fault of the body's
        text = text.removesuffix("\ufffd")
    return text.encode()[:EXCERPT].decode("utf-8", "ignore")
