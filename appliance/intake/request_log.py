"""Records every submission for the request log, off the path of its response.

`note` keeps a request in memory; once a second `run` writes all of them in one transaction of their own. A crash loses
the last second. Memory is bounded: above a bound requests are counted, not logged. An account's refused requests are
logged one by one up to REFUSED_AT_ONCE, then sampled: REFUSED_PER_SECOND. So a client that is refused in masses neither
fills the disk nor pushes out the other requests of its account. `shown_body` removes secrets before anything is stored.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any

import msgspec
import trio
from msgspec import Struct

from appliance.environment import Environment
from appliance.errors import Code, PublicError, Refused, StorageUnavailable
from appliance.intake.limits import FreeSpace, RequestRate
from appliance.message.batch import Batch, Series
from appliance.message.request import Mime
from appliance.message.schema import OnError, SendRequest
from appliance.model.accounts import Caller, CredentialKind
from appliance.model.dashboard import LoggedRequest
from appliance.model.webhooks import EXCERPT_BYTES, excerpt
from appliance.store import Store, translated
from appliance.store.request_log import PAGE_REQUESTS, packed
from appliance.telemetry.log import get_logger
from appliance.telemetry.metrics import REQUESTS_NOT_LOGGED

WRITE_EVERY = 1.0  # seconds
REQUESTS_WAITING = 16_384  # in memory, of all accounts
ACCOUNT_REQUESTS_WAITING = REQUESTS_WAITING // 4
BODY_BYTES_WAITING = 8 * 1024 * 1024  # of all requests; above it a request is logged without its body
LARGE_BODY = 8 * 1024  # bytes; only the shortened JSON of a larger body waits
REFUSED_AT_ONCE = 100  # refused requests of an account that are logged one by one
REFUSED_PER_SECOND = 1 / 6  # after that: at most a fifth of what an account's log holds
ERROR_LENGTH = 500  # characters
LAST_WRITE = 1.0  # seconds, when the process stops

_BUG = Code.INTERNAL_ERROR, "Internal error. The server's log has the details."

log = get_logger("requests")

# ---- bodies without secrets

STRING_SHOWN = 400  # characters of a string
FILE_STRING_SHOWN = 120  # of a string of an attachment
ENTRIES_SHOWN = 50
BATCH_SHOWN = 5  # messages of a batch: more than fit into an excerpt
NAME_SHOWN = 100
BODY_MASK = "[removed]"
_SECRET_NAME = re.compile(
    r"passw|passphrase|pwd|secret|token|authoriz|credential|cookie|session|otp|signature"
    r"|(?:api|access|private|auth|signing)[-_ ]?key",
    re.IGNORECASE,
)
_SECRET_NAMES = frozenset(("code", "pin"))  # as whole names
_CONTENT = frozenset(("text", "html"))  # may contain personal data, which `retention.bodies` limits
_UNREADABLE = re.compile(rf'{_SECRET_NAME.pattern}|attachments|"(?:code|pin|text|html|variables)"|\\u', re.IGNORECASE)
# Our own secrets, JSON Web Tokens and credentials of HTTP. An expression runs only if its plain text occurs, which is
# found a hundred times as fast. Each takes linear time, because this text may be an attacker's.
_SECRET_VALUES = (
    ("ma_", re.compile(r"()ma_(?:live|test)_\w+")),
    ("whsec_", re.compile(r"()whsec_[\w+/=-]+")),
    ("eyJ", re.compile(r"()(?<![\w-])eyJ[\w-]{1,2000}\.[\w-]+\.[\w-]*")),
    ("earer ", re.compile(r"([Bb]earer )[\w.+/=~-]{8,}")),
    ("asic ", re.compile(r"([Bb]asic )[\w.+/=~-]{8,}")),
)
# Parameters of links such as `?reset_token=…` and `#token=…`.
_PARAMETER = re.compile(r"([?&;#]([\w.-]{1,100})=)[^&\s\"'<>#\\]+")
_SECRET_PARAMETER = re.compile(rf"{_SECRET_NAME.pattern}|key|code|sig|auth", re.IGNORECASE)


def shown_body(body: bytes | str) -> str:
    """The start of a request's JSON without secrets, contents or attachments; text is what `shortened` made."""
    try:
        text = body if isinstance(body, str) else _encoded(msgspec.json.decode(body))
    except (msgspec.DecodeError, ValueError, RecursionError):
        # Not JSON: it is shown up to the first name of a secret, because the end of the value is not known.
        text = body[: 2 * EXCERPT_BYTES].decode("utf-8", "replace")  # type: ignore[union-attr]  # bytes
        if (name := _UNREADABLE.search(text)) is not None:
            text = text[: name.start()] + BODY_MASK
    for part, secret in _SECRET_VALUES:
        if part in text:
            text = secret.sub(rf"\1{BODY_MASK}", text)
    if "=" in text:
        text = _PARAMETER.sub(_shown_parameter, text)
    return excerpt(text.encode())


