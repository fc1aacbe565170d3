"""A leader, an agent and a real MLServer: load, infer, unload, and what goes wrong."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar_agent.environments import Environment
from magnetar_agent.server_process import ServerProcess
from magnetar_common.status import ModelState
from tests.e2e.stand import RepositoryServerContract, Sample, Stand, settings_for, standing
from tests.support.leading import eventually
from tests.support.requests import IRIS, servers_routed, undeploy

pytestmark = [pytest.mark.mlserver, pytest.mark.timeout(180)]

_SLOW_ONCE = """
import pathlib, time
from mlserver import MLModel
class Slow(MLModel):
    async def load(self):
        started = pathlib.Path({started!r})
        if not started.exists():
            started.touch()
            time.sleep(600)
        return True
"""
_SETOSA = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP64", "data": [5.1, 3.5, 1.4, 0.2]}]}


@pytest.fixture(scope="module")
def sample(iris_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Sample:
    folder = tmp_path_factory.mktemp("mlserver-models")
    broken, slow, started = folder / "broken", folder / "slow", folder / "started"
    broken.mkdir()
    (broken / "model.joblib").write_bytes(b"this is no model")
    slow.mkdir()
    (slow / "slow.py").write_text(_SLOW_ONCE.format(started=str(started)))
    (slow / "model-settings.json").write_text(json.dumps({"name": "x", "implementation": "slow.Slow"}))
    return Sample(("sklearn",), iris_artifact, broken, slow, started, _SETOSA, [0])


@pytest.fixture(scope="module")
def stand(mlserver_env: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    with standing(settings_for("mlserver", tmp_path_factory.mktemp("agent"))) as stand:
        yield stand


class TestMLServer(RepositoryServerContract):
    """One MLServer that the agent starts and supervises."""


def test_agent_beside_a_server_that_runs_already_loads_nothing_twice(
    mlserver: ServerProcess, sample: Sample, tmp_path: Path
) -> None:
    """The agent restarts and the server does not: what is loaded is found and adopted, under the same file."""
    launch = mlserver.launch
    settings = settings_for(
        "mlserver", tmp_path, url=launch.url, repository=str(launch.repository), capabilities="sklearn"
    )
    with standing(settings) as stand:
        sample.deploy(stand, "iris")
        eventually(lambda: servers_routed(stand.bus) == {"local/a/0"}, within=60)
        loaded = launch.repository / "default_iris_1"
        before, position = loaded.stat().st_ino, stand.led.state.models[IRIS].replicas[1, "local/a/0"].position
        first = stand.led.state.servers["local/a/0"].incarnation
        stand.restart_agent()
        eventually(lambda: stand.led.state.servers["local/a/0"].incarnation != first)
        eventually(lambda: stand.is_(ModelState.AVAILABLE)() and servers_routed(stand.bus) == {"local/a/0"}, within=30)
        assert stand.led.state.models[IRIS].replicas[1, "local/a/0"].position == position
        assert (loaded.stat().st_ino, mlserver.restarts) == (before, 0)
        assert stand.infer(sample.body).json()["outputs"][0]["data"] == sample.answer
        undeploy(stand.bus)
        eventually(stand.gone(), within=60)
        assert "default_iris_1" not in stand.held()


def test_s19_server_that_runs_already_may_come_later(mlserver: ServerProcess, sample: Sample, tmp_path: Path) -> None:
    """Its agent says STARTING until it answers, and nothing is placed there before; no human is needed."""
    launch = mlserver.launch
    settings = settings_for(
        "mlserver", tmp_path, url="http://127.0.0.1:9", repository=str(launch.repository), capabilities="sklearn"
    )
    with standing(settings) as stand:
        eventually(lambda: not stand.agent.serving, within=30)
        eventually(lambda: stand.led.state.servers["local/a/0"].record.status == "STARTING", within=30)
        sample.deploy(stand, "late")
        eventually(stand.is_(ModelState.SCHEDULE_FAILED, "default/late"))
        stand.agent._adapter._http.base_url = launch.url  # type: ignore[attr-defined]
        eventually(stand.is_(ModelState.AVAILABLE, "default/late"), within=60)
        undeploy(stand.bus, "late")
        eventually(stand.gone("default/late"), within=60)
