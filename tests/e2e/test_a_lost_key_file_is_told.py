"""A start without the key file, on a database that has secrets: it goes on, and says so."""

from pathlib import Path

import pytest

from tests.running_appliance import appliance, command


@pytest.mark.sqlite_only  # nodes of one PostgreSQL have the same key file, and do not start without it
def test_a_start_without_its_key_file_says_what_is_lost(tmp_path: Path) -> None:
    """Nothing is said where no secret was stored yet, or the key is there; else there is one error, with what to do."""
    with appliance(tmp_path) as running:
        assert running.complaints() == []
        command(running.config_file, "domain", "rotate", running.account.name, running.account.domain)
        running.terminate()
        running.start()
        assert running.complaints() == []
        running.terminate()
        (running.data_dir / "appliance.key").unlink()
        running.start()
        (complaint,) = running.complaints()
    assert "key file missing" in complaint
