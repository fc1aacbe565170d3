"""The first exchange of Pulsar's binary protocol, as a probe that needs no client and leaves no trace on the broker."""

from __future__ import annotations

import socket
import struct

# PulsarApi.proto: BaseCommand{type = CONNECT, connect = {client_version = "magnetar", protocol_version = 19}}
_CONNECT_BODY = b"\x0a\x08magnetar" + b"\x20\x13"
_CONNECT = b"\x08\x02" + b"\x12" + bytes([len(_CONNECT_BODY)]) + _CONNECT_BODY
_CONNECTED = b"\x08\x03"  # BaseCommand{type = CONNECTED}; protobuf writes fields in order


def answers_pulsar(host: str, port: int, timeout: float = 1.0) -> bool:
    """Whether a Pulsar broker at this address completes the protocol's handshake.

    An open port is not enough: it may be open before the broker serves, or be somebody else's.

    Args:
        host: Name or address.
        port: The broker's service port.
        timeout: Seconds for connecting, and again for the answer.
    """
    frame = struct.pack(">II", len(_CONNECT) + 4, len(_CONNECT)) + _CONNECT
    try:
        with socket.create_connection((host, port), timeout=timeout) as connection:
            connection.sendall(frame)
            answer = connection.makefile("rb").read(10)
    except OSError:
        return False
    return answer[8:] == _CONNECTED
