"""A rolling upgrade with the software that was released as each older fold version, and back before it is finalized.

It needs that software from this repository's own history. Where the history is not there (an archive, a shallow clone), the
run says so in its last lines, or fails (`MAGNETAR_REQUIRE=history`); `tests/unit/test_versions.py` then carries the proof
alone, with the schemas of the older versions.
"""

import io
import os
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from magnetar_common.brokers import RunningBroker
from magnetar_common.bus import Bus, connect
from magnetar_common.log import replay
from magnetar_common.render import state_digest
from magnetar_common.settings import BusSettings
from magnetar_common.status import ModelState, model_status
from magnetar_common.topics import MODEL_EVENTS
from magnetar_events import MODEL_EVENT, ModelEvent
from magnetar_events.codec import FINGERPRINT
from magnetar_events.entry import FOLD_VERSION
from magnetar_events.requests import DeployModel, FinalizeUpgrade
from tests.plugin import RELEASED
from tests.support.agents import SimulatedAgent
from tests.support.leading import eventually, leading
from tests.support.requests import ask, deploy, infer, undeploy
from tests.support.world import spec

pytestmark = pytest.mark.history

ROOT = Path(__file__).parent.parent.parent
LEAD = "from magnetar_scheduler.main import run; raise SystemExit(run())"
SERVE = "from magnetar_agent.main import run; raise SystemExit(run())"
DIGEST = """
from magnetar_common.bus import connect
from magnetar_common.log import replay
from magnetar_common.render import state_digest
from magnetar_events.entry import FOLD_VERSION
bus = connect()
print(FOLD_VERSION, state_digest(replay(bus)))
bus.close()
"""

MULTIPLY = shlex.join(
    [
        sys.executable, str(ROOT / "tests" / "e2e" / "tiny_server.py"),
        "{model}", "--served-model-name", "{name}", "--host", "{host}", "--port", "{port}",
    ]
)  # fmt: skip

POSITION = """
from magnetar_common.bus import connect
from magnetar_common.log import replay
bus = connect()
print(replay(bus).position)
bus.close()
"""


class Released:
    """The software of an older fold version, in processes of its own, on the broker of the test."""

    def __init__(self, software: "Software", settings: BusSettings) -> None:
        self._version, self._folder = software
        folder = self._folder
        components = [p.parent for part in ("events", "libs", "services") for p in (folder / part).rglob("py.typed")]
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(component.parent) for component in components),
            "MAGNETAR_PULSAR_URL": settings.url,
            "MAGNETAR_PULSAR_DATA_DIR": settings.data_dir,
            "MAGNETAR_SCHEDULER_PORT": "0",
        }

    def run(self, program: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program],
            env=self._environment,
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def digest(self) -> str:
        """What its replay of the whole log comes to."""
        version, digest = self.run(DIGEST).stdout.split()
        assert int(version) == self._version
        return digest

    def position(self) -> int:
        """How far it can fold the log as it is now, whoever writes it."""
        return int(self.run(POSITION).stdout)

    def leading(self) -> AbstractContextManager[None]:
        return running(LEAD, self._environment, self._folder)

    def agent(self, **settings: str) -> AbstractContextManager[None]:
        return running(SERVE, {**self._environment, **settings}, self._folder)


@contextmanager
def running(program: str, environment: dict[str, str], folder: Path) -> Generator[None]:
    """Run a service until the end of the block, where it is told to end, and does."""
    with subprocess.Popen([sys.executable, "-c", program], env=environment, cwd=folder) as process:
        try:
            yield
        finally:
            process.terminate()
            assert process.wait(30) == 0


class Software(NamedTuple):
    """Released software: its fold version, and its source."""

    version: int
    folder: Path


