"""trio-asyncio can be imported on a Python whose asyncio lacks the classes that 3.14 removed."""

import subprocess
import sys

# On 3.11 to 3.13 this makes asyncio look like that of 3.14; there it changes nothing.
LIKE_3_14 = """
import asyncio, asyncio.events
if hasattr(asyncio.events, "BaseDefaultEventLoopPolicy"):
    asyncio.events._BaseDefaultEventLoopPolicy = asyncio.events.BaseDefaultEventLoopPolicy
    del asyncio.events.BaseDefaultEventLoopPolicy
    asyncio.__dict__.pop("AbstractChildWatcher", None)
"""


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LIKE_3_14 + code], capture_output=True, text=True, timeout=60, check=False
    )


def test_trio_asyncio_needs_the_removed_names() -> None:
    """When this fails, trio-asyncio supports Python 3.14 by itself: delete appliance/submission/compat.py."""
    assert "AttributeError" in run_python("import trio_asyncio").stderr


def test_the_loop_opens_and_asyncio_is_left_as_it_was() -> None:
    """The supplied names are gone after the import."""
    run = run_python("""
import trio
from appliance.submission.compat import open_loop
assert not hasattr(asyncio.events, "BaseDefaultEventLoopPolicy")
assert not hasattr(asyncio, "AbstractChildWatcher")
async def main():
    async with open_loop():
        print("opened")
trio.run(main)
""")
    assert (run.stdout, run.stderr) == ("opened\n", "")
