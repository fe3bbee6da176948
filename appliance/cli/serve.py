"""`appliance serve`: runs the supervisor, prints what to do next, and turns every known failure into one line."""

import gc
import shlex
import shutil
import sys
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from appliance.cli.database import check_usable, load_settings
from appliance.cli.options import config_option

if TYPE_CHECKING:
    from appliance.config.settings import Config
    from appliance.store import Store

STDOUT = 1  # its descriptor
GREETING_TIMEOUT = 2.0  # seconds to write it
# Seconds that a thread may hold the GIL while the event loop waits for it. With Python's 5 ms, the p99 of a client
# beside a costly request was five times as high as alone; with this 1.6 times.
SWITCH_INTERVAL = 0.0003


@click.command()
@config_option
def serve() -> None:
    """Run everything in one process, until SIGTERM or Ctrl-C.

    Without any configuration file it starts in the current directory with built-in settings, for a first look: only
    this machine can reach it, no mail leaves it, and an account to try it with is printed once.

    \b
    Examples:
      appliance serve
      appliance serve --config /etc/appliance/config.toml
    """
    from appliance.telemetry import log

    try:
        with log.unblocked_stderr():
            _run()
    except KeyboardInterrupt:
        return  # Ctrl-C before or after the supervisor handles it: a clean stop all the same
    except click.ClickException as refusal:
        if sys.stderr is None or sys.stderr.isatty():
            raise  # click prints the reason
        log.get_logger("serve").error("cannot serve", reason=refusal.message)
        log.flush()
        raise SystemExit(refusal.exit_code) from None


def _run() -> None:
    from appliance.backup.unfinished import settle
    from appliance.telemetry import log

    serving = log.get_logger("serve")
    # Log the errors that Python would print by itself: of the start, of a thread, of a finalizer.
    sys.excepthook = lambda _, error, __: serving.exception("ended by a bug", error)
    threading.excepthook = lambda told: serving.exception("a thread failed", told.exc_value)
    sys.unraisablehook = lambda told: serving.exception("an error was ignored", told.exc_value, where=repr(told.object))
    settings = load_settings()
    log.set_level(settings.server.log_level)
    check_usable(settings.server.data_dir, make=True)
    try:
        settle(settings.server.data_dir)
        import trio  # only now: a wrong setting is refused sooner

        from appliance import supervisor
        from appliance.outside import Outside

        # Collect seldom: requests leave next to no cycles, and the default spends a twentieth of the time on it.
        gc.collect()
        gc.freeze()  # imported modules stay
        gc.set_threshold(20_000, 20, 50)
        sys.setswitchinterval(SWITCH_INTERVAL)
        trio.run(partial(supervisor.run, settings, Outside(), on_ready=partial(_greet, settings)))
    except (Exception, BaseExceptionGroup) as error:
        _end(settings, error)


def _end(settings: "Config", error: BaseException) -> None:
    """Exit 1 with the reason; return only from Ctrl-C, which is a clean stop."""
    from appliance.cli import failures
    from appliance.store import FilesMoved
    from appliance.store.sqlite.faults import DamagedDatabase
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

    text = await first_start.greeting(settings, store, urls[0], _program())
    serving = log.get_logger("serve")
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
