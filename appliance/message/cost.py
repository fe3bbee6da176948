"""Estimates the CPU time of a request or a submitted message: expensive work runs on a worker thread. Pure.

Estimates are in microseconds and err on the high side, by the worst known input of each unit.
`tests/message/test_cost.py` compares them with measurements.

    | unit                                             | microseconds |
    |--------------------------------------------------|--------------|
    | 24 bytes of a body, or of a template filled in   | 1            |
    | placeholder of a template                        | 1            |
    | line of a submitted message                      | 1            |
    | line of its header                               | 3 more       |
    | character of an address, its name included       | 1            |
    | character of a custom header                     | 1            |
    | address outside ASCII, or with A-labels          | 400 more     |
    | tag or entity of HTML that comes without a text  | 4            |
"""

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import UNSET

from appliance.message.schema import SendRequest
from appliance.message.template import Variable, written
from appliance.message.text_from_html import MARKS, marks
from appliance.model.mail import StoredTemplate

BYTES_PER_MICROSECOND: Final = 24
UNUSUAL_ADDRESS: Final = 400  # microseconds: IDNA searches its tables for every character
MARK: Final = 4  # microseconds per tag or entity of HTML that becomes text
_LINES_COUNTED: Final = 64 * 1024  # bytes
_ESCAPED: Final = 6  # characters of `&quot;`, the longest escape


def of_size(size: int) -> int:
    """Estimate reading or writing this many bytes."""
    return size // BYTES_PER_MICROSECOND


def of_address(text: str) -> int:
    plain = text.isascii() and "xn--" not in text
    if not plain and text.endswith(">"):  # a non-ASCII name alone is cheap
        bare = text[text.rfind("<") :]
        plain = bare.isascii() and "xn--" not in bare
    return len(text) if plain else len(text) + UNUSUAL_ADDRESS


def of_request(request: SendRequest, size: int) -> int:
    """Estimate fingerprinting and composing a request with a body of `size` bytes, without its template."""
    cost = of_size(size)
    if isinstance(request.html, str) and not isinstance(request.text, str):
        cost += MARK * min(marks(request.html), MARKS)
    for field in (request.sender, request.to, request.cc, request.bcc, request.reply_to):
        if isinstance(field, str):
            cost += of_address(field)
        elif field is not UNSET:
            cost += sum(map(of_address, field))
    if request.headers is not UNSET:
        cost += sum(map(len, request.headers.values()))
    return cost


def of_template(template: StoredTemplate, variables: Mapping[str, Variable]) -> int:
    """Estimate rendering and composing a template, as if every placeholder had the longest value."""
    longest = max((len(written(value)) for value in variables.values()), default=0)
    cost = 0
    for source, growth in ((template.text, 1), (template.html, _ESCAPED)):
        if source is not None:
            placeholders = source.count("{{")
            cost += placeholders + of_size(len(source) + placeholders * longest * growth)
    if template.html is not None and template.text is None:
        cost += MARK * min(marks(template.html) + template.html.count("{{") * longest, MARKS)
    return cost


def of_placeholders(*sources: str | None) -> int:
    """Estimate finding and sorting all placeholders of these texts."""
    return sum(source.count("{{") + of_size(len(source)) for source in sources if source)


def of_submission(data: bytes, recipients: Iterable[str]) -> int:
    lines = data.count(b"\n", 0, _LINES_COUNTED)  # a longer message is expensive by its size
    end = data.find(b"\r\n\r\n", 0, _LINES_COUNTED)
    header_lines = data.count(b"\n", 0, _LINES_COUNTED if end < 0 else end)
    return of_size(len(data)) + lines + 3 * header_lines + sum(map(of_address, recipients))
