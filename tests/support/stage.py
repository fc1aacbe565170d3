"""An agent on the memory bus before a server by hand; the test is its scheduler."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from magnetar_agent import agent as agents
from magnetar_agent.agent import Agent, AgentOptions
from magnetar_agent.devices import Devices
from magnetar_common.bus import EARLIEST
from magnetar_common.bus.memory import MemoryBroker, MemoryBus
from magnetar_common.topics import AGENT_EVENTS, commands_topic
from magnetar_events import AGENT_EVENT, COMMAND, AgentEvent, versions
from magnetar_events.codec import FINGERPRINT
from magnetar_events.commands import Command, CommandKind, LoadModel, ReportInventory, UnloadModel
from magnetar_events.reports import InventoryReported, ModelLoading, ReportKind
from tests.support.adapters import FakeAdapter
from tests.support.leading import eventually
from tests.support.world import record

T = TypeVar("T", bound=ReportKind)

IRIS = "default/iris"
SERVED = "default_iris_1"


def ours() -> set[threading.Thread]:
    """The threads of this process."""
    return set(threading.enumerate())


class Stage:
    """An agent, its server, and what the agent said."""

    def __init__(
        self,
        folder: Path,
        adapter: FakeAdapter,
        *,
        devices: Devices | None = None,
        broker: MemoryBroker | None = None,
        **options: object,
    ) -> None:
        self.broker = broker or MemoryBroker()
        self.bus = MemoryBus(self.broker)  # the agent's: the one to cut off
        self.world = MemoryBus(self.broker)
        self.adapter = adapter
        self.artifact = folder / "artifact"
        self.artifact.mkdir()
        (self.artifact / "model.joblib").write_text("a model")
        self.failures: list[BaseException] = []
        info = record("a").server
        assert info is not None
        self.info = info
        values: dict[str, object] = {"canary_s": 0, "server_wait_s": 0.2, **options}
        self.agent = Agent(
            self.bus,
            info,
            adapter,
            devices or Devices(own_cgroup=folder / "none"),
            AgentOptions(folder, **values),  # type: ignore[arg-type]
            self.failures.append,
        )
        self._commands = self.world.producer(commands_topic("a", 0))
        self._reports = self.world.reader(AGENT_EVENTS.name, EARLIEST)
        self.heard: list[AgentEvent] = []
        self.schemas: list[str] = []
        """In which each of them was written."""
        self.reads = AGENT_EVENT.fingerprint
        """The schema in which the scheduler says that it reads reports; empty = it says nothing, as the first release."""

    # --- the scheduler's part ---------------------------------------------------------------------------------------------

    def command(self, wanted: CommandKind, position: int, *, term: int = 1, incarnation: str = "one") -> None:
        info = self.info
        command = Command(
            cluster=info.cluster, server=info.server, replica=info.replica, incarnation=incarnation,
            term=term, position=position, command=wanted,
        )  # fmt: skip
        reads = {versions.REPORTS_PROPERTY: self.reads} if self.reads else {}
        self._commands.send(COMMAND.encode(command), properties={**COMMAND.properties, **reads})

    def load(self, position: int, model: str = IRIS, generation: int = 1, *, term: int = 1, **fields: object) -> None:
        values = {"storage_uri": self.artifact.as_uri(), "requirements": ("sklearn",), "memory": 100, **fields}
        self.command(LoadModel(model=model, generation=generation, **values), position, term=term)  # type: ignore[arg-type]

    def begin_load(self, position: int, model: str = IRIS) -> None:
        """Have it loading, for as long as the adapter's gate is not set."""
        self.adapter.gate.clear()
        self.load(position, model)
        self.hears(ModelLoading, position)

    def unload(self, position: int, model: str = IRIS, generation: int = 1, *, term: int = 1) -> None:
        self.command(UnloadModel(model=model, generation=generation), position, term=term)

    def ask(self, position: int) -> None:
        self.command(ReportInventory(), position, term=max(1, self.agent._ledger.term))

    # --- what the agent said ------------------------------------------------------------------------------------------------

    def listen(self) -> list[AgentEvent]:
        while (message := self._reports.read(0.0)) is not None:
            self.schemas.append(message.properties[FINGERPRINT])
            self.heard.append(AGENT_EVENT.decode(message.payload, message.properties.get(FINGERPRINT, "")))
        return self.heard

    def said(self, kind: type[T], model: str = "") -> list[T]:
        reports = [event.report for event in self.listen()]
        return [r for r in reports if isinstance(r, kind) and model in ("", getattr(r, "model", ""))]

    def hears(self, kind: type[T], position: int | None = None, *, times: int = 1, within: float = 10.0) -> T:
        """Wait for a report (the n-th), and return it."""

        def found() -> list[T]:
            said = [r for r in self.said(kind) if position is None or getattr(r, "position", None) == position]
            return said if len(said) >= times else []

        return eventually(found, within=within, what=f"{kind.__name__} at {position}")[-1]

    def inventory(self, position: int) -> InventoryReported:
        """Ask what the server holds: everything the agent was told before is taken up by then."""
        self.ask(position)
        return self.hears(InventoryReported, position)


@contextmanager
def staged(folder: Path, adapter: FakeAdapter | None = None, **options: object) -> Iterator[Stage]:
    """An agent that runs; at the end it is closed, nothing of it failed, and no thread of it is left."""
    before = ours()
    agents.POLL_S = 0.02  # its end is not to be waited for
    stage = Stage(folder, adapter or FakeAdapter(), **options)
    stage.agent.start()
    try:
        yield stage
    finally:
        stage.adapter.gate.set()
        stage.agent.close()
        stage.listen()
    assert stage.failures == []
    eventually(lambda: ours() <= before)
