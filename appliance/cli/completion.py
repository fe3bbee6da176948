"""`appliance completion`: the script that completes commands and options in a shell."""

import click

from appliance.cli.options import common
from appliance.cli.output import show

PROGRAM_NAME, COMPLETE_VARIABLE = "appliance", "_APPLIANCE_COMPLETE"  # which click reads under this name


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@common
def completion(shell: str, as_json: bool) -> None:
    """Print the completion script for SHELL.

    Examples:
      source <(appliance completion bash)
      appliance completion bash > /etc/bash_completion.d/appliance
      appliance completion zsh > "${fpath[1]}/_appliance"
      appliance completion fish > ~/.config/fish/completions/appliance.fish
    """
    from click.shell_completion import get_completion_class

    completer = get_completion_class(shell)
    assert completer is not None  # noqa: S101 - click has these three
    complete = completer(click.get_current_context().find_root().command, {}, PROGRAM_NAME, COMPLETE_VARIABLE)
    # Not `source()`, which starts a bash to learn its version.
    script = complete.source_template % complete.source_vars()
    show(as_json, {"shell": shell, "script": script}, script)
