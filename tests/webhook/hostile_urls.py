"""URLs and names that must never be posted to: this machine, private networks, the service itself, or two at once.

`{port}` is where a canary listens on every loopback address.
"""

import json
from pathlib import Path
from typing import Any

_HOSTILE: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text())
SPELLINGS: list[str] = [
    *_HOSTILE["spellings"],
    "https://" + "a" * 64 + ".example.com:{port}/",
    "https://" + "a." * 130 + "example.com:{port}/",
    "https://hooks.example.com:{port}/" + "a" * 2100,
]
NAMES: dict[str, dict[str, list[str]]] = _HOSTILE["names"]  # with their DNS records
OWN_NAMES = frozenset({"mail.example.net", "own.example", "*.own.example"})
