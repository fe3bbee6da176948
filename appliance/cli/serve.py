"""`appliance serve`: runs the supervisor, prints the first steps, and turns every known failure into one line."""

import gc
import os
import shlex
import shutil
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from appliance.cli.database import check_usable, load_settings, refusals
from appliance.cli.options import config_option, flag, named_config
from appliance.errors import start_failure

if TYPE_CHECKING:
    from appliance.config.settings import Config
    from appliance.store import Store

STDOUT = 1  # its descriptor
GREETING_TIMEOUT = 2.0  # seconds to write the greeting
# Seconds that a thread may hold the GIL while the event loop waits for it. While threads serve costly requests, the p99
# of another client is 14 ms, and 16 ms with three times this. With Python's 5 ms it was five times as high as alone.
SWITCH_INTERVAL = 0.0001

_PORT = click.IntRange(1, 65535)


@click.command()
@flag("--sandbox", "Ignore settings files, use the built-in settings, and allow webhooks to this machine.")
@click.option("--port", type=_PORT, help="HTTP port without a settings file (default $APPLIANCE_HTTP_PORT or 8080).")
@click.option(
    "--smtp-port", type=_PORT, help="SMTP port without a settings file (default $APPLIANCE_SMTP_PORT or 2587)."
)
@config_option
def serve(sandbox: bool, port: int | None, smtp_port: int | None) -> None:
    """Run the server until SIGTERM or Ctrl-C.

    Without a settings file it starts in the current directory with built-in settings, for a first look: only this
    machine can reach it, no mail leaves it, and it prints a trial account once.

    Examples:
      appliance serve
      appliance serve --sandbox --port 9000
      appliance serve --config /etc/appliance/config.toml
    """
    guarded(partial(_run, partial(_settings, sandbox, port, smtp_port)))


def guarded(run: Callable[[], None], *, is_service: bool = True) -> None:
    """Run a server, with one line on stderr for a failure, however slowly stderr is read.

    The line of a service is JSON, as its log, unless stderr is a terminal.
    """
    from appliance.telemetry import log

    try:
        with log.unblocked_stderr():
            try:
                run()
            except (click.ClickException, click.exceptions.Exit, click.Abort):
                raise
            except ImportError as error:
                raise click.ClickException(start_failure(error)) from None
            except Exception as error:  # logged before stderr is flushed
                log.get_logger("serve").exception("ended by a bug", error)
                raise SystemExit(1) from None
    except KeyboardInterrupt:
        return  # Ctrl-C outside the supervisor: also a clean stop
    except click.ClickException as refusal:
        if not is_service or sys.stderr is None or sys.stderr.isatty():
            raise  # click prints the reason
        log.get_logger("serve").error("cannot serve", reason=refusal.message)
        log.flush()
        raise SystemExit(refusal.exit_code) from None


def _settings(sandbox: bool, port: int | None, smtp_port: int | None) -> "Config":
    from appliance.config.load import HTTP_PORT_VARIABLE, SMTP_PORT_VARIABLE, embedded

    settings = None if sandbox else load_settings()
    if sandbox and named_config():
        raise click.UsageError("--sandbox ignores settings files: omit --config or --sandbox")
    if settings is not None and not settings.embedded:
        if port or smtp_port:
            where = f"{settings.source} is used. Set http.bind and smtp.bind there, or add --sandbox"
            raise click.UsageError(f"--port and --smtp-port apply to the built-in settings only, but {where}")
        return settings
    ports = {HTTP_PORT_VARIABLE: port, SMTP_PORT_VARIABLE: smtp_port}
    with refusals():
        chosen = embedded(Path.cwd(), {**os.environ, **{name: str(value) for name, value in ports.items() if value}})
    return replace(chosen, local_webhooks=sandbox)


