"""Putting the runtime underneath the production modules: by identity, in their namespaces, and back afterwards.

No production code is written for the simulation. Whatever a ``magnetar_*`` module knows as ``time``, ``threading``,
``queue.SimpleQueue``, … is replaced where it is known; so are the bus, the inference server, the disk, and the HTTP
port that every service opens.
"""

import queue
import random
import secrets
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import httpx
import structlog
from prometheus_client.metrics import MetricWrapperBase

import magnetar_agent.main
import magnetar_projector.main
import magnetar_registry.main
import magnetar_scheduler.main
from magnetar_agent import agent, presence
from magnetar_agent.artifacts import fetch
from magnetar_agent.devices import Devices
from magnetar_agent.servers import beside
from magnetar_common import bus, leases, table_view
from magnetar_common.ops import OpsServer, configure_logging
from magnetar_common.schema_registry import SchemaRegistry
from magnetar_events.codec import Codec
from tests.simulation import primitives
from tests.simulation.runtime import Hub

POLLS = {(agent, "POLL_S"): 5.0, (presence, "CHECK_S"): 0.5, (table_view, "POLL_S"): 2.0}
"""How long idle loops wait, made longer: a message ends these waits anyway, and each turn costs."""

_SERVICES = (magnetar_agent.main, magnetar_projector.main, magnetar_registry.main, magnetar_scheduler.main, leases)
"""Imported, so that their modules are there to be put on the runtime."""


class World(Protocol):
    """What the processes find around them; each is asked on behalf of the process that runs."""

    def connect(self, settings: object = None) -> Any:
        """Connect to the broker."""

    def beside(self, settings: Any, gpus: object, changed: Callable[[], None]) -> Any:
        """Return the inference server beside an agent."""

    def fetch(self, uri: str, options: object, into: Path, **how: Any) -> Any:
        """Fetch an artifact."""

    def devices(self) -> Any:
        """Return the devices of the host."""


class _Log:
    """A logger whose lines are events of the trace."""

    def _told(self, event: str, **fields: object) -> None:
        hub = Hub.current
        who = hub.task.process.name if hub.task is not None else "hub"
        error = fields.pop("exc_info", None)
        if isinstance(error, BaseException):
            fields["error"] = f"{type(error).__name__}: {error}"
        if not hub.closing:
            hub.note(who, event, **fields)

    debug = info = warning = error = exception = critical = _told

    def bind(self, **_: object) -> "_Log":
        return self


class _Metric:
    """A metric that nobody looks at."""

    def labels(self, *_: object, **__: object) -> "_Metric":
        return self

    def inc(self, value: float = 1) -> None:
        return

    dec = observe = set = inc

    def time(self) -> Any:
        return nullcontext()


class _Ops:
    """An HTTP port that nobody calls."""

    port = 1
    url = "http://127.0.0.1:1"

    def __init__(self, *_: object, **__: object) -> None:
        return

    def start(self) -> "_Ops":
        return self

    def stop(self) -> None:
        return


class _SchemaRegistry:
    """Every message here names its own schema."""

    def __init__(self, *_: object) -> None:
        return

    def resolve(self, message: object) -> object:
        return message

    def close(self) -> None:
        return


_HTTPX = SimpleNamespace(
    Client=lambda **_: SimpleNamespace(close=lambda: None),
    Timeout=lambda *_, **__: None,
    TransportError=httpx.TransportError,
)

_SHUTIL = SimpleNamespace(disk_usage=lambda _: SimpleNamespace(free=10**12))


def _replacements(world: "World") -> dict[int, Any]:
    pairs: list[tuple[object, object]] = [
        (time, primitives.time),
        (threading, primitives.threading),
        (queue, primitives.queue),
        (random, primitives.random),
        (uuid, primitives.uuid),
        (secrets, primitives.secrets),
        (queue.SimpleQueue, primitives.SimpleQueue),
        (queue.Queue, primitives.SimpleQueue),
        (threading.Thread, primitives.Thread),
        (threading.Event, primitives.Event),
        (threading.Lock, primitives.Lock),
        (threading.RLock, primitives.RLock),
        (threading.Condition, primitives.Condition),
        (time.monotonic, primitives.time.monotonic),
        (time.time, primitives.time.time),
        (time.sleep, primitives.time.sleep),
        (uuid.uuid4, primitives.uuid.uuid4),
        (OpsServer, _Ops),
        (SchemaRegistry, _SchemaRegistry),
        (httpx, _HTTPX),
        (shutil, _SHUTIL),
        (configure_logging, lambda *_, **__: None),
        (bus.connect, world.connect),
        (beside, world.beside),
        (fetch, world.fetch),
        (Devices, world.devices),
    ]
    return {id(real): simulated for real, simulated in pairs}


@contextmanager
def simulated(world: "World", spies: Mapping[tuple[Any, str], Callable[[Any], Any]]) -> Generator[None]:
    """Run the production modules on the runtime.

    Args:
        world: what stands in for the broker, the inference servers and the disk.
        spies: (object, attribute) → what makes its replacement from the original.
    """
    replacements = _replacements(world)
    changed: list[tuple[Any, str, Any]] = []

    def put(owner: Any, name: str, value: Any) -> None:
        changed.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    log, metric = _Log(), _Metric()
    lazy = type(structlog.get_logger())
    for module_name, module in list(sys.modules.items()):
        if not module_name.startswith("magnetar_"):
            continue
        for name, value in list(vars(module).items()):
            if id(value) in replacements:
                put(module, name, replacements[id(value)])
            elif isinstance(value, MetricWrapperBase):
                put(module, name, metric)
            elif name == "_log" and isinstance(value, lazy):
                put(module, name, log)
    for (owner, name), value in POLLS.items():
        put(owner, name, value)
    put(Codec, "decode", _remembering(Codec.decode))
    put(Codec, "decode_trusted", _remembering(Codec.decode_trusted))
    for (owner, name), spy in spies.items():
        put(owner, name, spy(getattr(owner, name)))
    try:
        yield
    finally:
        for owner, name, value in reversed(changed):
            setattr(owner, name, value)


def _remembering(decode: Callable[..., Any]) -> Callable[..., Any]:
    """Decode each payload once: nobody changes what comes out, and many read the same heartbeats and entries."""
    known: dict[tuple[int, bytes, str], Any] = {}

    def remembering(self: Any, payload: bytes, fingerprint: str) -> Any:
        key = (id(self), payload, fingerprint)
        found = known.get(key)
        if found is None:
            found = known[key] = decode(self, payload, fingerprint)
        return found

    return remembering
