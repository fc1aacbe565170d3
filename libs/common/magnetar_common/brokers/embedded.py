"""The embedded broker: pulsar-lite, one binary from PyPI, no Java and no Docker.

It lacks exclusive producers, compaction, the admin interface and lasting subscription cursors: made for one scheduler
on one machine, as `magnetar up` runs it.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from magnetar_common.brokers.broker import BrokerUnavailable
from magnetar_common.brokers.handshake import answers_pulsar
from magnetar_common.brokers.ports import free_ports
from magnetar_common.brokers.process import BrokerProcess

_READY_SECONDS = 15.0


def unavailable() -> str | None:
    """Why this machine cannot run the embedded broker, or None when it can."""
    try:
        _binary()
    except BrokerUnavailable as reason:
        return str(reason)
    return None


def start(data: Path, *, port: int | None = None) -> BrokerProcess:
    """Start the embedded broker on 127.0.0.1 and return once it answers Pulsar's handshake.

    Args:
        data: Its folder: messages, ``broker.log`` and the lock. A broker started here again has the messages still.
        port: Where it listens; a free port by default.

    Raises:
        BrokerUnavailable: pulsar-lite is not installed.
        BrokerError: Another broker runs on the folder, or this one does not start.
    """
    binary = _binary()
    port = port or free_ports(1)[0]
    return BrokerProcess(
        "embedded",
        data,
        [binary, "--addr", f"127.0.0.1:{port}", "--db-path", "broker.db", "--log-level", "warn"],
        service_url=f"pulsar://127.0.0.1:{port}",
        admin_url=None,
        ready=lambda: answers_pulsar("127.0.0.1", port),
        ready_seconds=_READY_SECONDS,
    )


def _binary() -> str:
    try:
        finder = importlib.import_module("pulsar_lite.binary_finder")
        return str(finder.find_pulsar_lite_binary())
    except ModuleNotFoundError:
        raise BrokerUnavailable(
            "pulsar-lite is not installed: pip install 'magnetar[embedded]' (Linux x86_64 and macOS arm64)"
        ) from None
    except FileNotFoundError:
        raise BrokerUnavailable("the pulsar-lite package holds no binary for this platform") from None
