"""Everything that a Magnetar needs, on this machine: a broker, the services, and agents with their inference servers.

``magnetar up`` and ``magnetar demo`` are both made of it.
"""

import contextlib
import os
import secrets
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from magnetar_agent import environments
from magnetar_cli.contexts import CONTEXT, BrokerContext
from magnetar_cli.exit_codes import CommandError
from magnetar_cli.plan import Plan
from magnetar_cli.supervised import Supervised
from magnetar_common import topic_policies
from magnetar_common.admin import Admin
from magnetar_common.brokers import RunningBroker, embedded, jvm
from magnetar_common.brokers.ports import free_ports
from magnetar_common.settings import BusSettings, SnapshotSettings

MARK = "MAGNETAR_STACK"
"""Environment variable that every process of a stack carries, to tell afterwards whether one is left."""

_READY_S = 180.0
_POLL_S = 0.1


class Stack:
    """Starts everything in order, keeps it running, and stops it in order.

    Args:
        plan: what to start.
        say: is told in one line each thing that is done; may be replaced.
    """

    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        self.plan = plan
        self.mark = os.environ.get(MARK) or secrets.token_hex(8)
        self.services: dict[str, Supervised] = {}
        self.agents: dict[str, Supervised] = {}
        self.say = say
        self._broker: RunningBroker | None = None
        self._data = plan.data.absolute()

    @property
    def bus_settings(self) -> BusSettings:
        """How to reach its broker, once started."""
        assert self._broker is not None, "start() first"
        return BusSettings(
            url=self._broker.service_url,
            admin_url=self._broker.admin_url or "",
            data_dir=str(self._data / "broker"),
            token="",
            token_file="",
            trust_certs="",
        )

    @property
    def context(self) -> BrokerContext:
        """The context that commands need to reach it."""
        settings = self.bus_settings
        return BrokerContext(url=settings.url, admin_url=settings.admin_url, data_dir=settings.data_dir)

    @property
    def logs(self) -> Path:
        """Where each service's output is, in a file of its own."""
        return self._data / "logs"

    @property
    def everything(self) -> dict[str, Supervised]:
        """Services and agents by name, in the order in which they were started."""
        return {**self.services, **self.agents}

    def start(self, stopping: threading.Event | None = None) -> None:
        """Start everything, and return when each part says that it is ready, or when ``stopping`` is set.

        Raises:
            CommandError: a part did not become ready; its last line is in the message.
            BrokerError: the broker cannot be had, or does not start.
            EnvironmentUnavailable: the inference server cannot be had.
        """
        self._data.mkdir(parents=True, exist_ok=True)
        if self.plan.agents and self.plan.kind != "process":
            environments.ensure(self.plan.kind, say=self.say)
        os.environ[MARK] = self.mark  # inherited by all that is started from here, down to the inference servers
        choice = self.plan.broker or ("jvm" if embedded.unavailable() else "embedded")
        self._broker = (jvm.start if choice == "jvm" else embedded.start)(self._data / "broker")
        self.say(f"broker ({choice}) on {self._broker.service_url}")
        settings = self.bus_settings
        if settings.admin_url:
            with Admin(settings) as admin:
                topic_policies.apply(admin)
            self.say("topics and their policies")
        for name, service, variables in self._planned():
            self._start(name, service, variables)
        self._wait_ready(stopping or threading.Event())

    def keep_broker(self) -> bool:
        """Start the broker again, on the same port and data, if it has died; return whether it had.

        Raises:
            BrokerError: it does not start any more.
        """
        if self._broker is None or self._broker.pid is not None:
            return False
        self._broker.restart()
        return True

    def kill_agent(self, name: str) -> list[int]:
        """Kill an agent and its inference server with SIGKILL, together and for good; return whom."""
        agent = self.agents.pop(name)
        servers = self.server_pids(agent)
        victims = [agent.let_go(), *servers]
        _kill(victims)
        agent.stop()
        return victims

    def kill_server(self, name: str) -> list[int]:
        """Kill an agent's inference server with SIGKILL, and leave the agent; return whom."""
        victims = self.server_pids(self.agents[name])
        _kill(victims)
        return victims

    def server_pids(self, agent: Supervised) -> list[int]:
        """Return the processes below an agent."""
        if agent.pid is None:
            return []
        return [child.pid for child in psutil.Process(agent.pid).children(recursive=True)]

    def stop(self) -> None:
        """Stop everything in order: scheduler, agents with their servers and other services, broker. Repeatable.

        The scheduler first: it would place elsewhere what the agents take with them.
        """
        if "scheduler" in self.services:
            self.services["scheduler"].stop()
        parts = (*self.agents.values(), *self.services.values())
        with ThreadPoolExecutor(max(1, len(parts))) as together:
            list(together.map(Supervised.stop, parts))
        if self._broker is not None:
            self._broker.stop()

    def survivors(self) -> list[str]:
        """Return the processes of this stack that run now (``pid command``), this one left out; after a stop: none."""
        return [f"{process.pid} {shlex.join(process.cmdline())}" for process in marked(self.mark)]

    def _planned(self) -> Iterator[tuple[str, str, Mapping[str, str]]]:
        yield "scheduler", "scheduler", {}
        yield "registry", "registry", {}
        yield "projector", "projector", {"MAGNETAR_PROJECTOR_DATA": str(self._data / "projector.sqlite")}
        for number in range(self.plan.agents):
            name = f"{self.plan.kind}-{number}"
            folder = self._data / "agents" / name
            folder.mkdir(parents=True, exist_ok=True)
            yield (
                name,
                "agent",
                {
                    "MAGNETAR_AGENT_SERVER": self.plan.kind,
                    "MAGNETAR_AGENT_REPLICA": str(number),
                    "MAGNETAR_AGENT_KIND": self.plan.kind,
                    "MAGNETAR_AGENT_FOLDER": str(folder),
                    "MAGNETAR_AGENT_COMMAND": self.plan.process_command,
                },
            )

    def _start(self, name: str, service: str, variables: Mapping[str, str]) -> None:
        (port,) = free_ports(1)
        prefix = f"MAGNETAR_{service.upper()}_"
        where = {f"{prefix}PORT": str(port)}
        part = Supervised(
            name,
            service,
            {**self._shared(), **where, f"{prefix}LOG_JSON": "false", **variables},
            folder=self._data,
            log=self.logs / f"{name}.log",
            url=f"http://127.0.0.1:{port}",
            ready=_leading if service == "scheduler" else lambda _: True,
        )
        (self.agents if service == "agent" else self.services)[name] = part

    def _shared(self) -> dict[str, str]:
        broker = {
            f"MAGNETAR_PULSAR_{name.upper()}": str(value) for name, value in self.bus_settings.model_dump().items()
        }
        snapshots = SnapshotSettings().url or f"file://{self._data / 'snapshots'}"
        # A context that is named in our environment would come first.
        return {**broker, "MAGNETAR_SNAPSHOTS_URL": snapshots, CONTEXT: ""}

    def _wait_ready(self, stopping: threading.Event) -> None:
        deadline = time.monotonic() + _READY_S
        for name, part in self.everything.items():
            while not part.is_ready():
                if part.restarts > 2:
                    raise CommandError(f"{name} did not become ready: {part.said()}", hint=f"see {part.log}")
                if time.monotonic() > deadline:
                    late = f"not within {_READY_S:g} s, and it is still starting. The last that it said: {part.said()}"
                    raise CommandError(f"{name} did not become ready: {late}", hint=f"see {part.log}")
                if stopping.wait(_POLL_S):
                    return
            self.say(f"{name} on {part.url}")


"""Where a service's settings call its port otherwise."""


def _leading(checks: Mapping[str, Mapping[str, object]]) -> bool:
    return str(checks["role"]["detail"]).startswith("leading")


def marked(mark: str) -> list[psutil.Process]:
    """Return the running processes that carry a stack's mark, without this one and its ancestors."""
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        # Gone meanwhile, or another user's: not ours either way.
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            ended = process.status() == psutil.STATUS_ZOMBIE
            if process.pid not in own and not ended and process.environ().get(MARK) == mark:
                found.append(process)
    return found


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).kill()
