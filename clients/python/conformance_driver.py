"""The driver of the conformance scenarios (see clients/conformance/README.md).

python conformance_driver.py                    # with Client
python conformance_driver.py --async            # with AsyncClient on asyncio; `--async trio` on Trio
"""

import base64
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "src"))

from mail_appliance import AsyncClient, Attachment, Client, Email, MailApplianceError, verify

Fields = dict[str, Any]
NOT_SHOWN = ("reply_to", "headers")  # of a result, by the protocol
ERROR = ("status", "code", "request_id", "retry_after", "idempotency_key")


class BlockingAsyncClient:
    """An AsyncClient on an event loop of its own, used like a Client."""

    def __init__(self, backend: str, **options: Any) -> None:
        from anyio.from_thread import start_blocking_portal

        self._client = AsyncClient(**options)
        self._stack = ExitStack()
        self._portal = self._stack.enter_context(start_blocking_portal(backend))

    def send(self, **message: Any) -> Any:
        return self._portal.call(partial(self._client.send, **message))

    def send_batch(self, emails: list[Email], **options: Any) -> Any:
        return self._portal.call(partial(self._client.send_batch, emails, **options))

    def cancel(self, id: str) -> Any:
        return self._portal.call(self._client.cancel, id)

    def reschedule(self, id: str, at: datetime | str) -> Any:
        return self._portal.call(self._client.reschedule, id, at)

    def get(self, id: str) -> Any:
        return self._portal.call(self._client.get, id)

    def wait(self, id: str, timeout: float) -> Any:
        return self._portal.call(self._client.wait, id, timeout)

    def close(self) -> None:
        self._portal.call(self._client.close)
        self._stack.close()


class Driver:
    """One method for each command; the last client that was made is used."""

    def __init__(self, make_client: Callable[..., Any]) -> None:
        self._make_client = make_client
        self._client: Any = None

    def client(self, **options: Any) -> Fields:
        self.close()
        self._client = self._make_client(**options)
        return {"ok": True}

    def send(self, message: Fields, idempotency_key: str | None = None) -> Fields:
        result = self._client.send(**arguments_of(message), idempotency_key=idempotency_key)
        return {"result": {name: value for name, value in shown_fields(result).items() if name not in NOT_SHOWN}}

    def send_batch(self, messages: list[Fields], **options: str) -> Fields:
        emails = [Email(**arguments_of(message)) for message in messages]
        return {"result": shown_fields(self._client.send_batch(emails, **options))}

    def cancel(self, id: str) -> Fields:
        return {"result": shown_fields(self._client.cancel(id))}

    def reschedule(self, id: str, **at: Any) -> Fields:
        return {"result": shown_fields(self._client.reschedule(id, scheduled(at)))}

    def get(self, id: str) -> Fields:
        return {"result": shown_fields(self._client.get(id))}

    def wait(self, id: str, timeout: float) -> Fields:
        return {"result": shown_fields(self._client.wait(id, timeout))}

    def parallel(self, message: Fields, count: int) -> Fields:
        with ThreadPoolExecutor(count) as threads:
            answers = threads.map(lambda _: answer(partial(self.send, message)), range(count))
            return {"results": [item.get("result", item) for item in answers]}

    def verify(
        self, body_base64: str, header: str, secrets: list[str | None] | None, now: float, **tolerance: float
    ) -> Fields:
        event = shown_fields(verify(base64.b64decode(body_base64), header, secrets, now=now, **tolerance))
        if event["received"] is not None:
            email = event["received"]
            email["headers"] = [{"name": name, "value": value} for name, value in email["headers"]]
            email["envelope"] = {"from": email["envelope_from"], "to": email["envelope_to"]}
        event["data"] = {name: value for name, value in event["data"].items() if value not in (None, ())}
        return {"result": event}

    def close(self) -> None:
        client, self._client = self._client, None
        if client:
            client.close()


def arguments_of(message: Fields) -> Fields:
    """A message as the library takes it."""
    fields = {"from_" if name == "from" else name: value for name, value in message.items() if name != "scheduled_unix"}
    if "attachments" in message:
        fields["attachments"] = [attachment(item) for item in message["attachments"]]
    return fields | {"scheduled_at": scheduled(message)}


def scheduled(given: Fields) -> datetime | str | None:
    """A time as text, or as a datetime."""
    unix = given.get("scheduled_unix")
    return datetime.fromtimestamp(unix, UTC) if unix is not None else given.get("scheduled_at")


def attachment(given: Fields) -> Attachment:
    """By whichever of the three ways the scenario wants."""
    options = {name: given[name] for name in ("content_type", "content_id") if name in given}
    if "path" in given:
        return Attachment.from_path(given["path"], given.get("filename"), **options)
    if "stream_path" in given:
        with open(given["stream_path"], "rb") as stream:
            return Attachment.from_stream(stream, given["filename"], **options)
    return Attachment(given["filename"], base64.b64decode(given["bytes_base64"]), **options)


def shown_fields(model: Any) -> Fields:
    """A dataclass as JSON can hold it, by the names of the interface."""

    def shown(value: Any) -> Any:
        if isinstance(value, datetime):
            return value.isoformat(timespec="auto" if value.microsecond % 1000 else "milliseconds").replace(
                "+00:00", "Z"
            )
        return value

    def pairs(items: list[tuple[str, Any]]) -> Fields:
        return {"from" if name == "from_" else name: shown(value) for name, value in items}

    return dataclasses.asdict(model, dict_factory=pairs)


def answer(command: Callable[[], Fields]) -> Fields:
    """What a command answers, or its error."""
    try:
        return command()
    except MailApplianceError as error:
        shown = {name: getattr(error, name, None) for name in ERROR}
        return {"error": {"class": type(error).__name__, "message": str(error), **shown}}


def commands() -> Iterator[Fields]:
    for line in sys.stdin:
        yield json.loads(line)


def main(arguments: list[str]) -> None:
    """Answer each line of the input with one line."""
    make_client: Callable[..., Any] = Client
    if arguments[:1] == ["--async"]:
        make_client = partial(BlockingAsyncClient, (arguments[1:] or ["asyncio"])[0])
    driver = Driver(make_client)
    try:
        for fields in commands():
            command = getattr(driver, fields.pop("command"))
            print(json.dumps(answer(partial(command, **fields))), flush=True)
    finally:
        driver.close()


if __name__ == "__main__":
    main(sys.argv[1:])
