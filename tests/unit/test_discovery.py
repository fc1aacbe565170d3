"""Discovery: who offers a service right now, as a client sees it."""

import contextlib
import queue
import threading
import time
from collections.abc import Iterator

import pytest

from magnetar_common.discovery import Discovery, history
from magnetar_common.topics import SERVICE_REGISTRY
from magnetar_events import ServiceRecord
from magnetar_events.policy import Policy
from tests.support.leading import eventually
from tests.support.registry import QUICK, SLOW, Registry

FAST = Policy(heartbeat_ms=100, lease_ms=300, hold_ms=0)
PATIENT = 10.0


@pytest.fixture
def registry() -> Iterator[Registry]:
    made = Registry()
    yield made
    made.bus.close()


@pytest.fixture
def discovery(registry: Registry) -> Iterator[Discovery]:
    with Discovery(registry.bus) as made:
        yield made


def ids(records: list[ServiceRecord]) -> list[str]:
    return [r.instance_id for r in records]


@contextlib.contextmanager
def beats(registry: Registry, instance: str, metadata: dict[str, str]) -> Iterator[None]:
    """Let an instance beat often."""
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(0.02):
            registry.say(instance, metadata=metadata)

    thread = threading.Thread(target=beat)
    thread.start()
    yield
    stop.set()
    thread.join()


def test_it_lists_a_services_instances_by_status(registry: Registry, discovery: Discovery) -> None:
    registry.say("b")
    registry.say("a")
    registry.say("c", "DRAINING")
    registry.say("x", name="other")
    eventually(lambda: "other" in discovery.services())
    assert ids(discovery.instances("ranker")) == ["a", "b"]
    assert ids(discovery.instances("ranker", "DRAINING")) == ["c"]
    assert ids(discovery.instances("ranker", None)) == ["a", "b", "c"]
    assert discovery.instances("nobody") == []


def test_what_was_there_before_it_started_is_seen(registry: Registry) -> None:
    registry.say("a")
    with Discovery(registry.bus) as discovery:
        assert discovery.wait_ready(PATIENT)
        assert ids(discovery.instances("ranker")) == ["a"]


def test_probes_are_no_service(registry: Registry, discovery: Discovery) -> None:
    registry.say("probe/leader", name="probe")
    assert ids(_after(registry, discovery).instances("probe", None)) == []
    assert "probe" not in discovery.services()


def test_a_record_that_cannot_be_read_hides_no_other(registry: Registry, discovery: Discovery) -> None:
    registry.junk("junk")
    assert ids(_after(registry, discovery).instances("ranker")) == ["after"]


def _after(registry: Registry, discovery: Discovery) -> Discovery:
    registry.say("after")
    discovery.wait_for("ranker", 1, PATIENT)
    return discovery


def test_s28_a_draining_or_dead_instance_is_never_picked(registry: Registry, discovery: Discovery) -> None:
    for instance, status in (("a", "UP"), ("b", "DRAINING"), ("c", "DOWN"), ("d", "STARTING")):
        registry.say(instance, status, metadata={"gpu": "x"})
    eventually(lambda: len(discovery.instances("ranker", None)) == 4)
    for _ in range(8):
        for picked in (
            discovery.round_robin("ranker"),
            discovery.random("ranker"),
            discovery.least_loaded("ranker"),
            discovery.by_metadata("ranker", {"gpu": "x"}),
        ):
            assert picked is not None
            assert picked.instance_id == "a"


def test_picks_of_nobody_are_none(discovery: Discovery) -> None:
    assert discovery.round_robin("ranker") is None
    assert discovery.random("ranker") is None
    assert discovery.least_loaded("ranker") is None
    assert discovery.by_metadata("ranker", {}) is None


def test_round_robin_takes_turns(registry: Registry, discovery: Discovery) -> None:
    for instance in "abc":
        registry.say(instance)
    discovery.wait_for("ranker", 3, PATIENT)
    assert [r.instance_id for _ in range(6) if (r := discovery.round_robin("ranker"))] == list("abcabc")


