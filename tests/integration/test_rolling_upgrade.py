"""A rolling upgrade with the software that was released as fold version 1, and back again before it is finalized.

It needs that software from this repository's own history. Where the history is not there (an archive, a shallow clone), the
run says so in its last lines, or fails (`MAGNETAR_REQUIRE=history`); `tests/unit/test_versions.py` then carries the proof
alone, with the schema of version 1.
"""

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
from tests.support.requests import ask
from tests.support.world import spec

pytestmark = pytest.mark.history

ROOT = Path(__file__).parent.parent.parent
LEAD = "from magnetar_scheduler.main import run; raise SystemExit(run())"
DIGEST = """
from magnetar_common.bus import connect
from magnetar_common.log import replay
from magnetar_common.render import state_digest
from magnetar_events.entry import FOLD_VERSION
bus = connect()
print(FOLD_VERSION, state_digest(replay(bus)))
bus.close()
"""

POSITION = """
from magnetar_common.bus import connect
from magnetar_common.log import replay
bus = connect()
print(replay(bus).position)
bus.close()
"""


class Released:
    """The software of fold version 1, in processes of its own, on the broker of the test."""

    def __init__(self, folder: Path, settings: BusSettings) -> None:
        self._folder = folder
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
        assert version == "1"
        return digest

    def position(self) -> int:
        """How far it can fold the log as it is now, whoever writes it."""
        return int(self.run(POSITION).stdout)

    @contextmanager
    def leading(self) -> Iterator[None]:
        with subprocess.Popen([sys.executable, "-c", LEAD], env=self._environment, cwd=self._folder) as process:
            try:
                yield
            finally:
                process.terminate()
                assert process.wait(30) == 0


@pytest.fixture(scope="module")
def software(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The released software's source, from the history."""
    archived = subprocess.run(
        ["git", "archive", RELEASED, "events", "libs", "services"], cwd=ROOT, capture_output=True, check=True
    )
    folder = tmp_path_factory.mktemp("released")
    with tarfile.open(fileobj=io.BytesIO(archived.stdout)) as tar:
        tar.extractall(folder, filter="data")
    return folder


def deploy_as_version_1(bus: Bus, name: str) -> None:
    """Ask as a client of the released software does."""
    event, schema = ModelEvent(event=DeployModel(model=spec(name))), "2b876c0a7ca7583c"
    producer = bus.producer(MODEL_EVENTS.name)
    producer.send(MODEL_EVENT.encode(event, schema), key=event.event.subject, properties={FINGERPRINT: schema})
    producer.close()


def test_old_and_new_software_lead_one_log_in_turn_until_the_upgrade_is_finalized(
    software: Path, own_embedded_broker: RunningBroker, tmp_path: Path
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
            deploy_as_version_1(bus, "one")
            eventually(lambda: available("one"), within=60)
        with leading(lambda: connect(settings)) as led:
            ask(bus, ModelEvent(event=DeployModel(model=spec("two"))))
            eventually(lambda: available("one", "two"), within=60)
            assert led.state.fold_version == 1
            position = led.state.position
            eventually(lambda: led.leader._appender.acknowledged >= position)
            assert released.position() >= position  # old software follows what the newer leads
        assert released.digest() == state_digest(replay(bus))
        with released.leading():
            deploy_as_version_1(bus, "three")
            eventually(lambda: available("one", "two", "three"), within=60)
        with leading(lambda: connect(settings)) as led:
            assert (led.state.term, led.state.fold_version) == (4, 1)
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
