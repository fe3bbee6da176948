"""New SQLite databases of tests are copies of one that has taken all steps, which are most of what a new one costs.

The steps are taken once in each process that runs tests, and by what tests the steps themselves.
"""

import os
import tempfile
from functools import cache, partial
from pathlib import Path
from typing import Any

from appliance import store
from appliance.store.sqlite.migrate import Migration
from appliance.store.sqlite.upgrade import bring_up_to_date


@cache
def _made_by(steps: tuple[Migration, ...]) -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, store.FILE_NAME)
        bring_up_to_date(path, 0, is_server=False)
        return path.read_bytes()


def _bring_up_to_date(path: Path, now: int, *, may_upgrade: bool = True, **options: Any) -> None:
    from appliance.store.sqlite import migrate  # some tests replace what it knows

    if may_upgrade and not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(path, "xb", opener=partial(os.open, mode=0o600)) as file:
            file.write(_made_by(tuple(migrate.migrations())))
    bring_up_to_date(path, now, may_upgrade=may_upgrade, **options)


def use_copies() -> None:
    store.bring_up_to_date = _bring_up_to_date  # type: ignore[attr-defined]
