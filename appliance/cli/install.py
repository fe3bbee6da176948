"""`appliance install` and `appliance uninstall`: this program as a systemd service."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from appliance.cli.options import common, named_config
from appliance.cli.output import show, system_text

if TYPE_CHECKING:
    from appliance.system.service_plan import Installation, Program
    from appliance.system.service_steps import InstallStep

RUNNING_SYSTEMD = Path("/run/systemd/system")  # sd_booted(3)

dry_run_option = click.option("--dry-run", is_flag=True, help="Show every step and every file; change nothing.")
root_option = click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False, exists=True, resolve_path=True),
    default=Path("/"),
    metavar="DIR",
    help="Work below this directory, for an image that is being built; nothing is started.",
)


@click.command()
@click.option(
    "--hostname", metavar="NAME", default="", help="For a first configuration file: this machine's mail name."
)
@click.option("--no-start", is_flag=True, help="Start it with the next boot, not now.")
@root_option
@dry_run_option
@common
def install(hostname: str, no_start: bool, root: Path, dry_run: bool, as_json: bool) -> None:
    """Make this program a systemd service and start it; of a new version: upgrade.

    Writes the unit, its user and its directories, and /etc/appliance/config.toml if there is none. Run it as root. The
    single binary is copied to /usr/local/bin; a virtual environment stays where it is. With --config the service uses
    that file.

    \b
    Examples:
      ./appliance install --dry-run
      sudo ./appliance install --hostname mail.example.com
    """
    from appliance.system import service_plan as plan

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
        click.echo("done; the service starts when that system boots")
        return
    state = "runs; systemctl status appliance shows it" if target.start else "is ready: systemctl start appliance"
    click.echo(f"\nThe service {state}. Its settings: {target.config_file}\nNext, account, domain and DNS:\n")
    click.echo("  sudo appliance setup")


@click.command()
@click.option("--purge", is_flag=True, help="Also delete the settings and all mail and accounts.")
@root_option
@dry_run_option
@common
def uninstall(purge: bool, root: Path, dry_run: bool, as_json: bool) -> None:
    """Stop the service and take it off this machine; settings and mail stay.

    What `appliance install` has put there is removed. /etc/appliance and /var/lib/appliance are kept, so that a later
    installation goes on where this one ended; --purge deletes them for good. The user appliance stays.

    \b
    Examples:
      sudo appliance uninstall
      sudo appliance uninstall --purge --dry-run
    """
    from appliance.system import service_plan as plan

    target = plan.Installation(root)
    _check_no_package(target)
    if not target.at(plan.UNIT_FILE).exists() and not purge:
        raise click.ClickException(f"{target.at(plan.UNIT_FILE)} is not there: nothing was installed")
    _check_allowed(target, dry_run)
    _carry_out(plan.uninstall(target, purge=purge), as_json, dry_run)


def _program() -> "Program":
    from appliance.system.service_plan import Program

    if getattr(sys, "frozen", False):
        executable = Path(sys.executable).resolve()
        if Path(sys._MEIPASS) == executable.parent / "_internal":  # type: ignore[attr-defined]  # PyInstaller's
            raise click.ClickException("this program came with the Debian package, which has set everything up already")
        return Program(executable, single_file=True)
    script = Path(sys.executable).with_name("appliance")
    if not script.is_file():
        raise click.ClickException(f"{script} is not there: install the package into a virtual environment first")
    return Program(script, single_file=False)


def _installation(root: Path, hostname: str, *, start: bool) -> "Installation":
    from dataclasses import replace

    from appliance.config.load import load
    from appliance.config.settings import ConfigError
    from appliance.config.values import is_host_name
    from appliance.system.service_plan import CONFIG_FILE, DATA_DIR, Installation

    if hostname and not is_host_name(hostname):
        raise click.BadParameter(f"{hostname!r} is not a host name", param_hint="--hostname")
    target = Installation(root, Path(os.path.abspath(named_config() or CONFIG_FILE)), DATA_DIR, hostname, start)
    file = target.at(target.config_file)
    try:
        return replace(target, data_dir=load(file, {}, Path("/")).server.data_dir) if file.exists() else target
    except ConfigError as error:
        raise click.ClickException(str(error)) from None


def _check_no_package(target: "Installation") -> None:
    """Two installations would share one data directory; removing one would take it from the other."""
    from appliance.system.service_plan import PACKAGES_UNIT_FILE

    if target.at(PACKAGES_UNIT_FILE).exists():
        raise click.ClickException("the Debian package is installed here: upgrade, remove or purge it with apt")


def _check_allowed(target: "Installation", dry_run: bool) -> None:
    if dry_run or target.elsewhere:
        return
    if os.geteuid() != 0:
        raise click.ClickException("only root may do this: try it with sudo, or look first with --dry-run")
    if not RUNNING_SYSTEMD.is_dir():
        raise click.ClickException("systemd does not run here; `appliance serve` runs the server without it")


def _carry_out(steps: "Iterable[InstallStep]", as_json: bool, dry_run: bool) -> None:
    """Show the steps, and do them unless it is a dry run; stop at the first that fails."""
    from appliance.system.service_steps import StepFailed

    done = []
    # The whole list first: no step may depend on what an earlier one has changed.
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
