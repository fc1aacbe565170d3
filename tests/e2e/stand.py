"""A leader and one agent with a real inference server, and what every kind of server must show on it."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from magnetar_agent.agent import Agent
from magnetar_agent.main import serve
from magnetar_agent.settings import AgentSettings
from magnetar_common.bus.memory import MemoryBroker, MemoryBus
from magnetar_common.lifecycle import Lifecycle
from magnetar_common.status import ModelState, ModelStatus, model_status
from magnetar_common.transitions import R
from tests.support.leading import Led, eventually, leading
from tests.support.requests import IRIS, deploy, infer, servers_routed, set_policy, undeploy


class Stand:
    """A leader, and an agent with its server."""

    def __init__(self, bus: MemoryBus, led: Led, settings: AgentSettings) -> None:
        self.bus, self.led, self.settings = bus, led, settings
        self.life = Lifecycle()
        self.agent: Agent = serve(bus, settings, self.life)

    def restart_agent(self) -> None:
        """End this life of the agent, and begin another."""
        self.life.shutdown()
        self.life = Lifecycle()
        self.agent = serve(self.bus, self.settings, self.life)

    @property
    def server_pid(self) -> int:
        """The process id of its only server."""
        (pid,) = self.agent._pids()
        return pid

    def status(self, model: str = IRIS) -> ModelStatus | None:
        found = self.led.state.models.get(model)
        return model_status(found) if found else None

    def is_(self, state: ModelState, model: str = IRIS) -> Callable[[], bool]:
        return lambda: (told := self.status(model)) is not None and told.state is state

    def gone(self, model: str = IRIS) -> Callable[[], bool]:
        return lambda: model not in self.led.state.models

    def infer(self, body: object, model: str = IRIS) -> httpx.Response:
        """Ask where the route says."""
        return infer(self.bus, model, body)

    def held(self) -> set[str]:
        """What the server's own index says is ready."""
        return {name for name, entry in self.agent._adapter.index().items() if entry.state == "READY"}


@contextmanager
def standing(settings: AgentSettings) -> Iterator[Stand]:
    """A stand on a broker of its own; at the end no fact was illegal and nothing failed."""
    broker = MemoryBroker()
    bus = MemoryBus(broker)
    with leading(lambda: MemoryBus(broker)) as led:
        set_policy(bus, load_attempts=2, load_retry_ms=100, unload_grace_ms=100, resend_ms=1000)
        stand = Stand(bus, led, settings)
        try:
            yield stand
        finally:
            stand.life.shutdown()
        assert stand.life.error is None
        assert led.error is None
        assert led.state.illegal == 0


def settings_for(kind: str, folder: Path, **fields: Any) -> AgentSettings:
    """An agent's settings for a test: quick heartbeats and no canary."""
    return AgentSettings(server="a", kind=kind, folder=str(folder), heartbeat_s=0.5, canary_s=0, **fields)


@dataclass(frozen=True)
class Sample:
    """A model for one kind of server.

    Attributes:
        requirements: the capability it needs.
        good: an artifact that serves.
        broken: one that the server refuses.
        slow: one whose first load never ends; it makes the file ``started`` and loads at once when that is there.
        started: see ``slow``.
        body: a V2 inference request.
        answer: what the first output holds.
    """

    requirements: tuple[str, ...]
    good: Path
    broken: Path
    slow: Path
    started: Path
    body: object
    answer: list[float]

    def deploy(self, stand: Stand, name: str, artifact: Path | None = None) -> str:
        """Ask for a model; return its key."""
        uri = (artifact or self.good).as_uri()
        deploy(stand.bus, name, storage_uri=uri, requirements=self.requirements, memory=0)
        return f"default/{name}"


