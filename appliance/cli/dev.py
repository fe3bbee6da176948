"""`appliance dev`: refuses to be a service, runs the server, and prints its addresses."""

import gc
import json
import os
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from appliance.cli.database import refusals
from appliance.cli.options import is_json, json_option, named_config
from appliance.cli.serve import STDOUT, end, guarded

if TYPE_CHECKING:
    from appliance.config.settings import Config

DEV_HTTP_PORT, DEV_SMTP_PORT = 8080, 1025
LINES_TIMEOUT = 1.5  # seconds to write the last lines
_PORT = click.IntRange(0, 65535)


@click.command()
@click.option("--port", type=_PORT, default=DEV_HTTP_PORT, show_default=True, help="HTTP port; 0 chooses a free one.")
@click.option(
    "--smtp-port", type=_PORT, default=DEV_SMTP_PORT, show_default=True, help="SMTP port; 0 chooses a free one."
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Directory for the messages (default: memory, until the server stops).",
)
@click.option("--config", "config_file", hidden=True)  # refused below, with the reason
@json_option
def dev(port: int, smtp_port: int, data: Path | None, config_file: str | None) -> None:
    """Run a mail server for development: no login, no settings, and no mail leaves this machine.

    Send by SMTP to port 1025 without TLS or password, or by HTTP with any key, from any domain. The inbox shows every
    message. Only this machine can connect. Addresses that start with bounce, fail or defer simulate these results.

    Examples:
      appliance dev
      appliance dev --data ./mail
      appliance dev --port 0 --smtp-port 0 --json
    """
    _check_place(named=bool(config_file or named_config()))
    guarded(partial(_run, port, smtp_port, data), is_service=False)


def _check_place(*, named: bool) -> None:
    """Refuse to run as a service or with settings: every user of the machine could read its mail."""
    from appliance.config.load import LOCAL_FILE, VARIABLE

    if os.environ.get("NOTIFY_SOCKET"):
        text = "appliance dev has no login and must not run as a service. Run appliance serve instead"
        raise click.ClickException(f"{text} (NOTIFY_SOCKET is set).")
    if named or os.environ.get(VARIABLE):
        what = "--config" if named else f"${VARIABLE}"
        raise click.UsageError(f"{what}: appliance dev reads no settings file. Remove it, or run appliance serve.")
    if LOCAL_FILE.exists():
        click.echo(f"{LOCAL_FILE} is not read: appliance dev has no settings.", err=True)


def _run(port: int, smtp_port: int, data: Path | None) -> None:
    with refusals():
        from appliance.dev.settings import data_directory, dev_settings

        with data_directory(data) as directory:
            settings = dev_settings(port, smtp_port, directory)
            try:
                _serve(settings, in_memory=data is None)
            except (Exception, BaseExceptionGroup) as error:
                end(settings, error)


def _serve(settings: "Config", *, in_memory: bool) -> None:
    import trio

    from appliance.dev.run import run
    from appliance.environment import Environment
    from appliance.telemetry import log

    gc.collect()
    gc.freeze()  # imported modules stay; without them, a collection is quick, and comes before there is much to collect
    log.set_level(settings.server.log_level)
    lines, as_json = log.LogWriter(STDOUT, "({} lines dropped: the output is read too slowly)\n".format), is_json()

    async def greet(http: list[str], smtp: list[str]) -> None:
        lines.put(_addresses(settings) if as_json else _greeting(settings, in_memory=in_memory))

    try:
        trio.run(run, settings, Environment(), (lambda _: None) if as_json else lines.put, greet)
    finally:
        lines.flush(LINES_TIMEOUT)


def _addresses(settings: "Config") -> str:
    url, smtp = settings.http.base_url, settings.smtp.bind[0]
    shown = {"url": url, "inbox": f"{url}/dashboard/inbox", "smtp_host": "localhost", "smtp_port": smtp.port}
    return json.dumps(shown) + "\n"


def _greeting(settings: "Config", *, in_memory: bool) -> str:
    url, port = settings.http.base_url, settings.smtp.bind[0].port
    message = {"from": "hello@example.com", "to": "you@example.net", "subject": "It works", "text": "Hello."}
    place = "memory, until you stop the server" if in_memory else str(settings.server.data_dir)
    return f"""
Nothing leaves this machine. Messages are kept in {place}.

  Inbox   {url}/dashboard/inbox
  API     {url}
  SMTP    localhost:{port} (no TLS, no password)

curl -sS {url}/emails -H 'Content-Type: application/json' \\
  -H "Idempotency-Key: $(date +%s%N)" -d {shlex.quote(json.dumps(message))}

"""
