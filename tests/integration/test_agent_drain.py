"""The production agent as a process of its own, told to end by SIGTERM: its models are Available elsewhere before it leaves."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil

from magnetar_common.brokers import RunningBroker
from magnetar_common.bus import connect
from magnetar_common.log import LogReader
from magnetar_common.settings import BusSettings
from magnetar_common.status import ModelState, model_status
from magnetar_events import facts as f
from tests.e2e.test_agent_process import _COMMAND
from tests.support.agents import SimulatedAgent
from tests.support.leading import eventually, leading
from tests.support.requests import deploy, servers_routed, set_policy

KEY = "default/guest"
A, B = "local/a/0", "local/b/0"


@contextmanager
def agent_process(url: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`magnetar agent`, with a small server per model."""
    settings = {"SERVER": "a", "KIND": "process", "COMMAND": _COMMAND, "CAPABILITIES": "multiply", "FOLDER": folder}
    settings |= {"HEARTBEAT_S": 0.5, "CANARY_S": 0, "DRAIN_TIMEOUT_S": 120}
    environment = os.environ | {f"MAGNETAR_AGENT_{name}": str(value) for name, value in settings.items()}
    environment |= {"MAGNETAR_PULSAR_URL": url, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-m", "magnetar_cli", "agent"], env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def test_sigterm_drains_an_agent_before_it_says_goodbye(own_embedded_broker: RunningBroker, tmp_path: Path) -> None:
    """Meanwhile it is alive, not ready, and serves; then it ends with 0, and the log says that nothing was left."""
    settings = BusSettings(url=own_embedded_broker.service_url, admin_url="", data_dir=str(tmp_path / "embedded"))
    artifact = tmp_path / "guest"
    artifact.mkdir()
    (artifact / "factor.txt").write_text("2")
    bus = connect(settings)
    with leading(lambda: connect(settings)) as led, agent_process(settings.url, tmp_path / "agent") as process:
        set_policy(bus, unload_grace_ms=100, resend_ms=1000)
        deploy(bus, "guest", storage_uri=artifact.as_uri(), requirements=("multiply",), memory=0)
        status = lambda: model_status(led.state.models[KEY]).state  # noqa: E731
        eventually(lambda: KEY in led.state.models and status() is ModelState.AVAILABLE, within=90)
        server = led.state.servers[A]
        url = f"http://127.0.0.1:{server.record.address.port}"
        children = psutil.Process(process.pid).children(recursive=True)
        other = SimulatedAgent(bus, "b", obey=False, capabilities=("multiply",), runtime="process")
        eventually(lambda: B in led.state.servers and led.state.servers[B].schedulable)

        process.send_signal(signal.SIGTERM)
        eventually(lambda: (1, B) in led.state.models[KEY].replicas)
        ready, alive = (httpx.get(f"{url}/{path}", timeout=20, trust_env=False) for path in ("readyz", "livez"))
        assert "1 model left" in ready.json()["checks"]["draining"]["detail"]
        assert (ready.status_code, alive.status_code) == (503, 200)
        assert servers_routed(bus, KEY) == {A}
        assert process.poll() is None

        other.obey = True
        eventually(lambda: servers_routed(bus, KEY) == {B})
        assert process.wait(90) == 0
        eventually(lambda: server.lost_code == "DOWN")
        assert not any(child.is_running() for child in children)
        reader = LogReader(bus)
        told = [fact for record in reader.stored() for fact in record.entry.facts]
        reader.close()
        (draining,) = [fact for fact in told if isinstance(fact, f.ServerDraining)]
        assert draining.incarnation == server.incarnation
        assert [fact.models for fact in told if isinstance(fact, f.ServerDrained)] == [0]
        other.die()
    bus.close()
