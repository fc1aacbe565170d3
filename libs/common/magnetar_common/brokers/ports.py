"""Ports for processes that we start."""

from __future__ import annotations

import random
import socket

_BELOW_EPHEMERAL = range(20_000, 32_000)
"""Linux gives outgoing connections ports from 32768 on: one of those could be taken while our broker is restarting."""


def free_ports(count: int) -> list[int]:
    """Return `count` different loopback TCP ports on which nobody listens now.

    They are drawn at random, so that two processes that ask at the same time rarely meet.
    """
    found: list[int] = []
    for port in random.sample(_BELOW_EPHEMERAL, len(_BELOW_EPHEMERAL)):
        if len(found) == count:
            return found
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
    msg = f"fewer than {count} free ports on 127.0.0.1 between {_BELOW_EPHEMERAL.start} and {_BELOW_EPHEMERAL.stop}"
    raise OSError(msg)