class RepositoryServerContract:
    """What MLServer and Triton must show alike. A subclass has the fixtures ``stand`` and ``sample``."""

    def test_load_infer_unload(self, stand: Stand, sample: Sample) -> None:
        """A DeployModel is answered by a real inference; an undeploy empties the server's own index."""
        sample.deploy(stand, "iris")
        eventually(lambda: servers_routed(stand.bus) == {"local/a/0"}, within=60)
        assert stand.infer(sample.body).json()["outputs"][0]["data"] == sample.answer
        assert stand.held() == {"default_iris_1"}
        assert len(stand.led.state.models[IRIS].target.digest) == 64
        undeploy(stand.bus)
        eventually(stand.gone(), within=60)
        assert stand.held() == set()

    def test_missing_artifact_is_final(self, stand: Stand, sample: Sample, tmp_path: Path) -> None:
        """S58: what is not there fails at once, with its code, and is not tried again."""
        key = sample.deploy(stand, "missing", tmp_path / "nothing")
        eventually(stand.is_(ModelState.FAILED, key), within=60)
        told = stand.status(key)
        assert told is not None
        assert (told.code, told.retriable) == ("ARTIFACT_MISSING", False)
        undeploy(stand.bus, "missing")
        eventually(stand.gone(key))

    def test_s52_broken_artifact_ends_in_failed(self, stand: Stand, sample: Sample) -> None:
        """A model that the server refuses is Failed after its attempts, with every place listed, and never ready."""
        key = sample.deploy(stand, "broken", sample.broken)
        eventually(stand.is_(ModelState.FAILED, key), within=90)
        told = stand.status(key)
        assert told is not None
        assert "local/a/0" in told.reason
        assert servers_routed(stand.bus, key) == set()
        undeploy(stand.bus, "broken")
        eventually(stand.gone(key))
        assert stand.held() == set()

    def test_s44_server_killed_alone_is_restarted_and_reloads(self, stand: Stand, sample: Sample) -> None:
        """The agent notices its server's end, leaves the routes, starts it again, and the model comes back."""
        key = sample.deploy(stand, "phoenix")
        eventually(stand.is_(ModelState.AVAILABLE, key), within=60)
        before = stand.server_pid
        os.kill(before, signal.SIGKILL)
        eventually(lambda: not stand.is_(ModelState.AVAILABLE, key)(), within=30)
        eventually(lambda: stand.is_(ModelState.AVAILABLE, key)() and servers_routed(stand.bus, key), within=60)
        assert stand.server_pid != before
        assert stand.infer(sample.body, key).json()["outputs"][0]["data"] == sample.answer
        undeploy(stand.bus, "phoenix")
        eventually(stand.gone(key), within=60)

    def test_l23_model_dropped_by_its_server_is_reloaded(self, stand: Stand, sample: Sample) -> None:
        """A model that vanishes from the server's index behind our back is loaded again."""
        key = sample.deploy(stand, "dropped")
        eventually(stand.is_(ModelState.AVAILABLE, key), within=60)
        first = stand.led.state.models[key].replicas[1, "local/a/0"].position
        url = f"{stand.agent._adapter.endpoint('')}/v2/repository/models/default_dropped_1/unload"
        httpx.post(url, json={}, timeout=10, trust_env=False).raise_for_status()
        eventually(lambda: stand.led.state.models[key].replicas[1, "local/a/0"].position > first, within=30)
        eventually(stand.is_(ModelState.AVAILABLE, key), within=60)
        assert "default_dropped_1" in stand.held()
        undeploy(stand.bus, "dropped")
        eventually(stand.gone(key), within=60)

    def test_server_killed_during_a_load(self, stand: Stand, sample: Sample) -> None:
        """A load that loses its server is tried again on the restarted one, by the agent or on a second command."""
        key = sample.deploy(stand, "slow", sample.slow)
        eventually(sample.started.exists, within=60)
        killed = stand.server_pid
        os.kill(killed, signal.SIGKILL)
        eventually(stand.is_(ModelState.AVAILABLE, key), within=90)
        assert "default_slow_1" in stand.held()
        replica = stand.led.state.models[key].replicas[1, "local/a/0"]
        assert replica.state is R.AVAILABLE
        assert stand.server_pid != killed
        undeploy(stand.bus, "slow")
        eventually(stand.gone(key), within=60)
