"""The client for Trio and asyncio. It needs the extra `async`, which is imported with the first client."""

import os
import random
import ssl
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Literal, Self, TypeVar

from mail_appliance import planning
from mail_appliance.configuration import CONNECT_TIMEOUT, RETRIES, TIMEOUT, Configuration, configure
from mail_appliance.encoding import is_large
from mail_appliance.errors import ConfigurationError
from mail_appliance.models import Attachment, BatchResult, Email, Message, SendResult
from mail_appliance.planning import Answer, AsyncTransport, Moment, Pause, Plan, Raise, TransportError

T = TypeVar("T")


class AsyncClient:
    """Sends mail through an appliance from Trio or asyncio: a `Client` whose methods are awaited.

    One client can be shared by the tasks of one event loop, and keeps its connections for the next call.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        username: str | None = None,
        password: str | None = None,
        token: str | None = None,
        retries: int = RETRIES,
        connect_timeout: float = CONNECT_TIMEOUT,
        timeout: float = TIMEOUT,
        ssl_context: ssl.SSLContext | None = None,
        transport: AsyncTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] | None = None,
    ) -> None:
        """Time-outs are in seconds; `timeout` is for one attempt, until its answer is read whole.

        `ssl_context` is for a private certificate authority; `transport` and `sleep` are for tests.
        """
        self._configuration = configure(
            url,
            username=username,
            password=password,
            token=token,
            retries=retries,
            connect_timeout=connect_timeout,
            timeout=timeout,
            environment=os.environ,
        )
        self._transport = transport or _socket_transport(self._configuration, ssl_context)
        self._sleep = sleep or _sleep

    async def send(
        self,
        *,
        from_: str,
        to: str | Iterable[str],
        cc: str | Iterable[str] | None = None,
        bcc: str | Iterable[str] | None = None,
        reply_to: str | None = None,
        subject: str | None = None,
        text: str | None = None,
        html: str | None = None,
        template: str | None = None,
        variables: Mapping[str, str | int | float | bool] | None = None,
        headers: Mapping[str, str] | None = None,
        tags: str | Iterable[str] | None = None,
        attachments: Iterable[Attachment] | None = None,
        scheduled_at: datetime | str | None = None,
        metadata: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> SendResult:
        """Send a message. It returns once the appliance has stored it; delivery follows.

        Without an `idempotency_key` one is made; it is the same in every retry, and result and errors have it. A large
        message is encoded in a worker thread, so that other tasks keep running.
        """
        key = f"auto_{uuid.uuid4()}" if idempotency_key is None else idempotency_key
        files = list(attachments) if isinstance(attachments, Iterable) else attachments
        fields = {
            "from": from_,
            "to": to,
            "cc": cc,
            "bcc": bcc,
            "reply_to": reply_to,
            "subject": subject,
            "text": text,
            "html": html,
            "template": template,
            "variables": variables,
            "headers": headers,
            "tags": tags,
            "attachments": files,
            "scheduled_at": scheduled_at,
            "metadata": metadata,
        }
        call = partial(planning.send_call, self._configuration, fields, key)
        large = is_large(text, html, files if isinstance(files, list) else ())
        return await self._run(await _in_thread(call) if large else call())

    async def send_batch(
        self,
        emails: Iterable[Email],
        *,
        on_error: Literal["reject", "skip"] | None = None,
        idempotency_key: str | None = None,
    ) -> BatchResult:
        """Send up to 100 messages in one request, with one key.

        By default one message that cannot be sent refuses the whole batch: InvalidRequest names it, as in
        `emails[3].to: …`. With `on_error="skip"` the others are accepted, and `results` says which.
        It is encoded in a worker thread.
        """
        key = f"auto_{uuid.uuid4()}" if idempotency_key is None else idempotency_key
        call = partial(planning.batch_call, self._configuration, list(emails), on_error, key)
        return await self._run(await _in_thread(call))

    async def cancel(self, id: str) -> Message:
        """Cancel what is still queued or scheduled of this message; Conflict if nothing is.

        If the answer to a first attempt was lost, Conflict can mean that this attempt succeeded: `get` shows it.
        """
        return await self._run(planning.Cancelling(id, configuration=self._configuration))

    async def reschedule(self, id: str, scheduled_at: datetime | str) -> Message:
        """Move a scheduled message to another time; Conflict once it is due."""
        return await self._run(planning.reschedule_call(self._configuration, id, scheduled_at))

    async def get(self, id: str) -> Message:
        """The message of this id, with its recipients."""
        return await self._run(planning.get_call(self._configuration, id))

    async def wait(self, id: str, timeout: float = planning.WAIT_TIMEOUT) -> Message:  # noqa: ASYNC109 (the rules' name)
        """Poll until the message is `delivered`, `partial` or `failed`; WaitTimeout after so many seconds."""
        waiting = planning.Waiting(id, configuration=self._configuration, timeout=timeout, now=time.monotonic())
        return await self._run(waiting)

    async def close(self) -> None:
        """Close the kept connections; the client cannot be used afterwards."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        """The client itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it."""
        await self.close()

    async def _run(self, plan: Plan[T]) -> T:
        while True:
            outcome: Answer | TransportError
            try:
                outcome = await self._transport.send(plan.request, plan.timeout(time.monotonic()))
            except TransportError as error:
                outcome = error
            step = plan.after(outcome, Moment(time.time(), time.monotonic(), random.random()))  # noqa: S311 (a pause)
            if isinstance(step, Raise):
                raise step.error from (outcome if isinstance(outcome, TransportError) else None)
            if not isinstance(step, Pause):
                return step.result
            await self._sleep(step.seconds)


def _socket_transport(configuration: Configuration, ssl_context: ssl.SSLContext | None) -> AsyncTransport:
    try:
        from mail_appliance.async_socket_transport import AsyncSocketTransport
    except ImportError as cause:
        advice = "Install the library's extra `async`, or: pip install 'anyio>=4.7' 'httptools>=0.6'"
        raise ConfigurationError(f"AsyncClient needs anyio and httptools ({cause}). {advice}") from cause
    return AsyncSocketTransport(configuration, ssl_context)


async def _in_thread(function: Callable[[], T]) -> T:
    try:
        from anyio import to_thread
    except ImportError:  # with `AsyncFakeClient`, which does without the extra
        return function()
    return await to_thread.run_sync(function)


async def _sleep(seconds: float) -> None:
    import anyio

    await anyio.sleep(seconds)
