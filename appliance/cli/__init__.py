"""The command line `appliance`, one file per group of commands.

A command's file is imported when the command is used. These files import click and little else; a command imports its
dependencies when it runs, so that a short command does not load the web server.
"""

import inspect
import re
from collections.abc import Iterator, MutableMapping
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from appliance import __version__
from appliance.cli.database import load_settings
from appliance.cli.options import CommandGroup, common
from appliance.cli.output import show
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


# In the order of the help: the file of each command ("": this one), and its name there.
_PLACES = {
    "setup": ("setup", "setup"),
    "serve": ("serve", "serve"),
    "dev": ("dev", "dev"),
    "status": ("status", "show_status"),
    "attention": ("attention", "attention"),
    "account": ("account", "account"),
    "user": ("user", "user"),
    "domain": ("domain", "domain"),
    "credential": ("key", "credential"),
    "key": ("key", "key"),
    "suppression": ("suppressions", "suppression"),
    "webhook": ("webhook", "webhook"),
    "template": ("template", "template"),
    "queue": ("queue", "queue"),
    "message": ("messages", "message"),
    "request": ("messages", "request"),
    "explain": ("messages", "explain"),
    "feedback": ("feedback", "feedback"),
    "inbound": ("inbound", "inbound"),
    "audit": ("user", "audit"),
    "send-test": ("send_test", "send_test"),
    "pause": ("queue", "pause"),
    "resume": ("queue", "resume"),
    "ramp": ("ramp", "ramp"),
    "node": ("store", "node"),
    "backup": ("backup", "backup"),
    "verify": ("backup", "verify"),
    "restore": ("backup", "restore"),
    "store": ("store", "store"),
    "upgrade": ("store", "upgrade"),
    "config": ("config", "config"),
    "doctor": ("status", "doctor"),
    "health": ("status", "health"),
    "install": ("install", "install"),
    "uninstall": ("install", "uninstall"),
    "completion": ("", "completion"),
    "mcp": ("mcp", "mcp"),
    "version": ("", "version"),
    "help": ("", "show_help"),
}


class _Commands(MutableMapping[str, click.Command]):
    """The commands by name. Imports a command's file when the command is looked up."""

    def __init__(self) -> None:
        self._loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._loaded:
            file, function = _PLACES[name]
            self[name] = getattr(import_module(f"{__name__}.{file}" if file else __name__), function)
        return self._loaded[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        for full_name, leaf in _leaves(name, command):
            leaf.help = _with_example(full_name, leaf)
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]  # imported again at its next use

    def __iter__(self) -> Iterator[str]:
        return iter(_PLACES)

    def __len__(self) -> int:
        return len(_PLACES)


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
        except ImportError as error:
            raise click.ClickException(start_failure(error)) from None
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


def leaves(group: click.Group) -> Iterator[tuple[str, click.Command]]:
    """Yield every command that is not a group, by its full name."""
    for name, command in group.commands.items():
        yield from _leaves(name, command)


def _leaves(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for below, leaf in leaves(command):
            yield f"{name} {below}", leaf
    else:
        yield name, command


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
main.commands = _Commands()
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
