"""`appliance install` and `appliance uninstall`: the systemd service."""

import os
import socket
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from appliance.cli.database import refusals
from appliance.cli.options import common, flag, is_json, named_config
from appliance.cli.output import file_errors, show

if TYPE_CHECKING:
    from appliance.system.service import Installation, InstallStep, Program

dry_run_option = flag("--dry-run", "Show every step and file without changing anything.")
root_option = click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False, exists=True, resolve_path=True),
    default=Path("/"),
    metavar="DIR",
    help="Root directory of an image to install into; nothing is started.",
)


@click.command()
@click.option("--hostname", metavar="NAME", default="", help="Host name to write into a new settings file.")
@flag("--no-start", "Start the service at the next boot instead of now.")
@root_option
@dry_run_option
@common
def install(hostname: str, no_start: bool, root: Path, dry_run: bool) -> None:
    """Install this program as a systemd service, or upgrade the installed one, and start it. Run it as root.

    Writes the unit, its user and its directories, and /etc/appliance/config.toml if it does not exist. The single
    binary is copied to /usr/local/bin; a virtual environment stays in its place. With --config the service uses that
    file.

    Examples:
      ./appliance install --dry-run
      sudo ./appliance install --hostname mail.example.com
    """
    from appliance.system import service as plan

    program = _program()
    target = _installation(root, hostname, start=not no_start)
    if reason := plan.fault(program, target, Path(sys.base_prefix)):
        raise click.ClickException(reason)
    _check_no_package(target)
    _check_allowed(target, dry_run)
    _carry_out(plan.install(program, target), dry_run)
    if is_json() or dry_run:
        return
    if target.elsewhere:
        click.echo("done; the service starts when the image boots")
        return
    state = "is running: systemctl status appliance" if target.start else "is ready: systemctl start appliance"
    click.echo(f"\nThe service {state}. Its settings: {target.config_file}\nNext, set up account, domain and DNS:\n")
    click.echo("  sudo appliance setup")


@click.command()
@flag("--purge", "Also delete the settings, all mail and all accounts.")
@flag("--yes", "With --purge: delete without asking for the host name.", "confirmed")
@root_option
@dry_run_option
@common
def uninstall(purge: bool, confirmed: bool, root: Path, dry_run: bool) -> None:
    """Stop the service and remove it from this machine; settings and mail stay.

    Removes the files that `appliance install` wrote. /etc/appliance and /var/lib/appliance stay for a later
    installation, unless --purge deletes them. It asks you to type the name of the host first. The user appliance stays.

    Examples:
      sudo appliance uninstall
      sudo appliance uninstall --purge --dry-run
      sudo appliance uninstall --purge --yes
    """
    from appliance.system import service as plan

    target = plan.Installation(root)
    _check_no_package(target)
    if not target.at(plan.UNIT_FILE).exists() and not purge:
        raise click.ClickException(f"{target.at(plan.UNIT_FILE)} does not exist: nothing is installed")
    _check_allowed(target, dry_run)
    if purge and not confirmed and not dry_run:
        _confirm_purge(target)
    _carry_out(plan.uninstall(target, purge=purge), dry_run)


def _program() -> "Program":
    from appliance.system.service import Program

    if getattr(sys, "frozen", False):
        executable = Path(sys.executable).resolve()
        if Path(sys._MEIPASS) == executable.parent / "_internal":  # type: ignore[attr-defined]  # PyInstaller's
            raise click.ClickException("this program is from the Debian package, which is installed completely")
        return Program(executable, single_file=True)
    script = Path(sys.executable).with_name("appliance")
    if not script.is_file():
        raise click.ClickException(f"{script} does not exist: install the package into a virtual environment first")
    return Program(script, single_file=False)


def _installation(root: Path, hostname: str, *, start: bool) -> "Installation":

    from appliance.config.load import load
    from appliance.config.values import is_host_name
    from appliance.system.service import CONFIG_FILE, DATA_DIR, Installation

    if hostname and not is_host_name(hostname):
        raise click.BadParameter(f"{hostname!r} is not a host name", param_hint="--hostname")
    target = Installation(root, Path(os.path.abspath(named_config() or CONFIG_FILE)), DATA_DIR, hostname, start)
    file = target.at(target.config_file)
    with refusals():
        return replace(target, data_dir=load(file, {}, Path("/")).server.data_dir) if file.exists() else target


def _check_no_package(target: "Installation") -> None:
    """Refuse a second installation: both would share one data directory, and removing one would break the other."""
    from appliance.system.service import PACKAGES_UNIT_FILE

    if target.at(PACKAGES_UNIT_FILE).exists():
        raise click.ClickException("the Debian package is installed here: upgrade, remove or purge it with apt")


def _check_allowed(target: "Installation", dry_run: bool) -> None:
    if dry_run or target.elsewhere:
        return
    from appliance.system.service import RUNNING_SYSTEMD

    if os.geteuid() != 0:
        raise click.ClickException("only root may do this: use sudo, or --dry-run to see the steps")
    if not RUNNING_SYSTEMD.is_dir():
        raise click.ClickException("systemd is not running; `appliance serve` runs the server without it")


def _confirm_purge(target: "Installation") -> None:
    """Ask for the name of the host, against a purge of the wrong machine."""
    host = target.root.name if target.elsewhere else socket.gethostname()
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError("--purge deletes all mail: add --yes to confirm")
    question = f"This deletes the settings, all mail and all accounts of {host}. Type the host name to confirm"
    typed = click.prompt(question, err=True)
    if typed != host:
        raise click.ClickException(f"{typed!r} is not the host name {host!r}: nothing was deleted")


def _carry_out(steps: "Iterable[InstallStep]", dry_run: bool) -> None:
    from appliance.system.service import StepFailed

    done = []
    # The whole list first: no step may depend on a change by an earlier one.
    for step in list(steps):
        done.append(step.line)
        if not is_json():
            click.echo(step.line)
            if dry_run and step.content:
                click.echo("".join(f"    {line}" for line in step.content.splitlines(keepends=True)))
        if dry_run:
            continue
        try:
            with file_errors():
                step.do()
        except StepFailed as error:
            raise click.ClickException(str(error)) from None
    if is_json():
        show({"dry_run": dry_run, "steps": done}, "")
