"""A leader, an agent and a process per model: vLLM's kind, with a small real HTTP server standing for it."""

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from magnetar_common.status import ModelState
from magnetar_events.models import Runtime
from tests.e2e.stand import Stand, settings_for, standing
from tests.support.leading import eventually
from tests.support.requests import deploy, last_route, servers_routed, undeploy

_COMMAND = shlex.join(
    [
        sys.executable, str(Path(__file__).with_name("tiny_server.py")),
        "{model}", "--served-model-name", "{name}", "--host", "{host}", "--port", "{port}",
    ]
)  # fmt: skip
_PAIR = {"inputs": [{"data": [1.0, 2.0]}]}


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    settings = settings_for(
        "process", tmp_path_factory.mktemp("agent"), command=_COMMAND, capabilities="multiply", load_timeout_s=30
    )
    with standing(settings) as stand:
        yield stand
        left = stand.agent._pids()
    assert not any(psutil.pid_exists(pid) for pid in left)


def multiply(stand: Stand, folder: Path, name: str, factor: float, **fields: object) -> str:
    """Deploy a model that multiplies; return its key once it is Available."""
    artifact = folder / name
    artifact.mkdir()
    (artifact / "factor.txt").write_text(str(factor))
    deploy(stand.bus, name, storage_uri=artifact.as_uri(), requirements=("multiply",), memory=0, **fields)
    key = f"default/{name}"
    eventually(lambda: stand.is_(ModelState.AVAILABLE, key)() and servers_routed(stand.bus, key), within=30)
    return key


def output(answer: httpx.Response) -> list[float]:
    return answer.json()["outputs"][0]["data"]


def test_each_model_is_routed_to_a_port_of_its_own(stand: Stand, tmp_path: Path) -> None:
    """Started with the placement's devices; inference goes where the route says; an unload ends the process."""
    one, two = multiply(stand, tmp_path, "one", 3), multiply(stand, tmp_path, "two", 5)
    assert (output(stand.infer(_PAIR, one)), output(stand.infer(_PAIR, two))) == ([3.0, 6.0], [5.0, 10.0])
    endpoints = [route.targets[0].endpoints[0] for key in (one, two) if (route := last_route(stand.bus, key))]
    assert len({endpoint.http_port for endpoint in endpoints}) == 2
    listed = httpx.get(f"http://127.0.0.1:{endpoints[0].http_port}/v1/models", trust_env=False).json()
    assert listed["data"][0]["devices"] == ""  # placed on host memory: it sees no GPU
    pids = stand.agent._pids()
    for name in ("one", "two"):
        undeploy(stand.bus, name)
        eventually(stand.gone(f"default/{name}"), within=30)
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_arguments_reach_the_process(stand: Stand, tmp_path: Path) -> None:
    """A model's runtime parameters are options of its server."""
    multiply(stand, tmp_path, "argued", 2, runtime=Runtime(kind="process", parameters={"stubborn": ""}))
    (pid,) = stand.agent._pids()
    assert "--stubborn" in psutil.Process(pid).cmdline()
    os.kill(pid, signal.SIGKILL)  # it ignores SIGTERM, and nobody is to wait for that here
    undeploy(stand.bus, "argued")
    eventually(stand.gone("default/argued"), within=30)


def test_s44_killed_process_is_started_again(stand: Stand, tmp_path: Path) -> None:
    """The model leaves the routes, and comes back on another port; the other model never left."""
    key, other = multiply(stand, tmp_path, "mortal", 2), multiply(stand, tmp_path, "steady", 7)
    replica = stand.led.state.models[key].replicas[1, "local/a/0"]
    first, port = replica.position, replica.http_port
    steady = stand.led.state.models[other].replicas[1, "local/a/0"].position
    by_port = {c.laddr.port: pid for pid in stand.agent._pids() for c in psutil.Process(pid).net_connections()}
    os.kill(by_port[port], signal.SIGKILL)
    eventually(lambda: stand.led.state.models[key].replicas[1, "local/a/0"].position > first, within=30)

    def serves_again() -> bool:
        route = last_route(stand.bus, key)
        found = {e.http_port for t in route.targets for e in t.endpoints} if route else set()
        return bool(found) and found != {port}

    eventually(serves_again, within=30)
    assert output(stand.infer(_PAIR, key)) == [2.0, 4.0]
    assert stand.led.state.models[other].replicas[1, "local/a/0"].position == steady
    for name in ("mortal", "steady"):
        undeploy(stand.bus, name)
        eventually(stand.gone(f"default/{name}"), within=30)


def test_lack_of_memory_is_told_by_its_code(stand: Stand, tmp_path: Path) -> None:
    """No other attempt on the same server; Failed with the process's last words."""
    (tmp_path / "factor.txt").write_text("-1")
    deploy(stand.bus, "greedy", storage_uri=tmp_path.as_uri(), requirements=("multiply",), memory=0)
    eventually(stand.is_(ModelState.FAILED, "default/greedy"), within=30)
    told = stand.status("default/greedy")
    assert told is not None
    assert "LOAD_FAIL_MEMORY" in told.reason
    assert "CUDA out of memory" in told.reason
    undeploy(stand.bus, "greedy")
    eventually(stand.gone("default/greedy"))
