"""A production agent on a real bus, before a server by hand."""

from pathlib import Path

from magnetar_agent.agent import Agent, AgentOptions
from magnetar_agent.devices import Devices
from magnetar_common.bus import Bus
from magnetar_common.registrar import Registrar
from magnetar_events.commands import COMMAND_KINDS
from tests.support.adapters import FakeAdapter
from tests.support.world import record


class RealAgent:
    """Registered and at work; ``failures`` has what ended one of its threads."""

    def __init__(self, bus: Bus, folder: Path, server: str, *, heartbeat_s: float = 1.0) -> None:
        home = folder / server
        (home / "artifact").mkdir(parents=True)
        (home / "artifact" / "model.joblib").write_text("a model")
        self.artifact = (home / "artifact").as_uri()
        """What a model that it is to load is made of."""
        self.adapter = FakeAdapter()
        self.failures: list[BaseException] = []
        self.record = record(server, commands=COMMAND_KINDS)
        assert self.record.server is not None
        self.agent = Agent(
            bus,
            self.record.server,
            self.adapter,
            Devices(own_cgroup=home / "none"),
            AgentOptions(home, canary_s=0, server_wait_s=0.2),
            self.failures.append,
        )
        self.registrar = Registrar(bus, self.record, heartbeat_s, refresh=self.agent.refresh).start()
        self.agent.start()
        self.registrar.up()

    @property
    def key(self) -> str:
        assert self.record.server is not None
        return self.record.server.key

    @property
    def term(self) -> int:
        """The newest that it has seen."""
        return self.agent._ledger.term

    def die(self) -> None:
        """Fall silent without a word."""
        self.registrar._beacon.close()
        self.agent.close()
