"""Free TCP ports for servers that the agent starts."""

import random
import socket

# Below the range from which kernels take the ports of outgoing connections (Linux 32768, IANA 49152): a port found
# free stays free.
_FIRST, _LAST = 20000, 32000


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port of `host` that nobody listens on now.

    Somebody may take it before the caller does: whoever starts a server on it starts it again on another if that
    happens.

    Raises:
        OSError: None of 200 tries was free.
    """
    for _ in range(200):
        port = random.randint(_FIRST, _LAST)  # noqa: S311 - not a secret
        with socket.socket() as probe:
            # Without SO_REUSEADDR a port that is still in TIME_WAIT counts as taken, which costs only another try.
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise OSError(f"found no free port between {_FIRST} and {_LAST} on {host}")
