"""A stand to measure a whole Magnetar on: a tenant of a broker, real schedulers, and a simulated fleet, each a process."""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from magnetar_common.brokers import RunningBroker
from magnetar_common.bus import EARLIEST, LATEST, Bus, Reader, connect
from magnetar_common.settings import BusSettings
from magnetar_common.topics import MODEL_EVENTS, ROUTES, STATE_CHANGES
from magnetar_events import MODEL_EVENT, ROUTE, ModelEvent
from magnetar_events.codec import FINGERPRINT
from magnetar_events.requests import DeployModel
from magnetar_events.schemas import schema_json
from tests.support.brokers import settings_for
from tests.support.world import MIB, spec

PATIENCE_S = 300.0
"""What has not happened after this time (seconds) never will."""


class Child:
    """A process of the stand, and the lines that it writes."""

    def __init__(self, environment: dict[str, str], *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.facts = psutil.Process(self._process.pid)
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.put(line)

    def hear(self, part: str) -> list[str]:
        """Return the words of the next line with this in it."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            line = self.lines.get(timeout=max(0.1, deadline - time.monotonic()))
            if os.environ.get("MAGNETAR_DEBUG"):
                print(line, end="", file=sys.stderr)
            if part in line:
                return line.split()

    def reconnect(self) -> None:
        """Make a fleet register again, all at once."""
        self._process.send_signal(signal.SIGUSR1)

    @property
    def cpu_s(self) -> float:
        """CPU seconds that it has used so far."""
        times = self.facts.cpu_times()
        return times.user + times.system

    @property
    def memory(self) -> int:
        """Bytes of memory that it has for itself or shares, as the system counts them."""
        return self.facts.memory_info().rss

    def kill(self) -> float:
        """Kill it; return when (monotonic seconds)."""
        now = time.monotonic()
        self._process.kill()
        self._process.wait()
        return now


class Stand:
    """What runs on one tenant."""

    def __init__(self, settings: BusSettings) -> None:
        self.settings = settings
        self.bus: Bus = connect(settings)
        self._children: list[Child] = []
        self._requests = self.bus.producer(MODEL_EVENTS.name, schema=schema_json(MODEL_EVENTS.schema), batching=True)

    def scheduler(self, **more: str) -> Child:
        """Start a scheduler: it leads, or stands by.

        Args:
            more: of its environment.
        """
        environment = {
            "MAGNETAR_PULSAR_URL": self.settings.url,
            "MAGNETAR_PULSAR_ADMIN_URL": self.settings.admin_url,
            "MAGNETAR_PULSAR_TENANT": self.settings.tenant,
            "MAGNETAR_PULSAR_DATA_DIR": self.settings.data_dir,
            "MAGNETAR_SCHEDULER_PORT": "0",
            **more,
        }
        return self._child(environment, "-c", "import sys; from magnetar_scheduler.main import run; sys.exit(run())")

    def fleet(self, agents: int, *, models: int = 0, obey: bool = True) -> Child:
        """Start so many simulated agents in one process, and wait until they are registered."""
        at = self.settings
        options = ("--models", str(models), *(() if obey else ("--idle",)))
        fleet = self._child({}, "-m", "tests.bench.fleet", str(agents), at.url, at.admin_url, at.tenant, *options)
        fleet.hear("up")
        return fleet

    def deploy(self, names: list[str]) -> None:
        """Publish a request for each name, as fast as it goes."""
        for name in names:
            event = ModelEvent(event=DeployModel(model=spec(name, memory=MIB)))
            payload = MODEL_EVENT.encode(event)
            self._requests.send_async(
                payload, lambda _: None, key=event.event.subject, properties=MODEL_EVENT.properties
            )

    def routes(self) -> "Routed":
        """Watch the routes from now on."""
        return Routed(self.bus.reader(ROUTES.name, LATEST))

    def logged(self, kind: str, count: int) -> None:
        """Wait until the log has so many entries with a fact of this kind."""
        reader = self.bus.reader(STATE_CHANGES.name, EARLIEST)
        deadline = time.monotonic() + PATIENCE_S
        while count > 0:
            message = reader.read(1.0)
            if message is not None:
                count -= kind in message.properties["kinds"].split(",")
            elif time.monotonic() > deadline:
                raise AssertionError(f"{count} {kind} are missing, and no more come")
        reader.close()

    def close(self) -> None:
        """Kill all that still runs."""
        for child in self._children:
            child.kill()
        self.bus.close()

    def _child(self, environment: dict[str, str], *arguments: str) -> Child:
        child = Child(environment, *arguments)
        self._children.append(child)
        return child


class Routed:
    """Knows which models have a route to a replica: those that a client can call."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.models: set[str] = set()

    def wait(self, count: int) -> float:
        """Wait until so many models are routed; return when (monotonic seconds)."""
        deadline = time.monotonic() + PATIENCE_S
        while len(self.models) < count:
            message = self._reader.read(1.0)
            if message is not None and message.payload:
                route = ROUTE.decode_trusted(message.payload, message.properties.get(FINGERPRINT, ""))
                if any(target.endpoints for target in route.targets):
                    self.models.add(route.model)
                    deadline = time.monotonic() + PATIENCE_S
            elif time.monotonic() > deadline:
                raise AssertionError(f"{len(self.models)} of {count} models are routed, and no more come")
        return time.monotonic()


@contextmanager
def stand(broker: RunningBroker, data_dir: str = "") -> Iterator[Stand]:
    """A fresh tenant of a broker, and at the end nothing left of what ran on it."""
    one = Stand(settings_for(broker, data_dir))
    try:
        yield one
    finally:
        one.close()
