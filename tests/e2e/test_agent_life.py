"""An agent's life: health, draining, the goodbye, and what is left of it."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from magnetar_agent.main import serve
from magnetar_common.client import Magnetar
from magnetar_common.drains import phase
from magnetar_common.errors import MagnetarError
from magnetar_common.inference import InferenceClient, Routes
from magnetar_common.lifecycle import Lifecycle
from magnetar_common.status import ModelState
from magnetar_common.topics import SERVICE_REGISTRY
from magnetar_events import SERVICE_RECORD
from tests.e2e.stand import Stand, settings_for, standing
from tests.e2e.test_agent_process import _COMMAND, multiply
from tests.support.agents import SimulatedAgent
from tests.support.leading import eventually
from tests.support.requests import servers_routed, undeploy


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    with standing(settings_for("process", tmp_path / "agent", command=_COMMAND, capabilities="multiply")) as stand:
        yield stand


def statuses(stand: Stand) -> list[str]:
    """What the agent said of itself, without repeats."""
    reader = stand.bus.reader(SERVICE_REGISTRY.name)
    said: list[str] = []
    while (message := reader.read(0)) is not None:
        record = SERVICE_RECORD.decode(message.payload, "") if message.payload else None
        if record and record.server and record.server.server == "a" and said[-1:] != [record.status]:
            said.append(record.status)
    reader.close()
    return said


def url(stand: Stand) -> str:
    return f"http://127.0.0.1:{stand.led.state.servers['local/a/0'].record.address.port}"


def ask(stand: Stand, path: str) -> httpx.Response:
    return httpx.get(url(stand) + path, timeout=10, trust_env=False)


def test_terminate_blocks_until_every_model_is_available_elsewhere(stand: Stand, tmp_path: Path) -> None:
    """Meanwhile it is alive and not ready; at the end nothing is left here, and the route never was empty."""
    key = multiply(stand, tmp_path, "guest", 2)
    eventually(lambda: ask(stand, "/readyz").status_code == httpx.codes.OK)
    address = url(stand)
    other = SimulatedAgent(stand.bus, "b", obey=False, capabilities=("multiply",), runtime="process")
    eventually(lambda: "local/b/0" in stand.led.state.servers and stand.led.state.servers["local/b/0"].schedulable)
    answers: list[httpx.Response] = []
    calling = threading.Thread(
        target=lambda: answers.append(httpx.post(f"{address}/terminate", timeout=60, trust_env=False))
    )
    calling.start()
    eventually(lambda: (1, "local/b/0") in stand.led.state.models[key].replicas)
    ready = ask(stand, "/readyz")
    assert ready.status_code == httpx.codes.SERVICE_UNAVAILABLE
    assert "1 model left" in ready.json()["checks"]["draining"]["detail"]
    assert ask(stand, "/livez").status_code == httpx.codes.OK
    assert calling.is_alive()
    assert servers_routed(stand.bus, key) == {"local/a/0"}
    other.obey = True
    eventually(lambda: servers_routed(stand.bus, key) == {"local/b/0"})
    calling.join(30)
    assert answers[0].json() == {"drained": True, "modelsLeft": 0}
    assert (stand.life.stopping.is_set(), stand.life.reason) == (True, "drained")
    stand.life.shutdown()
    assert statuses(stand)[-3:] == ["UP", "DRAINING", "DOWN"]
    undeploy(stand.bus, "guest")
    eventually(stand.gone(key))
    other.die()


def test_s22_a_drain_between_two_real_agents_costs_no_request(stand: Stand, tmp_path: Path) -> None:
    """Requests go on, one after the other, while an operator drains the server that answers them: none fails."""
    keys = [multiply(stand, tmp_path, name, 2) for name in ("one", "two")]
    life = Lifecycle()
    settings = settings_for("process", tmp_path / "b", command=_COMMAND, capabilities="multiply")
    serve(stand.bus, settings.model_copy(update={"server": "b"}), life)
    eventually(lambda: "local/b/0" in stand.led.state.servers and stand.led.state.servers["local/b/0"].schedulable)
    failed: list[BaseException] = []
    answered: list[str] = []
    over = threading.Event()

    def traffic() -> None:
        with Routes(stand.bus) as routes, InferenceClient(routes) as client:
            routes.wait_ready(20)
            while not over.is_set():
                for key in keys:
                    try:
                        answered.append(client.infer(key, {"inputs": [{"data": [1.0]}]}).server)
                    except MagnetarError as error:
                        failed.append(error)

    calling = threading.Thread(target=traffic)
    calling.start()
    eventually(lambda: "local/a/0" in answered)
    with Magnetar(stand.bus, source="test") as magnetar:
        magnetar.drain_server("a/0", reason="new driver").accepted(30)
        eventually(lambda: not stand.led.state.servers["local/a/0"].replicas)
        eventually(lambda: answered[-1] == "local/b/0")
        over.set()
        calling.join(30)
        magnetar.resume_server("a/0").accepted(30)
    assert failed == []
    assert phase(stand.led.state.servers["local/a/0"]) == ""
    for name in ("one", "two"):
        undeploy(stand.bus, name)
        eventually(stand.gone(f"default/{name}"))
    life.shutdown()
    assert life.error is None


def test_shutdown_leaves_no_thread_and_no_process(stand: Stand, tmp_path: Path) -> None:
    """It says DOWN, its models are lost at once, and everything that it started is gone."""
    before = set(threading.enumerate())
    stand.restart_agent()
    key = multiply(stand, tmp_path, "brief", 2)
    pids = stand.agent._pids()
    stand.life.shutdown()
    eventually(lambda: stand.led.state.servers["local/a/0"].lost_code == "DOWN")
    eventually(lambda: stand.is_(ModelState.SCHEDULE_FAILED, key)())
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert {t.name for t in set(threading.enumerate()) - before} == set()


_AGENT = """
import sys
from magnetar_agent.main import serve
from magnetar_agent.settings import AgentSettings
from magnetar_common.bus.memory import MemoryBus
from magnetar_common.lifecycle import Lifecycle
from magnetar_common.topics import SERVICE_REGISTRY
from magnetar_events import SERVICE_RECORD
bus = MemoryBus()
with Lifecycle() as life:
    agent = serve(bus, AgentSettings(), life)
    print(*agent._pids(), flush=True)
    life.wait()
reader, last = MemoryBus(bus.broker).reader(SERVICE_REGISTRY.name), None
while (message := reader.read(0)) is not None:
    last = SERVICE_RECORD.decode(message.payload, "")
print(last.status, flush=True)
sys.exit(life.exit_code)
"""


@pytest.mark.mlserver
def test_sigterm_says_down_and_stops_the_supervised_server(tmp_path: Path) -> None:
    """A process of its own, told by its environment who it is; its exit code is 0."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "MAGNETAR_AGENT_FOLDER": str(tmp_path),
        "MAGNETAR_AGENT_KIND": "mlserver",
    }
    agent = subprocess.Popen([sys.executable, "-c", _AGENT], stdout=subprocess.PIPE, text=True, env=environment)
    assert agent.stdout is not None
    pid = int(next(line for line in agent.stdout if line.strip().isdigit()))
    assert psutil.pid_exists(pid)
    agent.send_signal(signal.SIGTERM)
    rest = agent.stdout.read()
    assert agent.wait(30) == 0
    assert rest.split()[-1] == "DOWN"
    assert not psutil.pid_exists(pid)
