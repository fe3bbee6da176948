"""A wall clock that tests set while the program runs: libfaketime stands between it and the system's."""

from dataclasses import dataclass
from pathlib import Path

from tests.programs import require
from tests.running_appliance import PROGRAM


@dataclass(frozen=True)
class WrongClock:
    """The clock of programs that are started with `program`: the system's, but for what was set."""

    library: str
    file: Path

    @property
    def program(self) -> tuple[str, ...]:
        settings = {
            "LD_PRELOAD": self.library,
            "FAKETIME_TIMESTAMP_FILE": str(self.file),
            "FAKETIME_NO_CACHE": "1",  # what was set is seen at once
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",  # it cannot be set
            "NO_FAKE_STAT": "1",
        }
        return ("env", *(f"{name}={value}" for name, value in settings.items()), *PROGRAM)

    def set_by(self, days: int) -> None:
        new = self.file.with_suffix(".new")
        new.write_text(f"{days:+d}d\n")
        new.replace(self.file)  # so that no process reads half of it


def wrong_clock(directory: Path) -> WrongClock:
    """One that is right, for now; skips the test where there is no libfaketime."""
    made = WrongClock(require("faketime"), directory / "clock")
    made.set_by(0)
    return made
