"""Entry point of `python -m appliance`, the installed script and the single binary."""

import sys
from typing import Any

from appliance.errors import start_failure


def start(**options: Any) -> None:
    """Run the command line; a broken installation is one line on stderr instead of a traceback."""
    try:
        from appliance.cli import main
    except Exception as error:
        sys.exit(f"Error: {start_failure(error)}")
    main(**options)


if __name__ == "__main__":
    start()
