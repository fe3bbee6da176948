"""The command line `appliance`, one file per group of commands.

These files import click and little else. A command imports its dependencies when it runs, so that a short command does
not load the web server.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from appliance import __version__
from appliance.cli.account import account
from appliance.cli.audit import audit
from appliance.cli.backup import backup, restore, verify
from appliance.cli.completion import completion
from appliance.cli.config import config
from appliance.cli.credential import credential
from appliance.cli.database import load_settings
from appliance.cli.doctor import doctor
from appliance.cli.domain import domain
from appliance.cli.explain import explain
from appliance.cli.feedback import feedback
from appliance.cli.health import health
from appliance.cli.install import install, uninstall
from appliance.cli.key import key
from appliance.cli.mcp import mcp
from appliance.cli.messages import messages
from appliance.cli.nodes import nodes
from appliance.cli.options import config_option
from appliance.cli.pause import pause, resume
from appliance.cli.queue import queue
from appliance.cli.send_test import send_test
from appliance.cli.serve import serve
from appliance.cli.setup import setup
from appliance.cli.store import store
from appliance.cli.suppressions import suppressions
from appliance.cli.template import template
from appliance.cli.upgrade import upgrade
from appliance.cli.user import user
from appliance.cli.webhook import webhook
from appliance.errors import start_failure


class _Program(click.Group):
    """The group of all commands. Its help lists the commands of subgroups too; a bug is one line, not a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            try:
                from appliance.cli.failures import unexpected
            except Exception:
                raise click.ClickException(start_failure(error)) from None
            raise click.ClickException(unexpected(error, _data_dir())) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(90)) for name, command in leaves(self)])


def _data_dir() -> Path | None:
    """The data directory, if the settings can be read."""
    try:
        return load_settings().server.data_dir
    except Exception:  # the bug being reported may be in here
        return None


def leaves(group: click.Group, before: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield every command that is not a group, by its full name."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from leaves(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


@click.group(cls=_Program)
@click.version_option(__version__, prog_name="appliance", message="%(prog)s %(version)s")
@config_option
def main() -> None:
    """A self-hosted transactional-email server in one program.

    \b
    For a first look, in an empty directory:
      appliance serve

    \b
    To set everything up, from the settings to a first delivered message:
      sudo appliance setup

    \b
    To add another sender (the server may be running or not):
      echo 'a long password' | appliance account create acme --email owner@acme.example --password-stdin
      appliance domain add acme acme.example
      appliance key create acme --scope full

    \b
    To run it as a systemd service:
      sudo appliance install --hostname mail.example.com

    \b
    To follow mail, and to find what prevents delivery:
      appliance send-test --to you@example.net --wait
      appliance queue
      appliance messages --to ADDRESS
      appliance explain MESSAGE|ADDRESS
      appliance doctor

    Every command has --help. Exit codes: 0 success, 1 failure (one line says why), 2 wrong usage.
    """


# In the order of the help.
_COMMANDS: tuple[click.Command, ...] = (setup, serve, account, user, domain, credential, key, suppressions, webhook)
_COMMANDS += (template, queue, messages, explain, feedback, audit, send_test, pause, resume, nodes)
_COMMANDS += (backup, verify, restore, store, upgrade, config, doctor, health, install, uninstall, completion, mcp)
for _command in _COMMANDS:
    main.add_command(_command)
