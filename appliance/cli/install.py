"""`appliance install` and `appliance uninstall`: the systemd service."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from appliance.cli.database import config_errors
from appliance.cli.options import common, flag, named_config
from appliance.cli.output import show, system_text

if TYPE_CHECKING:
    from appliance.system.service import Installation, InstallStep, Program

RUNNING_SYSTEMD = Path("/run/systemd/system")  # sd_booted(3)

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
def install(hostname: str, no_start: bool, root: Path, dry_run: bool, as_json: bool) -> None:
    """Install this program as a systemd service, or upgrade the installed one, and start it. Run it as root.

    Writes the unit, its user and its directories, and /etc/appliance/config.toml if it does not exist. The single
    binary is copied to /usr/local/bin; a virtual environment stays in its place. With --config the service uses that
    file.

    \b
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
    _carry_out(plan.install(program, target), as_json, dry_run)
    if as_json or dry_run:
        return
    if target.elsewhere:
        click.echo("done; the service starts when the image boots")
        return
    state = "is running: systemctl status appliance" if target.start else "is ready: systemctl start appliance"
    click.echo(f"\nThe service {state}. Its settings: {target.config_file}\nNext, set up account, domain and DNS:\n")
    click.echo("  sudo appliance setup")


@click.command()
@flag("--purge", "Also delete the settings, all mail and all accounts.")
@root_option
@dry_run_option
@common
def uninstall(purge: bool, root: Path, dry_run: bool, as_json: bool) -> None:
    """Stop the service and remove it from this machine; settings and mail stay.

    Removes the files that `appliance install` wrote. /etc/appliance and /var/lib/appliance stay for a later
    installation, unless --purge deletes them. The user appliance stays.

    \b
    Examples:
      sudo appliance uninstall
      sudo appliance uninstall --purge --dry-run
    """
    from appliance.system import service as plan

    target = plan.Installation(root)
    _check_no_package(target)
    if not target.at(plan.UNIT_FILE).exists() and not purge:
        raise click.ClickException(f"{target.at(plan.UNIT_FILE)} does not exist: nothing is installed")
    _check_allowed(target, dry_run)
    _carry_out(plan.uninstall(target, purge=purge), as_json, dry_run)


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
    from dataclasses import replace

    from appliance.config.load import load
    from appliance.config.values import is_host_name
    from appliance.system.service import CONFIG_FILE, DATA_DIR, Installation

    if hostname and not is_host_name(hostname):
        raise click.BadParameter(f"{hostname!r} is not a host name", param_hint="--hostname")
    target = Installation(root, Path(os.path.abspath(named_config() or CONFIG_FILE)), DATA_DIR, hostname, start)
    file = target.at(target.config_file)
    with config_errors():
        return replace(target, data_dir=load(file, {}, Path("/")).server.data_dir) if file.exists() else target


def _check_no_package(target: "Installation") -> None:
    """Refuse a second installation: both would share one data directory, and removing one would break the other."""
    from appliance.system.service import PACKAGES_UNIT_FILE

    if target.at(PACKAGES_UNIT_FILE).exists():
        raise click.ClickException("the Debian package is installed here: upgrade, remove or purge it with apt")


def _check_allowed(target: "Installation", dry_run: bool) -> None:
    if dry_run or target.elsewhere:
        return
    if os.geteuid() != 0:
        raise click.ClickException("only root may do this: use sudo, or --dry-run to see the steps")
    if not RUNNING_SYSTEMD.is_dir():
        raise click.ClickException("systemd is not running; `appliance serve` runs the server without it")


def _carry_out(steps: "Iterable[InstallStep]", as_json: bool, dry_run: bool) -> None:
    """Print the steps, and carry them out unless `dry_run`; stop at the first failure."""
    from appliance.system.service import StepFailed

    done = []
    # The whole list first: no step may depend on a change by an earlier one.
    for step in list(steps):
        done.append(step.line)
        if not as_json:
            click.echo(step.line)
            if dry_run and step.content:
                click.echo("".join(f"    {line}" for line in step.content.splitlines(keepends=True)))
        if dry_run:
            continue
        try:
            step.do()
        except StepFailed as error:
            raise click.ClickException(str(error)) from None
        except OSError as error:
            raise click.ClickException(f"{error.filename}: {system_text(error)}") from None
    if as_json:
        show(True, {"dry_run": dry_run, "steps": done}, "")
