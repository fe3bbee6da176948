"""`appliance serve`: runs the supervisor, prints what to do next, and turns every known failure into one line."""

import gc
import os
import shlex
import shutil
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from appliance.cli.database import check_usable, load_settings
from appliance.cli.options import config_option, named_config

if TYPE_CHECKING:
    from collections.abc import Callable

    from appliance.config.settings import Config
    from appliance.store import Store

STDOUT = 1  # its descriptor
GREETING_TIMEOUT = 2.0  # seconds to write it
# Seconds that a thread may hold the GIL while the event loop waits for it. Beside costly requests, which a thread deals
# with, the p99 of another client is 14 ms; with three times this it is 16. With Python's 5 ms it was five times as high
# as alone.
SWITCH_INTERVAL = 0.0001


_PORT = click.IntRange(1, 65535)


@click.command()
@click.option(
    "--sandbox",
    is_flag=True,
    help="Use the built-in settings, whatever files there are, and take webhooks to this machine.",
)
@click.option("--port", type=_PORT, help="Of HTTP, with the built-in settings. Else $APPLIANCE_HTTP_PORT, 8080.")
@click.option("--smtp-port", type=_PORT, help="Of SMTP, with the built-in settings. Else $APPLIANCE_SMTP_PORT, 2587.")
@config_option
def serve(sandbox: bool, port: int | None, smtp_port: int | None) -> None:
    """Run everything in one process, until SIGTERM or Ctrl-C.

    Without any configuration file it starts in the current directory with built-in settings, for a first look: only
    this machine can reach it, no mail leaves it, and an account to try it with is printed once.

    \b
    Examples:
      appliance serve
      appliance serve --sandbox --port 9000
      appliance serve --config /etc/appliance/config.toml
    """
    from appliance.telemetry import log

    try:
        with log.unblocked_stderr():
            try:
                _run(partial(_settings, sandbox, port, smtp_port))
            except (click.ClickException, click.exceptions.Exit, click.Abort):
                raise
            except Exception as error:  # such as a module that cannot be imported; logged before stderr is flushed
                log.get_logger("serve").exception("ended by a bug", error)
                raise SystemExit(1) from None
    except KeyboardInterrupt:
        return  # Ctrl-C before or after the supervisor handles it: a clean stop all the same
    except click.ClickException as refusal:
        if sys.stderr is None or sys.stderr.isatty():
            raise  # click prints the reason
        log.get_logger("serve").error("cannot serve", reason=refusal.message)
        log.flush()
        raise SystemExit(refusal.exit_code) from None


def _settings(sandbox: bool, port: int | None, smtp_port: int | None) -> "Config":
    from appliance.config.load import HTTP_PORT_VARIABLE, SMTP_PORT_VARIABLE, embedded
    from appliance.config.settings import ConfigError

    settings = None if sandbox else load_settings()
    if sandbox and named_config():
        raise click.UsageError("--sandbox has its own settings: leave out --config, or --sandbox")
    if settings is not None and not settings.embedded:
        if port or smtp_port:
            where = f"{settings.source} is used: set http.bind and smtp.bind there, or add --sandbox"
            raise click.UsageError(f"--port and --smtp-port are for the built-in settings, and {where}")
        return settings
    given = {HTTP_PORT_VARIABLE: port, SMTP_PORT_VARIABLE: smtp_port}
    try:
        chosen = embedded(Path.cwd(), {**os.environ, **{name: str(value) for name, value in given.items() if value}})
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    return replace(chosen, local_webhooks=sandbox)


def _run(read_settings: "Callable[[], Config]") -> None:
    from appliance.backup.unfinished import settle
    from appliance.cli.data_directory import why_not_served
    from appliance.telemetry import log

    serving = log.get_logger("serve")
    # Log the errors that Python would print by itself: of a thread, of a finalizer.
    threading.excepthook = lambda told: serving.exception("a thread failed", told.exc_value)
    sys.unraisablehook = lambda told: serving.exception("an error was ignored", told.exc_value, where=repr(told.object))
    settings = read_settings()
    log.set_level(settings.server.log_level)
    if reason := why_not_served(settings.server.data_dir):
        raise click.ClickException(reason)
    check_usable(settings.server.data_dir, make=True)
    try:
        settle(settings.server.data_dir)
        import trio  # only now: a wrong setting is refused sooner

        from appliance import supervisor
        from appliance.environment import Environment

        # Collect seldom: requests leave next to no cycles, and the default spends a twentieth of the time on it.
        gc.collect()
        gc.freeze()  # imported modules stay
        gc.set_threshold(20_000, 20, 50)
        sys.setswitchinterval(SWITCH_INTERVAL)
        trio.run(partial(supervisor.run, settings, Environment(), on_ready=partial(_greet, settings)))
    except (Exception, BaseExceptionGroup) as error:
        _end(settings, error)


def _end(settings: "Config", error: BaseException) -> None:
    """Exit 1 with the reason; return only from Ctrl-C, which is a clean stop."""
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
        serving.error("the database's files were changed under the running server", reason=str(failed))
    else:
        serving.error("the storage failed; a restart goes on from what is on disk", reason=str(failed))
    raise SystemExit(1) from None


async def _greet(settings: "Config", store: "Store", urls: list[str]) -> None:
    """Print what to do next, to a stdout that may be closed, or a pipe without a reader."""
    import trio

    from appliance import first_start
    from appliance.telemetry import log
    from appliance.telemetry.log import write_all

    serving = log.get_logger("serve")
    if settings.delivery.mode == "direct" and "." not in settings.server.hostname:
        advice = "set it to the name in this machine's PTR record: many servers take no mail from any other"
        serving.warning("server.hostname is not a full name", hostname=settings.server.hostname, advice=advice)
    text = await first_start.greeting(settings, store, urls[0], _program())
    if text and not settings.embedded and not sys.stdout.isatty():
        # Under a service manager stdout and the log share one journal, whose lines are all JSON.
        serving.info("there is no account yet", hint=text.strip())
        return
    with trio.move_on_after(GREETING_TIMEOUT) as timeout:
        try:
            # By its descriptor: a stuck thread would hold the lock of Python's own buffer, and abort the exit.
            await trio.to_thread.run_sync(
                write_all, STDOUT, text.encode(), abandon_on_cancel=True, limiter=trio.CapacityLimiter(1)
            )
        except OSError as error:
            # The server runs without stdout; new secrets can be made by the command line.
            serving.warning("stdout cannot be written", reason=str(error))
    if timeout.cancelled_caught:
        serving.warning("stdout is not being read", reason="what to do next was printed there")


def _program() -> str:
    """How a shell calls this program: by its name if that is in PATH, else by its path."""
    if shutil.which("appliance"):
        return "appliance"
    if getattr(sys, "frozen", False):
        return shlex.quote(sys.executable)
    script = Path(sys.executable).with_name("appliance")
    return shlex.quote(str(script)) if script.exists() else f"{shlex.quote(sys.executable)} -m appliance"