def test_random_picks_everybody_sometimes(registry: Registry, discovery: Discovery) -> None:
    for instance in "abc":
        registry.say(instance)
    discovery.wait_for("ranker", 3, PATIENT)
    assert {r.instance_id for _ in range(200) if (r := discovery.random("ranker"))} == set("abc")


def test_least_loaded_goes_by_what_instances_say_or_by_what_the_caller_knows(
    registry: Registry, discovery: Discovery
) -> None:
    registry.say("a", metadata={"load": "0.9"})
    registry.say("b", metadata={"load": "0.2"})
    registry.say("c", metadata={"load": "n/a"})
    discovery.wait_for("ranker", 3, PATIENT)
    picked = discovery.least_loaded("ranker")
    assert picked is not None
    assert picked.instance_id == "c"
    mine = {"a": 0, "b": 1, "c": 2}
    picked = discovery.least_loaded("ranker", lambda r: mine[r.instance_id])
    assert picked is not None
    assert picked.instance_id == "a"


def test_by_metadata_takes_turns_among_those_that_match(registry: Registry, discovery: Discovery) -> None:
    registry.say("a", metadata={"gpuType": "A100", "zone": "1"})
    registry.say("b", metadata={"gpuType": "A100", "zone": "2"})
    registry.say("c", metadata={"gpuType": "T4", "zone": "1"})
    discovery.wait_for("ranker", 3, PATIENT)
    wanted = {"gpuType": "A100"}
    assert {r.instance_id for _ in range(2) if (r := discovery.by_metadata("ranker", wanted))} == {"a", "b"}
    only = discovery.by_metadata("ranker", {"gpuType": "A100", "zone": "2"})
    assert only is not None
    assert only.instance_id == "b"
    assert discovery.by_metadata("ranker", {"gpuType": "H100"}) is None


def test_a_watch_begins_with_what_is_there_then_tells_changes_and_none_for_gone(
    registry: Registry, discovery: Discovery
) -> None:
    heard: queue.Queue[tuple[str, str | None]] = queue.Queue()
    registry.say("a")
    discovery.wait_for("ranker", 1, PATIENT)
    watch = discovery.watch("ranker", lambda i, r: heard.put((i, r and r.status)))
    assert heard.get(timeout=PATIENT) == ("a", "UP")
    registry.say("x", name="other")
    registry.say("a", timestamp=99)  # a mere heartbeat
    registry.say("b", "STARTING")
    assert heard.get(timeout=PATIENT) == ("b", "STARTING")
    registry.say("a", "DOWN")
    assert heard.get(timeout=PATIENT) == ("a", "DOWN")
    registry.bury("a")
    assert heard.get(timeout=PATIENT) == ("a", None)
    watch.close()
    registry.say("c")
    eventually(lambda: len(discovery.instances("ranker", None)) == 2)
    assert heard.empty()


def test_a_watcher_that_raises_ends_neither_the_view_nor_its_neighbour(
    registry: Registry, discovery: Discovery
) -> None:
    heard: queue.Queue[str] = queue.Queue()

    def bad(_instance: str, _record: ServiceRecord | None) -> None:
        raise RuntimeError("mine")

    discovery.watch("ranker", bad)
    discovery.watch("ranker", lambda i, _: heard.put(i))
    for instance in "ab":
        registry.say(instance)
        assert heard.get(timeout=PATIENT) == instance


def test_waiting_for_instances_that_do_not_come_says_how_many_there_are(
    registry: Registry, discovery: Discovery
) -> None:
    registry.say("a")
    assert ids(discovery.wait_for("ranker", 1, PATIENT)) == ["a"]
    with pytest.raises(TimeoutError, match="1 of 2 instances are UP"):
        discovery.wait_for("ranker", 2, 0.05)