def _shown_parameter(parameter: re.Match[str]) -> str:
    return parameter[1] + BODY_MASK if _SECRET_PARAMETER.search(parameter[2]) else parameter[0]


def shortened(request: SendRequest | Batch | Series | Mime) -> str:
    """The JSON of a large request, so that its texts and attachments do not wait in memory."""
    if isinstance(request, SendRequest):
        return _encoded(msgspec.to_builtins(request))
    if isinstance(request, Series):
        request = request.part(range(min(request.count, BATCH_SHOWN)))
    if isinstance(request, Mime):
        return _encoded({"from": request.sender, "to": request.recipients})
    shown = [
        item.text if isinstance(item, Refused) else msgspec.to_builtins(item) for item in request.items[:BATCH_SHOWN]
    ]
    return _encoded({"on_error": OnError.SKIP if request.skip else OnError.REJECT, "emails": shown})


def _encoded(value: object) -> str:
    # Twice as long as it is shown: a secret that is cut here is found by its beginning.
    return msgspec.json.encode(_shown(value)).decode()[: 2 * EXCERPT_BYTES]


def _shown(value: Any, *, in_file: bool = False) -> Any:
    if isinstance(value, dict):
        return {name[:NAME_SHOWN]: _member(name[:NAME_SHOWN], inner, in_file) for name, inner in value.items()}
    if isinstance(value, list):
        return [_shown(inner, in_file=in_file) for inner in value[:ENTRIES_SHOWN]]
    if isinstance(value, str) and len(value) > (FILE_STRING_SHOWN if in_file else STRING_SHOWN):
        return BODY_MASK if in_file else f"{value[:STRING_SHOWN]}… ({len(value):,} characters)"
    return value


def _member(name: str, value: object, in_file: bool) -> object:
    if _is_secret(name) or (in_file and name == "content"):
        return BODY_MASK
    if value is not None and name in _CONTENT:
        return f"({len(value):,} characters)" if isinstance(value, str) else BODY_MASK
    if value is not None and name == "variables":
        return (
            {key[:NAME_SHOWN]: BODY_MASK for key in islice(value, ENTRIES_SHOWN)}
            if isinstance(value, dict)
            else BODY_MASK
        )
    return _shown(value, in_file=in_file or name == "attachments")


@lru_cache(maxsize=1_000)
def _is_secret(name: str) -> bool:
    return name.lower() in _SECRET_NAMES or _SECRET_NAME.search(name) is not None


# ---- the log
class SubmittedRequest(Struct):
    caller: Caller
    request_id: str
    source: str
    route: str
    client: str
    size: int = 0
    body: bytes | str = b""  # text: see `shortened`


_Waiting = tuple[LoggedRequest, bytes | str]


