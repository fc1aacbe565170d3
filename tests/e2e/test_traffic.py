"""Steady inference traffic on real servers while versions come and go: not one error."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar_agent.environments import Environment
from magnetar_cli.traffic import Traffic
from magnetar_common.bus.memory import MemoryBroker, MemoryBus
from magnetar_common.client import Magnetar
from magnetar_common.state import Model
from magnetar_common.transitions import R
from magnetar_events.models import ModelSpec
from tests.e2e.stand import Stand, settings_for
from tests.support.leading import Led, eventually, leading
from tests.support.requests import IRIS, set_policy
from tests.support.world import spec

pytestmark = [pytest.mark.mlserver, pytest.mark.timeout(180)]


class Fleet:
    """A leader and two agents, each with a real MLServer."""

    def __init__(self, broker: MemoryBroker, led: Led, folder: Path) -> None:
        self.bus, self.led = MemoryBus(broker), led
        set_policy(self.bus, load_retry_ms=100, resend_ms=1000, unload_grace_ms=500)
        self.stands = [
            Stand(MemoryBus(broker), led, settings_for("mlserver", folder / name).model_copy(update={"server": name}))
            for name in "ab"
        ]

    def model(self, key: str = IRIS) -> Model:
        return self.led.state.models[key]

    def settled(self, versions: set[int], replicas: int, key: str = IRIS) -> None:
        """Wait until these versions are all that is left, with so many replicas, all Available."""

        def rests() -> bool:
            states = [replica.state for replica in self.model(key).replicas.values()]
            return set(self.model(key).versions) == versions and states == [R.AVAILABLE] * replicas

        eventually(rests, within=90)


@pytest.fixture(scope="module")
def fleet(mlserver_env: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    broker = MemoryBroker()
    with leading(lambda: MemoryBus(broker)) as led:
        fleet = Fleet(broker, led, tmp_path_factory.mktemp("fleet"))
        eventually(lambda: sum(server.schedulable for server in led.state.servers.values()) == 2, within=90)
        try:
            yield fleet
        finally:
            for stand in fleet.stands:
                stand.life.shutdown()
        assert [stand.life.error for stand in fleet.stands] == [None, None]
        assert led.error is None
        assert led.state.illegal == 0


def test_not_one_error_while_everything_changes(fleet: Fleet, iris_artifact: Path, tmp_path: Path) -> None:
    """Scale-up, a rollout, a rollback to a version long gone, a neighbour's unload, freezing, and a scale-down."""
    second = tmp_path / "second"
    shutil.copytree(iris_artifact, second)
    (second / "note.txt").write_text("another artifact")

    def version(artifact: Path, name: str = "iris", replicas: int = 2) -> ModelSpec:
        return spec(name, storage_uri=artifact.as_uri(), replicas=replicas, memory=0)

    with Magnetar(fleet.bus, source="test") as magnetar:
        magnetar.deploy(version(iris_artifact, replicas=1)).available(90)
        magnetar.deploy(version(iris_artifact, "neighbour")).available(90)
        traffic = Traffic(fleet.bus, IRIS).start()

        def goes_on() -> None:
            before = traffic.sent
            eventually(lambda: traffic.sent > before + 10)

        try:
            goes_on()
            magnetar.scale("iris", 2).available(90)
            goes_on()
            magnetar.deploy(version(second)).available(90)
            fleet.settled({2}, 2)
            goes_on()
            assert magnetar.rollback("iris", 1, reason="the first was better").available(90).generation == 3
            fleet.settled({3}, 2)
            goes_on()
            magnetar.undeploy("neighbour").accepted(30)
            eventually(lambda: "default/neighbour" not in fleet.led.state.models, within=60)
            goes_on()
            magnetar.freeze("iris", reason="audit").accepted(30)
            assert magnetar.deploy(version(second)).wait(30).code == "FROZEN"
            magnetar.unfreeze("iris").accepted(30)
            magnetar.scale("iris", 1).available(90)
            fleet.settled({3}, 1)
            goes_on()
        finally:
            traffic.close()
        assert traffic.failures == []
        assert set(traffic.answers) == {"local/a/0", "local/b/0"}
        assert fleet.model().target.spec.artifact_digest == fleet.model().target.digest != ""
        (server,) = {replica.server for replica in fleet.model().replicas.values()}
        held = {stand.settings.server: stand.held() for stand in fleet.stands}
        assert held[server.split("/")[1]] == {"default_iris_3"}
        assert sorted(len(names) for names in held.values()) == [0, 1]


def test_a_rollout_that_fails_leaves_the_old_version_alone(fleet: Fleet, iris_artifact: Path, tmp_path: Path) -> None:
    """A version that the servers refuse: Failed, target and active side by side, and the traffic notices nothing."""
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "model.joblib").write_bytes(b"this is no model")
    with Magnetar(fleet.bus, source="test") as magnetar:
        magnetar.deploy(spec("rose", storage_uri=iris_artifact.as_uri(), replicas=2, memory=0)).available(90)
        traffic = Traffic(fleet.bus, "default/rose").start()
        try:
            outcome = magnetar.deploy(spec("rose", storage_uri=broken.as_uri(), replicas=2, memory=0)).wait(90)
            assert outcome.state == "Failed"
            before = traffic.sent
            eventually(lambda: traffic.sent > before + 10)
            assert magnetar.rollback("rose", 1).available(30).generation == 1
            fleet.settled({1}, 2, "default/rose")
        finally:
            traffic.close()
        assert traffic.failures == []
