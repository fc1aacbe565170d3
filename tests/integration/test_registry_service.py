"""The registry service: silent instances are retired, look-ups and watches are answered over HTTP."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from magnetar_common.brokers import embedded
from magnetar_common.bus import Bus, connect
from magnetar_common.bus.memory import MemoryBus
from magnetar_common.discovery import Discovery, history
from magnetar_common.lifecycle import Lifecycle
from magnetar_common.registrar import Registrar
from magnetar_common.settings import BusSettings
from magnetar_common.topics import SERVICE_REGISTRY
from magnetar_events.policy import Policy
from magnetar_registry.main import SERVICE_NAME, RegistrySettings, serve
from magnetar_registry.service import RegistryService
from tests.support.leading import eventually
from tests.support.registry import DEADLINE, QUICK, SLOW, Registry, record

FAST = Policy(heartbeat_ms=120, lease_ms=360, hold_ms=0)


@contextlib.contextmanager
def retiring(where: Registry | Bus, linger_s: float = 0.1) -> Iterator[RegistryService]:
    bus = MemoryBus(where.broker) if isinstance(where, Registry) else where
    service = RegistryService(bus, "registry-1", FAST, linger_s=linger_s)
    stopping = threading.Event()
    thread = threading.Thread(target=service.run, args=(stopping,))
    thread.start()
    yield service
    stopping.set()
    thread.join()
    service.close()


@pytest.fixture
def registry() -> Registry:
    return Registry()


def test_a_silent_instance_is_declared_down_and_later_gets_its_tombstone(registry: Registry) -> None:
    with retiring(registry):
        registry.say("zombie", metadata=QUICK)
        assert registry.next("zombie") == record("zombie", metadata=QUICK)
        down = registry.next("zombie")
        assert down is not None
        assert (down.status, down.declared_by, down.metadata) == ("DOWN", "registry-1", QUICK)
        assert registry.next("zombie") is None


def test_one_that_left_by_itself_gets_its_tombstone_after_the_linger(registry: Registry) -> None:
    registry.say("left", "DOWN")
    with retiring(registry):
        said = registry.next("left")
        assert said is not None
        assert said.declared_by == ""
        assert registry.next("left") is None


def test_a_down_that_is_younger_than_the_linger_stays(registry: Registry) -> None:
    with retiring(registry, linger_s=3_600) as service:
        registry.say("left", "DOWN")
        registry.say("zombie", metadata=QUICK)
        registry.next("zombie")
        registry.next("zombie")
        eventually(lambda: set(service._down) == {"left", "zombie"})
    assert len(registry.broker.topic(SERVICE_REGISTRY.name).messages[-1].payload) > 0


def test_one_that_was_declared_down_and_beats_again_is_there_again(registry: Registry) -> None:
    with retiring(registry, linger_s=3_600) as service:
        registry.say("sleeper", metadata=QUICK)
        registry.next("sleeper")
        down = registry.next("sleeper")
        assert down is not None
        assert down.status == "DOWN"
        registry.say("sleeper", metadata=SLOW)
        eventually(lambda: service._down == {} and "sleeper" in service.leases.ages(time.monotonic()))


def test_a_probe_left_behind_by_a_dead_leader_is_retired_like_any_instance(registry: Registry) -> None:
    registry.say("probe/dead-leader", name="probe", metadata={"number": "7", **QUICK})
    with retiring(registry):
        registry.next("probe/dead-leader")
        down = registry.next("probe/dead-leader")
        assert down is not None
        assert down.status == "DOWN"
        assert registry.next("probe/dead-leader") is None


def test_l18_cut_off_from_the_broker_it_retires_nobody_and_says_why(registry: Registry) -> None:
    bus = MemoryBus(registry.broker)
    service = RegistryService(bus, "registry-1", FAST)
    registry.say("a", metadata=QUICK)
    eventually(lambda: (service.turn(), "a" in service.leases.ages(time.monotonic()))[1])
    registry.broker.disconnect(bus)
    eventually(lambda: (service.turn(), "probe has been missing" in service.leases.holding(time.monotonic()))[1])
    eventually(lambda: (service.turn(), "a" in service.leases.suspected(time.monotonic()))[1])
    assert not service.check()[0]
    service.close()
    assert len([m for m in registry.broker.topic(SERVICE_REGISTRY.name).messages if m.key == "a"]) == 1


def test_l18_a_mass_loss_is_declared_at_the_limit(registry: Registry) -> None:
    for n in range(20):
        registry.say(f"i{n}", metadata=QUICK)
    with retiring(registry, linger_s=3_600) as service:
        eventually(lambda: "2 evicted in the last minute" in service.leases.holding(time.monotonic()))
        eventually(lambda: len(service._down) == 2)
        assert len(service.leases.suspected(time.monotonic())) == 18


def test_a_lost_send_is_sent_again(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar_registry.service._RESEND_S", 0.05)
    with retiring(registry) as service:
        registry.say("zombie", metadata=QUICK)
        registry.next("zombie")
        service._sent["zombie"] = time.monotonic()  # as if it were sent, and lost on the way
        down = registry.next("zombie")
        assert down is not None
        assert down.status == "DOWN"


@pytest.fixture
def served(registry: Registry) -> Iterator[httpx.Client]:
    """The whole service on the bus in memory, and a client of its HTTP API."""
    life = Lifecycle()
    settings = RegistrySettings(port=0, heartbeat_s=0.2, instance_id="registry/1")
    bus = MemoryBus(registry.broker)
    thread = threading.Thread(target=serve, args=(bus, settings, life))
    thread.start()
    with Discovery(MemoryBus(registry.broker)) as discovery:
        (itself,) = discovery.wait_for(SERVICE_NAME, 1, DEADLINE)
    with httpx.Client(base_url=f"http://127.0.0.1:{itself.address.port}", timeout=DEADLINE) as client:
        yield client
    life.stop()
    thread.join(DEADLINE)
    life.shutdown()
    assert not thread.is_alive()
    assert life.error is None


def listed(client: httpx.Client, path: str) -> list[str]:
    return [i["instanceId"] for i in client.get(path).raise_for_status().json()["instances"]]


def test_it_registers_itself(registry: Registry, served: httpx.Client) -> None:
    found = served.get(f"/v1/services/{SERVICE_NAME}/registry/1").json()
    assert found["status"] == "UP"
    assert found["address"]["port"] == served.base_url.port


def test_instances_are_looked_up_by_name_and_status(registry: Registry, served: httpx.Client) -> None:
    registry.say("a", metadata={**SLOW, "gpuType": "A100"})
    registry.say("b", "DRAINING")
    eventually(lambda: listed(served, "/v1/services/ranker") == ["a", "b"])
    assert listed(served, "/v1/services/ranker?status=UP") == ["a"]
    assert listed(served, "/v1/services/nobody") == []
    one = served.get("/v1/services/ranker/a").json()
    assert one["metadata"]["gpuType"] == "A100"
    services = {s["serviceName"]: s["instances"] for s in served.get("/v1/services").json()["services"]}
    assert services == {SERVICE_NAME: {"UP": 1}, "ranker": {"UP": 1, "DRAINING": 1}}


@pytest.mark.parametrize(
    ("path", "code", "words"),
    [
        ("/v1/services/ranker/nobody", 404, "service 'ranker' has no instance 'nobody'"),
        ("/v1/services/ranker?status=SLEEPY", 400, "'SLEEPY' is none of STARTING, UP, DRAINING, DOWN"),
        ("/v2", 404, "Not Found"),
    ],
)
def test_errors_are_json_that_says_what_is_wrong(served: httpx.Client, path: str, code: int, words: str) -> None:
    answer = served.get(path)
    assert answer.status_code == code
    assert words in answer.json()["error"]


def test_a_watch_begins_with_a_snapshot_and_then_streams_changes(registry: Registry, served: httpx.Client) -> None:
    registry.say("a", metadata=SLOW)
    eventually(lambda: listed(served, "/v1/services/ranker") == ["a"])
    with served.stream("GET", "/v1/services/ranker/watch") as stream:
        events = sse(stream)
        kind, data = next(events)
        assert (kind, [r["instanceId"] for r in data]) == ("snapshot", ["a"])
        registry.say("b", metadata=SLOW)
        kind, data = next(events)
        assert (kind, data["instanceId"], data["status"]) == ("changed", "b", "UP")
        registry.say("b", "DOWN", metadata=SLOW)
        assert next(events)[1]["status"] == "DOWN"
        registry.bury("b")
        assert next(events) == ("gone", {"instanceId": "b"})


def sse(stream: httpx.Response) -> Iterator[tuple[str, object]]:
    kind = ""
    for line in stream.iter_lines():
        name, _, value = line.partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            yield kind, json.loads(value)


def test_it_is_alive_and_ready_and_shows_its_metrics(served: httpx.Client) -> None:
    eventually(lambda: served.get("/readyz").status_code == 200)
    assert set(served.get("/readyz").json()["checks"]) == {"registry", "registrar", "loop"}
    assert set(served.get("/livez").json()["checks"]) == {"loop"}
    assert "magnetar_leases_suspected" in served.get("/metrics").text


SERVICE = """
import sys
from magnetar_common.bus import Bus, connect
from magnetar_common.lifecycle import Lifecycle
from magnetar_common.registrar import Registrar
from magnetar_events import ServiceRecord

