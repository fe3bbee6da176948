"""`appliance health`: what a container's engine is told of the server."""

from pathlib import Path
from urllib.parse import urlsplit

from click.testing import CliRunner, Result

from appliance.cli import main
from tests.docs.test_cli import documented
from tests.e2e.raw import certified
from tests.ports import free_port
from tests.running_appliance import appliance


def asked(config: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["health", "--config", str(config), *words])


def test_a_server_that_runs_is_up(tmp_path: Path) -> None:
    """Exit code 0 and the documented object while it runs, 1 and one line afterwards."""
    config = tmp_path / "here.toml"
    with appliance(tmp_path) as running:
        bind = urlsplit(running.url).netloc
        config.write_text(f'[http]\nbind = ["{bind}"]\n')
        ran = asked(config, "--json")
        assert (ran.exit_code, ran.stderr) == (0, "")
        assert ran.stdout == f'{{"address": "{bind}", "ok": true}}\n'
        assert documented("health").keys() == {"address", "ok"}
        assert asked(config).stdout == f"The server at {bind} is up.\n"
        assert running.terminate() == 0
    ran = asked(config)
    assert (ran.exit_code, ran.stdout, ran.stderr.count("\n")) == (1, "", 1)
    assert f"does not answer at {bind}" in ran.stderr


def test_every_address_means_this_machine(tmp_path: Path) -> None:
    """A server that listens everywhere is asked over loopback; a port without a server is told."""
    port = free_port()
    config = tmp_path / "config.toml"
    config.write_text(f'[http]\nbind = ["0.0.0.0:{port}"]\n')
    assert f"does not answer at 0.0.0.0:{port}" in asked(config).stderr


def test_a_certificate_is_not_judged(tmp_path: Path) -> None:
    """A server that speaks TLS is asked so, and its certificate need not be one that this machine trusts."""
    settings, _ = certified(tmp_path)
    config = tmp_path / "here.toml"
    with appliance(tmp_path, http=settings) as running:
        config.write_text(f'[http]\nbind = ["{urlsplit(running.url).netloc}"]\n{settings}\n')
        assert asked(config).exit_code == 0
        assert running.terminate() == 0
