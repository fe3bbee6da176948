"""The client for threads, on the standard library alone."""

import os
import random
import ssl
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Literal, Self, TypeVar

from mail_appliance import planning
from mail_appliance.configuration import CONNECT_TIMEOUT, RETRIES, TIMEOUT, configure
from mail_appliance.models import Attachment, BatchResult, Email, Message, SendResult
from mail_appliance.planning import Answer, Moment, Pause, Plan, Raise, Transport, TransportError
from mail_appliance.socket_transport import SocketTransport

T = TypeVar("T")


class Client:
    """Sends mail through an appliance. Threads can share one client; it keeps its connections for the next call.

    The URL and the credentials that are not given come from MAIL_APPLIANCE_URL, MAIL_APPLIANCE_USERNAME and
    MAIL_APPLIANCE_PASSWORD, or MAIL_APPLIANCE_TOKEN. A `token` is an API key or a JWT.
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
        transport: Transport | None = None,
        sleep: Callable[[float], None] = time.sleep,
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
        self._transport = transport or SocketTransport(self._configuration, ssl_context)
        self._sleep = sleep

    def send(
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

        Without an `idempotency_key` one is made; it is the same in every retry, and result and errors have it.
        """
        key = f"auto_{uuid.uuid4()}" if idempotency_key is None else idempotency_key
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
            "attachments": attachments,
            "scheduled_at": scheduled_at,
            "metadata": metadata,
        }
        return self._run(planning.send_call(self._configuration, fields, key))

    def send_batch(
        self,
        emails: Iterable[Email],
        *,
        on_error: Literal["reject", "skip"] | None = None,
        idempotency_key: str | None = None,
    ) -> BatchResult:
        """Send up to 100 messages in one request, with one key.

        By default one message that cannot be sent refuses the whole batch: InvalidRequest names it, as in
        `emails[3].to: …`. With `on_error="skip"` the others are accepted, and `results` says which.
        """
        key = f"auto_{uuid.uuid4()}" if idempotency_key is None else idempotency_key
        return self._run(planning.batch_call(self._configuration, emails, on_error, key))

    def cancel(self, id: str) -> Message:
        """Cancel what is still queued or scheduled of this message; Conflict if nothing is.

        If the answer to a first attempt was lost, Conflict can mean that this attempt succeeded: `get` shows it.
        """
        return self._run(planning.Cancelling(id, configuration=self._configuration))

    def reschedule(self, id: str, scheduled_at: datetime | str) -> Message:
        """Move a scheduled message to another time; Conflict once it is due."""
        return self._run(planning.reschedule_call(self._configuration, id, scheduled_at))

    def get(self, id: str) -> Message:
        """The message of this id, with its recipients."""
        return self._run(planning.get_call(self._configuration, id))

    def wait(self, id: str, timeout: float = planning.WAIT_TIMEOUT) -> Message:
        """Poll until the message is `delivered`, `partial` or `failed`; WaitTimeout after so many seconds."""
        waiting = planning.Waiting(id, configuration=self._configuration, timeout=timeout, now=time.monotonic())
        return self._run(waiting)

    def close(self) -> None:
        """Close the kept connections; the client cannot be used afterwards."""
        self._transport.close()

    def __enter__(self) -> Self:
        """The client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def _run(self, plan: Plan[T]) -> T:
        while True:
            outcome: Answer | TransportError
            try:
                outcome = self._transport.send(plan.request, plan.timeout(time.monotonic()))
            except TransportError as error:
                outcome = error
            step = plan.after(outcome, Moment(time.time(), time.monotonic(), random.random()))  # noqa: S311 (a pause)
            if isinstance(step, Raise):
                raise step.error from (outcome if isinstance(outcome, TransportError) else None)
            if not isinstance(step, Pause):
                return step.result
            self._sleep(step.seconds)