record = ServiceRecord.model_validate_json(sys.argv[1])
with Lifecycle() as life:
    bus = connect()
    life.on_stop("bus", bus.close)
    registrar = Registrar(bus, record, 1.0).start()
    life.on_stop("registrar", registrar.leave)
    registrar.up()
    life.wait()
sys.exit(life.exit_code)
"""


@pytest.fixture
def embedded_url(tmp_path: Path) -> Iterator[str]:
    with embedded.start(tmp_path / "broker") as broker:
        yield broker.service_url


def test_sigterm_ends_a_registered_process_with_down(embedded_url: str) -> None:
    bus = connect(BusSettings(url=embedded_url))
    said = record("ranker-1", "STARTING").model_dump_json(by_alias=True)
    heard: queue.Queue[str | None] = queue.Queue()
    with Discovery(bus) as discovery:
        discovery.watch("ranker", lambda _, r: heard.put(r and r.status))
        environment = {**os.environ, "MAGNETAR_PULSAR_URL": embedded_url, "PYTHONPATH": os.pathsep.join(sys.path)}
        process = subprocess.Popen([sys.executable, "-c", SERVICE, said], env=environment)
        try:
            discovery.wait_for("ranker", 1, DEADLINE)
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE) == 0
        finally:
            process.kill()
            process.wait()
        eventually(lambda: [r.status for r in discovery.instances("ranker", None)] == ["DOWN"])
        last = list(history(bus, "ranker"))[-1].record
        assert last is not None
        assert (last.status, last.declared_by) == ("DOWN", "")
    bus.close()


def test_through_the_embedded_broker_a_killed_instance_is_retired(embedded_url: str) -> None:
    bus = connect(BusSettings(url=embedded_url))
    with retiring(bus), Registrar(bus, record("kept"), 0.5), Discovery(bus) as discovery:
        dead = Registrar(bus, record("dead"), 0.1).start()
        dead.up()
        discovery.wait_for("ranker", 1, DEADLINE)
        dead._beacon.close()  # no goodbye
        eventually(lambda: [c.record for c in history(bus, "ranker") if c.instance == "dead"][-1] is None)
        told = [c.record for c in history(bus, "ranker") if c.instance == "dead"]
        assert told[-2] is not None
        assert (told[-2].status, told[-2].declared_by) == ("DOWN", "registry-1")
        assert [i.instance_id for i in discovery.instances("ranker", None)] == ["kept"]
    bus.close()