def test_l19_an_instance_whose_heartbeats_stop_is_gone_whatever_its_last_status(registry: Registry) -> None:
    heard: queue.Queue[str | None] = queue.Queue()
    with Discovery(registry.bus, policy=FAST) as discovery, beats(registry, "b", SLOW):
        discovery.watch("ranker", lambda i, r: heard.put(r and r.status) if i == "a" else None)
        for _ in range(2):
            registry.say("a", metadata=QUICK)
            assert heard.get(timeout=PATIENT) == "UP"
            assert heard.get(timeout=PATIENT) is None
        assert ids(discovery.instances("ranker", None)) == ["b"]


def test_l19_the_last_instance_of_all_is_missed_too(registry: Registry) -> None:
    with Discovery(registry.bus, policy=FAST) as discovery:
        registry.say("a", metadata=QUICK)
        discovery.wait_for("ranker", 1, PATIENT)
        eventually(lambda: discovery.instances("ranker", None) == [])


def test_l18_where_somebody_probes_silence_of_everything_is_an_outage_and_the_last_view_stays(
    registry: Registry,
) -> None:
    lost = threading.Event()
    with Discovery(registry.bus, policy=FAST) as discovery:
        registry.say("probe/leader", name="probe")
        registry.say("a", metadata={"heartbeatMs": "10"})
        discovery.watch("ranker", lambda _, r: lost.set() if r is None else None)
        assert not lost.wait(0.5)  # many leases
        assert ids(discovery.instances("ranker")) == ["a"]


@pytest.mark.parametrize("skew_ms", [-3_600_000, 3_600_000])
def test_s18_an_agents_clock_an_hour_off_changes_nothing(registry: Registry, skew_ms: int) -> None:
    now = time.time_ns() // 1_000_000
    lost: queue.Queue[str] = queue.Queue()
    with Discovery(registry.bus, policy=FAST) as discovery:
        discovery.watch("ranker", lambda i, r: lost.put(i) if r is None else None)
        registry.say("skewed", metadata=SLOW, timestamp=now + skew_ms)
        registry.say("silent", metadata=QUICK, timestamp=now)
        assert lost.get(timeout=PATIENT) == "silent"
        assert ids(discovery.instances("ranker")) == ["skewed"]


def test_l1_a_client_that_slept_through_a_tombstone_and_its_compaction_forgets_the_dead(registry: Registry) -> None:
    registry.say("dead")
    registry.say("alive")
    with Discovery(registry.bus) as discovery:
        discovery.wait_for("ranker", 2, PATIENT)
        registry.broker.disconnect(registry.bus)
        registry.say("dead", "DOWN")
        registry.bury("dead")
        registry.broker.compact(SERVICE_REGISTRY.name)
        registry.broker.reconnect(registry.bus)
        assert discovery._view.resync(PATIENT)
        assert ids(discovery.instances("ranker", None)) == ["alive"]


def test_s04_a_goodbye_of_the_old_life_does_not_touch_the_new_one(registry: Registry, discovery: Discovery) -> None:
    registry.say("ml/0/old")
    registry.say("ml/0/new")
    registry.say("ml/0/old", "DOWN")
    registry.bury("ml/0/old")
    eventually(lambda: ids(discovery.instances("ranker", None)) == ["ml/0/new"])


def test_history_reads_every_original_of_a_services_instances_in_order(registry: Registry) -> None:
    registry.say("a", "STARTING")
    registry.say("x", name="other")
    registry.say("a", "UP")
    registry.junk("a")
    registry.bury("x")
    registry.say("a", "DOWN")
    registry.bury("a")
    registry.broker.compact(SERVICE_REGISTRY.name)
    told = list(history(registry.bus, "ranker"))
    assert [c.record.status if c.record else None for c in told] == ["STARTING", "UP", None, "DOWN", None]
    assert [bool(c.problem) for c in told] == [False, False, True, False, False]
    assert [c.id for c in told] == sorted(c.id for c in told)


def test_history_ends_although_the_topic_never_rests(registry: Registry) -> None:
    with beats(registry, "busy", SLOW):
        registry.say("a", name="rare")
        assert [c.instance for c in history(registry.bus, "rare")] == ["a"]
