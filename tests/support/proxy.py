"""A network that fails when told to: a TCP proxy on loopback.

A standalone Pulsar sends clients back to the address that they came by, so that whoever connects to the proxy stays on
it. Each client under test gets a proxy of its own; everybody else goes straight to the broker.
"""

import contextlib
import socket
import struct
import threading
from typing import Literal, Self

Direction = Literal["up", "down"]
"""``up``: from the client to the broker."""

_CHUNK = 65_536
_ABORT = struct.pack("ii", 1, 0)  # SO_LINGER with 0 s: close() sends a reset, and not what is queued


class Proxy:
    """Forwards to ``host:port``. As a context manager it is closed at the end, with every connection.

    Args:
        target: ``pulsar://host:port``.
    """

    def __init__(self, target: str) -> None:
        scheme, _, place = target.partition("://")
        host, _, port = place.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.url = f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}"
        self._changed = threading.Condition()
        self._held: set[Direction] = set()
        self._refusing = False
        self._delay = 0.0
        self.passed: dict[Direction, int] = {"up": 0, "down": 0}
        """Bytes forwarded so far."""
        self._sockets: set[socket.socket] = set()
        self._closed = threading.Event()
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def heal(self) -> None:
        """Forward again: what was held arrives late, in order, as after a partition."""
        with self._changed:
            self._held.clear()
            self._refusing = False
            self._delay = 0.0
            self._changed.notify_all()

    def hold(self, *directions: Direction) -> None:
        """Let nothing through in these directions (default: both), and leave every connection open."""
        with self._changed:
            self._held.update(directions or ("up", "down"))

    def slow(self, seconds: float) -> None:
        """Make each piece (64 KiB at most) take this long."""
        self._delay = seconds

    def cut(self) -> None:
        """Reset every connection, and each new one at once, until :meth:`heal`."""
        self._refusing = True
        self.drop()

    def kill(self) -> None:
        """End every connection as the kernel does for a killed client: what was sent still arrives, and then the end.

        The client gets a reset, and each new connection of its own, too, until :meth:`heal`.
        """
        self._refusing = True
        with self._changed:
            sockets = list(self._sockets)
        for each in sockets:
            with contextlib.suppress(OSError):  # it was closed meanwhile
                if each.getsockname() == self._listener.getsockname():
                    each.shutdown(socket.SHUT_RD)

    def drop(self) -> None:
        """Reset every connection that there is."""
        with self._changed:
            sockets, self._sockets = self._sockets, set()
            self._changed.notify_all()
        for each in sockets:
            _abort(each)

    def close(self) -> None:
        """Stop, and end every connection."""
        self._closed.set()
        self._listener.close()
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing:
                _abort(client)
                continue
            try:
                broker = socket.create_connection(self._target, timeout=5)
            except OSError:  # it is down: so is this way to it
                _abort(client)
                continue
            broker.settimeout(None)
            for each in (client, broker):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._changed:
                self._sockets |= {client, broker}
            ways: tuple[tuple[Direction, socket.socket, socket.socket], ...] = (
                ("up", client, broker),
                ("down", broker, client),
            )
            for way in ways:
                threading.Thread(target=self._forward, args=way, name=f"proxy {way[0]}", daemon=True).start()

    def _forward(self, direction: Direction, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                with self._changed:
                    self._changed.wait_for(lambda: direction not in self._held or source not in self._sockets)
                if self._delay:
                    self._closed.wait(self._delay)
                with contextlib.suppress(OSError):  # it is gone: drain what the other has to say, until it knows
                    target.sendall(data)
                with self._changed:
                    self.passed[direction] += len(data)
        with contextlib.suppress(OSError):
            if direction == "up":  # the client has ended: the broker gets all that it sent, and then the end
                target.shutdown(socket.SHUT_WR)
                _abort(source)
                return
        with self._changed:
            self._sockets -= {source, target}
        _abort(source)
        _abort(target)


def _abort(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        each.shutdown(socket.SHUT_RD)  # wakes whoever reads it
    each.close()
