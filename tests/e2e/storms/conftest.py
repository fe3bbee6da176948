"""What bad machines are made of."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.storms.small_disk import SmallDisk, mounted, run_as_root_of_a_namespace


@pytest.fixture
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallDisk]:
    """A small disk, for the data directory of a program whose directory is `tmp_path`."""
    if os.geteuid() != 0:
        run_as_root_of_a_namespace(request.node.nodeid, tmp_path)
    with mounted(tmp_path / "data") as made:
        yield made
