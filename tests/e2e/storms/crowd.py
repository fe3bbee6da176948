"""How many come to a mail server at the same time: whether what waited comes as a burst."""

from dataclasses import dataclass

import trio


@dataclass
class Crowd:
    """How many transactions a server has seen at once, at most."""

    present: int = 0
    most: int = 0

    async def __call__(self, stream: trio.abc.Stream) -> None:
        self.present += 1
        self.most = max(self.most, self.present)
        await trio.sleep(0.1)
        self.present -= 1
        await stream.send_all(b"250 2.0.0 queued\r\n")
