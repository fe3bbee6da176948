"""Ports for servers that a test starts by number.

They lie below the range from which the kernel gives ports to outgoing connections and to listeners without a number
of their own: so between the choice and the start of the server no connection of another test takes the port, and a
client that tries until the server listens never connects to itself.
"""

import random
import socket
from itertools import cycle

_LOWEST, _KERNELS_OWN = 16384, 32768
_candidates = cycle(random.sample(range(_LOWEST, _KERNELS_OWN), _KERNELS_OWN - _LOWEST))


def free_port() -> int:
    for port in _candidates:
        with socket.socket() as probe:
            try:
                probe.bind(("0.0.0.0", port))
            except OSError:
                continue
            return port
    raise AssertionError("a cycle does not end")
