"""In charge of the lock on a data directory."""

from pathlib import Path

import pytest

from appliance.single import AlreadyRunning, only_server


def test_a_second_server_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    """While one holds the directory another is told so, and may come once it has gone."""
    with only_server(tmp_path), pytest.raises(AlreadyRunning, match="another server runs"), only_server(tmp_path):
        pytest.fail("two servers at once")
    with only_server(tmp_path):
        assert (tmp_path / "appliance.lock").stat().st_mode & 0o077 == 0