@dataclass(slots=True)
class RequestLog:
    store: Store
    env: Environment
    free_space: FreeSpace
    _waiting: dict[str, list[_Waiting]] = field(default_factory=dict)  # by account
    _count: int = 0
    _bytes: int = 0
    _refused: RequestRate = field(init=False)
    _thread: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(1))

    def __post_init__(self) -> None:
        self._refused = RequestRate(REFUSED_PER_SECOND, self.env, REFUSED_AT_ONCE, nodes=self.store.engine.live_nodes)

    def accepted(self, submission: SubmittedRequest, status: int, message_id: str) -> None:
        self._note(submission, status, None, None, message_id)

    def refused(self, submission: SubmittedRequest, status: int, code: str | None, error: str) -> None:
        try:
            self._refused.take(submission.caller.account_id)
        except Refused:
            REQUESTS_NOT_LOGGED.add("sampled")
        else:
            self._note(submission, status, code, error[:ERROR_LENGTH], None)

    def failed(self, submission: SubmittedRequest, error: Exception) -> None:
        refused = translated(error)
        code, text = (refused.code, refused.text) if isinstance(refused, PublicError) else _BUG
        self.refused(submission, int(code.smtp[:3]) if submission.source == "smtp" else code.status, code, text)

    def _note(
        self, submission: SubmittedRequest, status: int, code: str | None, error: str | None, message_id: str | None
    ) -> None:
        caller, body = submission.caller, submission.body
        waiting = self._waiting.setdefault(caller.account_id, [])
        if len(waiting) >= ACCOUNT_REQUESTS_WAITING or self._count >= REQUESTS_WAITING:
            REQUESTS_NOT_LOGGED.add("busy")
            return
        if self._bytes + len(body) > BODY_BYTES_WAITING:
            body = b""
        key = None if caller.kind is CredentialKind.TOKEN else caller.idempotency_scope.partition(":")[2]
        what = submission.request_id, self.env.now(), submission.source, submission.route, key, submission.client
        waiting.append((LoggedRequest(*what, status, code, error, message_id, submission.size, ""), body))
        self._count += 1
        self._bytes += len(body)

    async def run(self) -> None:
        try:
            while True:
                await trio.sleep(WRITE_EVERY)
                await self.write()
        finally:
            with trio.move_on_after(LAST_WRITE, shield=True):
                await self.write()

    async def write(self) -> None:
        """Write all requests. Without storage, or on a nearly full disk, they are dropped."""
        waiting, self._waiting, self._count, self._bytes = self._waiting, {}, 0, 0
        pages: list[tuple[str, bytes]] = []
        count = sum(map(len, waiting.values()))
        try:
            if self.free_space.low():
                raise StorageUnavailable("The server is low on disk space.")
            for part in _parts(waiting):
                pages += await trio.to_thread.run_sync(_packed, part, limiter=self._thread)
            if pages:
                await self.store.request_pages.add(pages)
        except StorageUnavailable as refused:
            if count:
                REQUESTS_NOT_LOGGED.add("storage", count)
                log.warning("request log not written: storage unavailable", requests=count, reason=refused.text)


_Part = list[tuple[str, Sequence[_Waiting]]]


def _parts(waiting: dict[str, list[_Waiting]]) -> Iterator[_Part]:
    """Pages in parts of about PAGE_REQUESTS requests, each a millisecond of work."""
    part: _Part = []
    count = 0
    for account_id, requests in waiting.items():
        for at in range(0, len(requests), PAGE_REQUESTS):
            page = requests[at : at + PAGE_REQUESTS]
            part.append((account_id, page))
            count += len(page)
            if count >= PAGE_REQUESTS:
                yield part
                part, count = [], 0
    if part:
        yield part


def _packed(part: _Part) -> list[tuple[str, bytes]]:
    """Runs on a thread."""
    replace = msgspec.structs.replace
    return [
        (account_id, packed([replace(request, body=shown_body(body)) for request, body in page]))
        for account_id, page in part
    ]
