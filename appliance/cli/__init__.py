"""The command line `appliance`, one file per group of commands.

These files import click and little else. A command imports its dependencies when it runs, so that a short command does
not load the web server.
"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from appliance import __version__
from appliance.cli.account import account
from appliance.cli.attention import attention
from appliance.cli.backup import backup, restore, verify
from appliance.cli.config import config
from appliance.cli.database import load_settings
from appliance.cli.dev import dev
from appliance.cli.domain import domain
from appliance.cli.feedback import feedback
from appliance.cli.inbound import inbound
from appliance.cli.install import install, uninstall
from appliance.cli.key import credential, key
from appliance.cli.mcp import mcp
from appliance.cli.messages import explain, message, request
from appliance.cli.options import CommandGroup, common
from appliance.cli.output import show
from appliance.cli.queue import pause, queue, resume
from appliance.cli.ramp import ramp
from appliance.cli.send_test import send_test
from appliance.cli.serve import serve
from appliance.cli.setup import setup
from appliance.cli.status import doctor, health, show_status
from appliance.cli.store import node, store, upgrade
from appliance.cli.suppressions import suppression
from appliance.cli.template import template
from appliance.cli.user import audit, user
from appliance.cli.webhook import webhook
from appliance.errors import start_failure

PROGRAM_NAME, COMPLETE_VARIABLE = "appliance", "_APPLIANCE_COMPLETE"  # which click reads under this name
ALIASES = {
    "cancel": "queue cancel",
    "messages": "message list",
    "nodes": "node",
    "requests": "request",
    "reschedule": "queue reschedule",
    "suppressions": "suppression",
}  # earlier and short spellings


class _Program(CommandGroup):
    """The group of all commands. Its help lists the commands of subgroups too; a bug is one line, not a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.Abort:  # Ctrl-C at a question; a command changes nothing before its questions
            click.echo("\nStopped. Nothing was changed.", err=True)
            raise click.exceptions.Exit(130) from None
        except (click.ClickException, click.exceptions.Exit, BrokenPipeError):
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


# Values of arguments, for the example of a command whose help shows only text.
SAMPLES = {"NAME": "acme", "DOMAIN": "acme.example", "ADDRESS": "ada@example.net", "EMAIL": "ann@acme.example"}
SAMPLES |= {"ALIAS": "welcome", "POOL": "google", "MESSAGE": "msg_0019a85f3c6d7c2e4f1b0a9d8e7c6b5a", "NODE": "mail2"}
SAMPLES |= {"ID": "key_01k8hv1f7x5c4t9rq2m6b3n0pw", "MAIL": "fbm_0192f0c1d2e3f4a5b6c7d8e9f0a1b2c3"}
SAMPLES |= {"FILE": "/var/backups/appliance/2026-11-15.tar", "USERNAME": "smtp_01k8hv1f7x5c4t9rq2m6b3n0pw"}


def _with_example(name: str, command: click.Command) -> str:
    text = inspect.cleandoc(command.help or "")
    if "\nExample" not in text:
        arguments = [param.metavar or param.human_readable_name for param in command.params if param.required]
        words = [SAMPLES.get(word, word) for word in arguments if not word.startswith("-")]
        text += f"\n\nExample:\n  {' '.join([PROGRAM_NAME, name, *words])}"
    # click keeps the lines of a paragraph that starts with this mark.
    return re.sub(r"^(Examples?:)$", "\b\n\\1", text, flags=re.MULTILINE)


main = _Program(
    PROGRAM_NAME,
    """A self-hosted transactional-email server in one program.

\b
For a first look, in an empty directory:
  appliance serve

\b
To set everything up, from the settings to a first delivered message:
  sudo appliance setup

\b
To add another sender (the server may be running or not):
  echo 'a long password' | appliance account create acme owner@acme.example --password-stdin
  appliance domain add --account acme acme.example
  appliance key create --account acme --scope full

\b
To run it as a systemd service:
  sudo appliance install --hostname mail.example.com

\b
To follow mail, and to find what prevents delivery:
  appliance status
  appliance send-test you@example.net --wait
  appliance queue
  appliance message list --to ADDRESS
  appliance explain MESSAGE|ADDRESS
  appliance doctor

Every command has --help. Exit codes: 0 success, 1 failure (one line says why), 2 wrong usage.
""",
    ALIASES,
)
main.context_settings = {"help_option_names": ["-h", "--help"]}
click.version_option(__version__, "--version", "-V", prog_name=PROGRAM_NAME, message="%(prog)s %(version)s")(main)


@click.command()
@common
def version() -> None:
    """Show the version of this program."""
    show({"version": __version__}, f"{PROGRAM_NAME} {__version__}")


@click.command("help")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
def show_help(words: tuple[str, ...]) -> None:
    """Show the help of a command, or of this program."""
    main.main([*words, "--help"], prog_name=PROGRAM_NAME)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@common
def completion(shell: str) -> None:
    """Print the script that completes commands, options and names, such as those of accounts and domains, in SHELL.

    Examples:
      source <(appliance completion bash)
      appliance completion bash > /etc/bash_completion.d/appliance
      appliance completion zsh > "${fpath[1]}/_appliance"
      appliance completion fish > ~/.config/fish/completions/appliance.fish
    """
    from click.shell_completion import get_completion_class

    completer = get_completion_class(shell)
    assert completer is not None  # noqa: S101 - click has these three
    complete = completer(main, {}, PROGRAM_NAME, COMPLETE_VARIABLE)
    # Not `source()`, which starts a bash to learn its version.
    script = complete.source_template % complete.source_vars()
    show({"shell": shell, "script": script}, script)


# In the order of the help.
_COMMANDS: tuple[click.Command, ...] = (setup, serve, dev, show_status, attention, account, user, domain, credential)
_COMMANDS += (
    key,
    suppression,
    webhook,
    template,
    queue,
    message,
    request,
    explain,
    feedback,
    inbound,
    audit,
    send_test,
)
_COMMANDS += (pause, resume, ramp, node)
_COMMANDS += (backup, verify, restore, store, upgrade, config, doctor, health, install, uninstall, completion, mcp)
for _command in (*_COMMANDS, version, show_help):
    main.add_command(_command)
for _name, _command in leaves(main):
    _command.help = _with_example(_name, _command)
