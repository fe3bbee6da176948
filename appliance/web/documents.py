"""The documentation as Markdown, for the server and for `appliance mcp`, which must not load the web server.

The binary and the Debian package include the files of `docs/` next to the code; a checkout reads its own `docs/`.
"""

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from appliance import __version__

DOCUMENTS_PATH = "/docs"
LIST_PATH = "/llms.txt"
SUFFIX = ".md"

_INTRODUCTION = f"""\
# The mail appliance

> A self-hosted transactional-email server in one program, version {__version__}. Applications send mail by HTTP \
(`POST /emails`) or SMTP submission; it delivers directly to the recipients' mail servers and reports \
the result of each recipient by polling and by signed webhooks.

The API is described by [/openapi.json](/openapi.json). Everything under `/v1` needs a token or a key with the scope \
`manage`.

## Documents

"""


@cache
def documents() -> dict[str, bytes]:
    """Each document by its path below `docs/`; empty if the installation has no documentation."""
    packed = files("appliance") / "docs"
    return dict(sorted(_markdown(packed if packed.is_dir() else files("appliance") / ".." / "docs")))


@cache
def document_list() -> bytes:
    lines = [f"- [{title}]({DOCUMENTS_PATH}/{name}): {headings}" for name, title, headings in map(_head, documents())]
    return (_INTRODUCTION + "\n".join(lines) + "\n").encode()


def _markdown(directory: Traversable, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    for entry in directory.iterdir() if directory.is_dir() else ():
        if entry.name.endswith(SUFFIX):
            yield prefix + entry.name, entry.read_bytes()
        else:
            yield from _markdown(entry, f"{prefix}{entry.name}/")


def _head(name: str) -> tuple[str, str, str]:
    title, *lines = documents()[name].decode().splitlines()
    headings = [line.removeprefix("## ") for line in lines if line.startswith("## ")]
    return name, title.removeprefix("# "), ", ".join(headings)
