"""A leader, an agent and a real MLServer: load, infer, unload, and what goes wrong."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from magnetar_agent.agent import Agent
from magnetar_agent.environments import Environment
from magnetar_agent.main import serve
from magnetar_agent.settings import AgentSettings
from magnetar_common.bus.memory import MemoryBroker, MemoryBus
from magnetar_common.lifecycle import Lifecycle
from magnetar_common.status import ModelState, ModelStatus, model_status
from magnetar_common.transitions import R

from tests.support.leading import Led, eventually, leading
from tests.support.requests import IRIS, deploy, last_route, servers_routed, set_policy, undeploy

pytestmark = [pytest.mark.mlserver, pytest.mark.timeout(180)]

SETOSA = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP64", "data": [5.1, 3.5, 1.4, 0.2]}]}


class Stand:
    """A leader and one agent with its MLServer."""

    def __init__(self, bus: MemoryBus, led: Led, agent: Agent) -> None:
        self.bus, self.led, self.agent = bus, led, agent

    @property
    def server_pid(self) -> int:
        (pid,) = self.agent._pids()
        return pid

    def status(self, model: str = IRIS) -> ModelStatus | None:
        found = self.led.state.models.get(model)
        return model_status(found) if found else None

    def is_(self, state: ModelState, model: str = IRIS) -> Callable[[], bool]:
        return lambda: (told := self.status(model)) is not None and told.state is state

    def infer(self, model: str = IRIS) -> httpx.Response:
        route = last_route(self.bus, model)
        assert route is not None
        endpoint = route.targets[0].endpoints[0]
        url = f"http://{endpoint.host}:{endpoint.http_port}/v2/models/{endpoint.served_name}/infer"
        return httpx.post(url, json=SETOSA, timeout=30, trust_env=False)

    def held(self) -> set[str]:
        """What the server's own index says is ready."""
        return {name for name, entry in self.agent._adapter.index().items() if entry.state == "READY"}


@pytest.fixture(scope="module")
def stand(mlserver_env: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    broker = MemoryBroker()
    bus = MemoryBus(broker)
    settings = AgentSettings(server="a", folder=str(tmp_path_factory.mktemp("agent")), heartbeat_s=0.5, canary_s=0)
    with leading(lambda: MemoryBus(broker)) as led, Lifecycle() as life:
        set_policy(bus, load_attempts=2, load_retry_ms=100, unload_grace_ms=100)
        yield Stand(bus, led, serve(bus, settings, life))


def test_load_infer_unload(stand: Stand, iris_artifact: Path) -> None:
    """A DeployModel is answered by a real inference; an undeploy empties the server's own index."""
    deploy(stand.bus, storage_uri=iris_artifact.as_uri(), memory="50Mi")
    eventually(lambda: servers_routed(stand.bus) == {"local/a/0"}, within=60)
    answer = stand.infer().json()
    assert answer["outputs"][0]["data"] == [0]
    assert stand.held() == {"default_iris_1"}
    version = stand.led.state.models[IRIS].target
    assert len(version.digest) == 64
    undeploy(stand.bus)
    eventually(lambda: IRIS not in stand.led.state.models)
    assert stand.held() == set()


def test_missing_artifact_is_final(stand: Stand, tmp_path: Path) -> None:
    """What is not there fails at once, with its code, and is not tried again."""
    deploy(stand.bus, "missing", storage_uri=(tmp_path / "nothing").as_uri())
    eventually(stand.is_(ModelState.FAILED, "default/missing"), within=60)
    told = stand.status("default/missing")
    assert told is not None
    assert (told.code, told.retriable) == ("ARTIFACT_MISSING", False)
    undeploy(stand.bus, "missing")
    eventually(lambda: "default/missing" not in stand.led.state.models)


def test_s52_broken_artifact_ends_in_failed(stand: Stand, tmp_path: Path) -> None:
    """A model that the server refuses is Failed after its attempts, with every place listed, and never ready."""
    (tmp_path / "model.joblib").write_bytes(b"this is no model")
    deploy(stand.bus, "broken", storage_uri=tmp_path.as_uri())
    eventually(stand.is_(ModelState.FAILED, "default/broken"), within=90)
    told = stand.status("default/broken")
    assert told is not None
    assert "local/a/0" in told.reason
    assert servers_routed(stand.bus, "default/broken") == set()
    undeploy(stand.bus, "broken")
    eventually(lambda: "default/broken" not in stand.led.state.models)
    assert stand.held() == set()


def test_s44_server_killed_alone_is_restarted_and_reloads(stand: Stand, iris_artifact: Path) -> None:
    """The agent notices its server's end, leaves the routes, starts it again, and the model comes back."""
    deploy(stand.bus, "phoenix", storage_uri=iris_artifact.as_uri(), memory=0)
    key = "default/phoenix"
    eventually(stand.is_(ModelState.AVAILABLE, key), within=60)
    before = stand.server_pid
    os.kill(before, signal.SIGKILL)
    eventually(lambda: not stand.is_(ModelState.AVAILABLE, key)(), within=30)
    eventually(lambda: stand.is_(ModelState.AVAILABLE, key)() and servers_routed(stand.bus, key), within=60)
    assert stand.server_pid != before
    assert stand.infer(key).json()["outputs"][0]["data"] == [0]
    undeploy(stand.bus, "phoenix")
    eventually(lambda: key not in stand.led.state.models, within=60)


def test_s23_model_dropped_by_its_server_is_reloaded(stand: Stand, iris_artifact: Path) -> None:
    """A model that vanishes from the server's index behind our back is loaded again (scenarios 44 and L23)."""
    deploy(stand.bus, "dropped", storage_uri=iris_artifact.as_uri(), memory=0)
    key = "default/dropped"
    eventually(stand.is_(ModelState.AVAILABLE, key), within=60)
    first = stand.led.state.models[key].replicas[1, "local/a/0"].position
    url = stand.agent._adapter.endpoint("default_dropped_1")
    httpx.post(f"{url}/v2/repository/models/default_dropped_1/unload", timeout=10, trust_env=False).raise_for_status()
    eventually(lambda: stand.led.state.models[key].replicas[1, "local/a/0"].position > first, within=30)
    eventually(stand.is_(ModelState.AVAILABLE, key), within=60)
    assert "default_dropped_1" in stand.held()
    undeploy(stand.bus, "dropped")
    eventually(lambda: key not in stand.led.state.models, within=60)


def test_server_killed_during_a_load(stand: Stand, iris_artifact: Path, tmp_path: Path) -> None:
    """A load that loses its server is tried again on the restarted one."""
    slow = tmp_path / "slow"
    slow.mkdir()
    (slow / "model.joblib").write_bytes((iris_artifact / "model.joblib").read_bytes())
    deploy(stand.bus, "slow", storage_uri=slow.as_uri(), memory=0)
    key = "default/slow"
    eventually(lambda: key in stand.led.state.models and stand.led.state.models[key].replicas)
    os.kill(stand.server_pid, signal.SIGKILL)
    eventually(stand.is_(ModelState.AVAILABLE, key), within=90)
    assert "default_slow_1" in stand.held()
    undeploy(stand.bus, "slow")
    eventually(lambda: key not in stand.led.state.models, within=60)
    assert stand.led.state.illegal == 0
    assert all(r.state is R.AVAILABLE for m in stand.led.state.models.values() for r in m.replicas.values())