def _run(read_settings: "Callable[[], Config]") -> None:
    from appliance.backup.unfinished import settle
    from appliance.cli.failures import why_not_served
    from appliance.telemetry import log

    serving = log.get_logger("serve")
    # Log errors of threads and finalizers, which Python would print.
    threading.excepthook = lambda error: serving.exception("thread failed", error.exc_value)
    sys.unraisablehook = lambda error: serving.exception("error ignored", error.exc_value, where=repr(error.object))
    settings = read_settings()
    log.set_level(settings.server.log_level)
    if reason := why_not_served(settings):
        raise click.ClickException(reason)
    check_usable(settings.server.data_dir, make=True)
    try:
        settle(settings.server.data_dir)
        import trio  # late, so that a wrong setting is refused sooner

        from appliance import supervisor
        from appliance.environment import Environment

        # Collect seldom: requests leave hardly any cycles, and the default takes a twentieth of the time.
        gc.collect()
        gc.freeze()  # imported modules stay
        gc.set_threshold(20_000, 20, 50)
        sys.setswitchinterval(SWITCH_INTERVAL)
        trio.run(partial(supervisor.run, settings, Environment(), on_ready=partial(_greet, settings)))
    except (Exception, BaseExceptionGroup) as error:
        end(settings, error)


def end(settings: "Config", error: BaseException) -> None:
    """Exit with 1 and the reason; return only after Ctrl-C, which is a clean stop."""
    from appliance.cli import failures
    from appliance.store import DamagedDatabase, FilesMoved
    from appliance.supervisor import StorageFailed
    from appliance.telemetry import log

    serving = log.get_logger("serve")
    causes = list(failures.leaves(error))
    if all(isinstance(cause, KeyboardInterrupt) for cause in causes):
        return
    failed = next((cause for cause in causes if isinstance(cause, StorageFailed)), None)
    if failed is None:
        if reason := failures.explain(error, settings):
            raise click.ClickException(reason) from None
        serving.exception("ended by a bug")
    elif isinstance(failed.__cause__, DamagedDatabase):
        serving.error(failures.damaged(failed))
    elif isinstance(failed.__cause__, FilesMoved):
        serving.error("database files changed while the server was running", reason=str(failed))
    else:
        serving.error("storage failed; a restart continues from the data on disk", reason=str(failed))
    raise SystemExit(1) from None


async def _greet(settings: "Config", store: "Store", urls: list[str]) -> None:
    """Print the first steps to stdout, which may be closed or a pipe without a reader."""
    import trio

    from appliance import first_start
    from appliance.config.load import HTTP_PORT_VARIABLE, SMTP_PORT_VARIABLE
    from appliance.environment import Environment
    from appliance.system.data_directory import write_note
    from appliance.telemetry import log
    from appliance.telemetry.log import write_all

    serving = log.get_logger("serve")
    if settings.delivery.mode == "direct" and "." not in settings.server.hostname:
        advice = "set it to the name in this machine's PTR record: many servers accept mail from no other name"
        serving.warning("server.hostname is not a full name", hostname=settings.server.hostname, advice=advice)
    note = {"started_at": Environment().now()}
    if settings.embedded:
        note |= {HTTP_PORT_VARIABLE: settings.http.bind[0].port, SMTP_PORT_VARIABLE: settings.smtp.bind[0].port}
    try:
        write_note(settings.server.data_dir, note)
    except OSError as error:
        serving.warning("note about this server not written", reason=str(error))
    text = await first_start.greeting(settings, store, urls[0], _program())
    if text and not settings.embedded and not sys.stdout.isatty():
        # Under a service manager stdout and the log share one journal, whose lines must be JSON.
        serving.info("there is no account yet", hint=text.strip())
        return
    with trio.move_on_after(GREETING_TIMEOUT) as timeout:
        try:
            # By its descriptor: a stuck thread would hold the lock of Python's buffer and block the exit.
            await trio.to_thread.run_sync(
                write_all, STDOUT, text.encode(), abandon_on_cancel=True, limiter=trio.CapacityLimiter(1)
            )
        except OSError as error:
            # The server runs without stdout; the command line can create new secrets.
            serving.warning("greeting not written: stdout failed", reason=str(error))
    if timeout.cancelled_caught:
        serving.warning("greeting not written: stdout is not read")


def _program() -> str:
    """Return this program's name for a shell command: a plain name if it is in PATH, otherwise its path."""
    if shutil.which("appliance"):
        return "appliance"
    if getattr(sys, "frozen", False):
        return shlex.quote(sys.executable)
    script = Path(sys.executable).with_name("appliance")
    return shlex.quote(str(script)) if script.exists() else f"{shlex.quote(sys.executable)} -m appliance"