@pytest.fixture(scope="module", params=sorted(RELEASED), ids=lambda version: f"fold version {version}")
def software(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Software:
    """Released software from the history."""
    commit = RELEASED[request.param]
    archived = subprocess.run(
        ["git", "archive", commit, "events", "libs", "services"], cwd=ROOT, capture_output=True, check=True
    )
    folder = tmp_path_factory.mktemp("released")
    with tarfile.open(fileobj=io.BytesIO(archived.stdout)) as tar:
        tar.extractall(folder, filter="data")
    return Software(request.param, folder)


def deploy_as_before(bus: Bus, name: str, **fields: object) -> None:
    """Ask as a client of the oldest software does."""
    event, schema = ModelEvent(event=DeployModel(model=spec(name, **fields))), "2b876c0a7ca7583c"
    producer = bus.producer(MODEL_EVENTS.name)
    producer.send(MODEL_EVENT.encode(event, schema), key=event.event.subject, properties={FINGERPRINT: schema})
    producer.close()


def test_old_and_new_software_lead_one_log_in_turn_until_the_upgrade_is_finalized(
    software: Software, own_embedded_broker: RunningBroker, tmp_path: Path
) -> None:
    """Old, new, old again: each goes on where the other stopped, to the same state; after finalize the old one ends."""
    settings = BusSettings(url=own_embedded_broker.service_url, admin_url="", data_dir=str(tmp_path))
    released, bus = Released(software, settings), connect(settings)
    agent = SimulatedAgent(bus, "a")

    def available(*names: str) -> bool:
        models = replay(bus).models
        return all(
            f"default/{name}" in models and model_status(models[f"default/{name}"]).state is ModelState.AVAILABLE
            for name in names
        )

    try:
        with released.leading():
            deploy_as_before(bus, "one")
            eventually(lambda: available("one"), within=60)
        with leading(lambda: connect(settings)) as led:
            ask(bus, ModelEvent(event=DeployModel(model=spec("two"))))
            eventually(lambda: available("one", "two"), within=60)
            assert led.state.fold_version == software.version
            position = led.state.position
            eventually(lambda: led.leader._appender.acknowledged >= position)
            assert released.position() >= position  # old software follows what the newer leads
        assert released.digest() == state_digest(replay(bus))
        with released.leading():
            deploy_as_before(bus, "three")
            eventually(lambda: available("one", "two", "three"), within=60)
        with leading(lambda: connect(settings)) as led:
            assert (led.state.term, led.state.fold_version) == (4, software.version)
            ask(bus, ModelEvent(event=FinalizeUpgrade(fold_version=FOLD_VERSION)))
            eventually(lambda: led.state.fold_version == FOLD_VERSION)
            ask(bus, ModelEvent(event=DeployModel(model=spec("four"))))
            eventually(lambda: available("one", "two", "three", "four"), within=60)
        end = replay(bus)
        refused = released.run(LEAD)
        assert refused.returncode == 1
        assert "LogTooNew" in refused.stderr
        assert replay(bus) == end
        assert end.illegal == 0
    finally:
        agent.die()
        bus.close()


def test_old_agents_serve_under_a_new_leader_and_new_agents_under_an_old_one(
    software: Software, own_embedded_broker: RunningBroker, tmp_path: Path
) -> None:
    """Leader and agents are upgraded in any order, with a real server beside each agent."""
    settings = BusSettings(url=own_embedded_broker.service_url, admin_url="", data_dir=str(tmp_path))
    released, bus = Released(software, settings), connect(settings)
    artifact = tmp_path / "triples"
    artifact.mkdir()
    (artifact / "factor.txt").write_text("3")
    wish: dict[str, Any] = {"storage_uri": artifact.as_uri(), "requirements": ("multiply",), "memory": 0}
    of_agent = {
        "MAGNETAR_PULSAR_URL": settings.url,
        "MAGNETAR_PULSAR_DATA_DIR": settings.data_dir,
        "MAGNETAR_AGENT_SERVER": "a",
        "MAGNETAR_AGENT_KIND": "process",
        "MAGNETAR_AGENT_COMMAND": MULTIPLY,
        "MAGNETAR_AGENT_CAPABILITIES": "multiply",
        "MAGNETAR_AGENT_FOLDER": str(tmp_path / "agent"),
        "MAGNETAR_AGENT_HEARTBEAT_S": "0.5",
        "MAGNETAR_AGENT_DRAIN_TIMEOUT_S": "0",
    }

    def triples(name: str) -> bool:
        try:
            answer = infer(bus, f"default/{name}", {"inputs": [{"data": [1.0, 2.0]}]}).raise_for_status()
            return answer.json()["outputs"][0]["data"] == [3.0, 6.0]
        except (LookupError, httpx.HTTPError):
            return False

    try:
        with released.leading(), running(SERVE, {**os.environ, **of_agent}, tmp_path):
            deploy_as_before(bus, "one", **wish)
            eventually(lambda: triples("one"), within=60)
        with leading(lambda: connect(settings)) as led:
            with released.agent(**of_agent):
                deploy(bus, "two", **wish)
                eventually(lambda: triples("one") and triples("two"), within=60)
            with running(SERVE, {**os.environ, **of_agent}, tmp_path):
                deploy(bus, "three", **wish)
                eventually(lambda: triples("one") and triples("two") and triples("three"), within=60)
                ask(bus, ModelEvent(event=FinalizeUpgrade(fold_version=FOLD_VERSION)))
                eventually(lambda: led.state.fold_version == FOLD_VERSION)
                undeploy(bus, "one")
                eventually(lambda: "default/one" not in led.state.models)
        assert replay(bus).illegal == 0
    finally:
        bus.close()
