"""The peer of the accept benchmark: an empty Quart-Trio JSON endpoint on stock hypercorn."""

import sys
from typing import Any

import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from quart_trio import QuartTrio

app = QuartTrio(__name__)


@app.post("/emails")
async def empty() -> dict[str, Any]:
    return {"ok": True}


def main() -> None:
    config = Config()
    config.bind = [f"127.0.0.1:{sys.argv[1]}"]
    trio.run(serve, app, config)


if __name__ == "__main__":
    main()
