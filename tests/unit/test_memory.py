"""Memory: what a version takes, and when what it took is free again. Devices here take what models really take."""

from typing import Any

import pytest

from magnetar_cli import shown
from magnetar_common.evolve import fold
from magnetar_common.render import state_digest
from magnetar_common.state import ReplicaKey, State
from magnetar_common.state_image import image_of, state_of
from magnetar_common.status import ModelState, model_status
from magnetar_common.transitions import R
from magnetar_events import ENTRY
from magnetar_events import facts as f
from magnetar_events import reports as r
from magnetar_events.models import Runtime
from magnetar_events.records import Device
from magnetar_projector.narrative import narrate
from magnetar_scheduler import inputs as i
from magnetar_scheduler.draft import Draft
from magnetar_scheduler.journal import from_record
from magnetar_scheduler.returns import await_return, on_devices
from magnetar_scheduler.servers import news
from tests.support.world import MIB, World, record, spec

GIB = 1024 * MIB
IRIS = "default/iris"
GPU = ("host-a-0", "GPU-1")


def gpu(free: int, uuid: str = "GPU-1", total: int = 16 * GIB) -> Device:
    return Device(uuid=uuid, kind="gpu", total=total, free=free, largest_free=free, utilisation=0.1)


class Stand(World):
    """Servers of one GPU each; ``free`` is what their devices really have."""

    def __init__(self, *servers: str, fold_version: int = 0, host: str = "", **fields: Any) -> None:
        super().__init__(fold_version)
        self.free: dict[str, int] = {}
        self.fields = {"host": host, **fields}
        for server in servers or ("a",):
            self.free[host or server] = 16 * GIB
            self.join(server, devices=(gpu(16 * GIB),), **self.fields)

    def place(self, server: str) -> str:
        return self.fields["host"] or server

    def beat(self, server: str = "a") -> list[f.Fact]:
        """A heartbeat, which the leader's watch takes for news or not."""
        known = self.state.servers[f"local/{server}/0"]
        rec = record(
            server,
            devices=(gpu(self.free[self.place(server)]),),
            incarnation=known.incarnation,
            digest=known.digest,
            **self.fields,
        )
        if news(self.state, rec) != "reading":
            return []
        return self.feed(i.ReadingChanged(rec), from_record("reading", rec.instance_id, rec))

    def run(self, milliseconds: int = 9_000) -> None:
        """Let time pass, with heartbeats."""
        for _ in range(milliseconds // 3_000):
            self.pass_time(3_000)
            self.idle()
            for server in list(self.state.servers.values()):
                if not server.lost:
                    self.beat(server.info.server)

    def idle(self) -> None:
        """An idle leader says that it is alive: the log's time goes on."""
        self.feed(i.Alive(1))

    def load(self, key: ReplicaKey, takes: int, *, seen: bool = True) -> None:
        """Answer a load that really takes so much, and whose agent saw it or not."""
        server = key.server.split("/")[1]
        self.free[self.place(server)] -= takes
        replica = self.state.outstanding[key]
        memory = tuple(
            r.DeviceMemory(device=b.device, declared=b.bytes, measured=takes if seen else 0) for b in replica.bookings
        )
        self.report(
            self.of(server),
            r.ModelLoaded(model=key.model, generation=key.generation, position=replica.position, memory=memory),
        )

    def unload(self, key: ReplicaKey, back: int, *, told: bool = True) -> None:
        """Answer an unload that really gives back so much."""
        server = key.server.split("/")[1]
        free = (r.DeviceFree(device="GPU-1", free=self.free[self.place(server)]),) if told else ()
        self.free[self.place(server)] += back
        replica = self.state.outstanding[key]
        self.report(
            self.of(server),
            r.ModelUnloaded(model=key.model, generation=key.generation, position=replica.position, free=free),
        )

    def loaded(self, name: str, takes: int, *, seen: bool = True, **fields: Any) -> ReplicaKey:
        """Deploy a model and load its replica; return its name."""
        self.deploy(spec(name, **{"devices": 1, "memory": takes, **fields}))
        (key,) = (key for key in self.state.outstanding if key.model == f"default/{name}")
        self.load(key, takes, seen=seen)
        self.beat(key.server.split("/")[1])
        return key

    def gone(self, key: ReplicaKey, back: int, *, told: bool = True) -> None:
        """Undeploy a model and unload its replica."""
        self.undeploy(key.model.removeprefix("default/"))
        self.pass_time(1_100)
        self.unload(key, back, told=told)

    def checked(self) -> None:
        """The log and an image stand for this very state."""
        assert self.state.illegal == 0
        assert self.replayed() == self.state
        assert state_digest(state_of(image_of(self.state))) == state_digest(self.state)


# --- what a version takes -------------------------------------------------------------------------------------------------


def test_s37_the_largest_known_size_is_booked_and_placed_by() -> None:
    """Declared 2 GiB, took 6: so much is reserved for it, and for the next replica; where there is less, it is not placed."""
    world = Stand("a", "b")
    world.free["b"] = 5 * GIB
    world.beat("b")
    world.deploy(spec(devices=1, memory=2 * GIB, server="a"))
    world.load(next(iter(world.state.outstanding)), 6 * GIB)
    assert world.state.booked == {GPU: 6 * GIB}
    assert world.state.models[IRIS].target.size == 6 * GIB
    (learnt,) = world.of_kind(f.SizeLearnt)
    assert learnt.bytes == 6 * GIB
    world.deploy(spec(devices=1, memory=2 * GIB, replicas=2, storage_uri="file:///v2"))  # anywhere
    world.checked()
    assert world.state.models[IRIS].target.size == 2 * GIB, "another artifact is another model, as far as anybody knows"


@pytest.mark.parametrize(
    ("changed", "known"),
    [
        ({"labels": {"team": "a"}}, True),
        ({"replicas": 2, "priority": 5}, True),
        ({"storage_uri": "file:///v2"}, False),
        ({"devices": 2}, False),
        ({"runtime": Runtime(parameters={"workers": "1"})}, False),
        ({"artifact_digest": "b" * 64}, False),
        ({"memory": 5 * GIB}, False),
    ],
)
def test_a_new_version_that_loads_the_same_begins_with_what_is_known(changed: dict[str, Any], known: bool) -> None:
    """Whatever is changed of what it loads, or of what is declared, begins with what it declares."""
    stand = Stand("a")
    wanted = spec(memory=4 * GIB, devices=1, labels={"a": "b"})
    stand.deploy(wanted)
    (key,) = stand.state.outstanding
    stand.answer_one(key, measured=7 * GIB)
    new = wanted.model_copy(update=changed)
    stand.deploy(new)
    target = stand.state.models[IRIS].target
    assert (target.generation, target.size) == (2, 7 * GIB if known else new.memory)
    assert stand.replayed() == stand.state


def test_a_replica_is_not_placed_where_its_version_is_known_not_to_fit() -> None:
    world = Stand("a", "b")
    world.free["b"] = 1 * GIB
    world.beat("b")
    world.deploy(spec(devices=1, memory=2 * GIB))
    world.load(ReplicaKey(IRIS, 1, "local/a/0"), 6 * GIB)
    world.free["b"] = 5 * GIB
    world.beat("b")
    world.scale(2)
    assert world.states() == {(1, "local/a/0"): R.AVAILABLE}
    refused = world.state.models[IRIS].target.refused
    assert refused is not None
    assert {count.rule for count in refused.refusals} == {"memory", "beside"}
    world.free["b"] = 7 * GIB
    world.beat("b")
    assert world.states()[1, "local/b/0"] is R.LOAD_REQUESTED
    assert world.state.booked["host-b-0", "GPU-1"] == 6 * GIB
    world.checked()


def test_what_takes_less_than_declared_keeps_what_was_declared() -> None:
    world = Stand()
    world.loaded("iris", 3 * GIB, memory=4 * GIB)
    assert world.state.booked == {GPU: 4 * GIB}
    assert world.of_kind(f.SizeLearnt, f.ReplicaBooked) == []


def test_a_measure_beyond_the_device_is_cut_to_it() -> None:
    """An agent that says nonsense cannot make a model larger than the device that it is loaded on."""
    world = Stand()
    world.deploy(spec(devices=1, memory=GIB))
    world.load(ReplicaKey(IRIS, 1, "local/a/0"), 2**50)
    assert world.state.booked == {GPU: 16 * GIB}


def test_a_load_that_fails_for_memory_goes_elsewhere_and_the_size_grows() -> None:
    """3 GiB were free and not enough for what declares 2: it is tried where there is more than that, not where there is not."""
    world = Stand("a", "b", "c")
    world.free.update(a=3 * GIB, b=3 * GIB)
    for server in "abc":
        world.beat(server)
    world.deploy(spec(devices=1, memory=2 * GIB))
    (key,) = world.state.outstanding
    assert key.server == "local/a/0"
    fail_for_memory(world, key, free=3 * GIB)
    assert world.state.models[IRIS].target.size == 3 * GIB + 3 * GIB // 20
    assert world.states()[1, "local/c/0"] is R.LOAD_REQUESTED
    assert (1, "local/b/0") not in world.states()
    world.checked()


def fail_for_memory(world: World, key: ReplicaKey, free: int | None) -> None:
    told = () if free is None else (r.DeviceFree(device="GPU-1", free=free),)
    world.report(
        world.state.servers[key.server].record,
        r.ModelLoadFailed(
            model=key.model, generation=key.generation, position=world.state.outstanding[key].position,
            code="LOAD_FAIL_MEMORY", message="CUDA out of memory", free=told,
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("free", "size"),
    [(None, 2 * GIB), (GIB, 2 * GIB), (15 * GIB, 4 * GIB)],
    ids=["not told", "less than declared", "far more"],
)
def test_what_is_learnt_from_a_failed_load_is_bounded(free: int | None, size: int) -> None:
    """Never below what is declared, and at most twice what was known: the limit met may be another than the device's."""
    world = Stand()
    world.deploy(spec(devices=1, memory=2 * GIB))
    fail_for_memory(world, ReplicaKey(IRIS, 1, "local/a/0"), free)
    assert world.state.models[IRIS].target.size == size


def test_s43_out_of_memory_everywhere_ends_failed_with_every_place() -> None:
    """Not tried for ever, and a new server that has more is tried."""
    world = Stand("a", "b")
    world.deploy(spec(devices=1, memory=4 * GIB))
    for _ in range(2):
        loading = [key for key, each in world.state.outstanding.items() if world.state.command_of(each) == "LoadModel"]
        fail_for_memory(world, loading[0], free=5 * GIB)
    status = model_status(world.state.models[IRIS])
    assert status.state is ModelState.FAILED
    assert "local/a/0: LOAD_FAIL_MEMORY" in status.reason
    assert "local/b/0: LOAD_FAIL_MEMORY" in status.reason
    world.join("big", devices=(gpu(80 * GIB, total=80 * GIB),))
    assert world.states()[1, "local/big/0"] is R.LOAD_REQUESTED
    assert world.state.booked["host-big-0", "GPU-1"] == 5 * GIB + 5 * GIB // 20


def look(world: World, amount: int, server: str = "a") -> list[f.Fact]:
    memory = r.ModelMemory(model=IRIS, generation=1, device="GPU-1", observed=amount)
    return world.report(world.of(server), r.LoadObserved(memory=(memory,)))


def test_what_is_observed_later_counts_once_it_is_worth_a_fact() -> None:
    """A cache that grew: a tenth of the size, or a twentieth of the device, is taken up; less would flood the log."""
    world = Stand()
    world.loaded("iris", 4 * GIB)
    assert look(world, 4 * GIB + 100 * MIB) == []
    assert [type(fact) for fact in look(world, 5 * GIB)] == [f.ReplicaBooked, f.SizeLearnt]
    assert look(world, 5 * GIB) == []
    assert look(world, 3 * GIB) == [], "what is known does not shrink"
    assert world.state.booked == {GPU: 5 * GIB}
    world.checked()


def test_a_look_at_what_is_not_there_changes_nothing() -> None:
    world = Stand()
    assert look(world, 5 * GIB) == []
    world.deploy(spec(devices=1, memory=GIB))
    assert look(world, 5 * GIB) == [], "it is being loaded: its own report comes"


# --- over-commit ------------------------------------------------------------------------------------------------------------


def test_s38_booking_follows_the_promise_per_device() -> None:
    """Half as much again on each device, not a byte more, and the room is a signed number: full is never huge."""
    world = World()
    devices = (gpu(16 * GIB), gpu(16 * GIB, "GPU-2"))
    world.join("a", devices=devices, over_commit_percent=50)
    for n in range(5):
        world.deploy(spec(f"m{n}", devices=1, memory=12 * GIB))
        world.answer()
    assert world.state.booked == {GPU: 24 * GIB, ("host-a-0", "GPU-2"): 24 * GIB}
    assert world.states("default/m4") == {}
    assert max(max(rooms) for rooms in world.state.fleet.rooms(world.state).values()) == 0


def test_what_took_more_than_promised_leaves_less_than_nothing() -> None:
    """Models took more than was booked: the room is below zero, and nothing is placed until it is not."""
    world = Stand()
    world.deploy(spec("one", devices=1, memory=6 * GIB))
    world.deploy(spec("two", devices=1, memory=6 * GIB))
    for key in list(world.state.outstanding):
        world.load(key, 10 * GIB)
    assert world.state.booked == {GPU: 20 * GIB}
    world.deploy(spec("three", devices=1, memory=1))
    assert world.states("default/three") == {}
    world.checked()


# --- what is unloaded -------------------------------------------------------------------------------------------------------


def test_s39_memory_is_free_only_when_the_device_shows_it() -> None:
    """Unloaded, and not yet given back: the next model waits, and is placed with the reading that shows the memory."""
    world = Stand()
    key = world.loaded("iris", 10 * GIB)
    world.gone(key, 0)
    assert IRIS not in world.state.models
    assert world.state.booked == {GPU: 10 * GIB}
    world.deploy(spec("next", devices=1, memory=8 * GIB))
    assert world.states("default/next") == {}
    world.free["a"] += 10 * GIB
    world.beat()
    assert world.states("default/next") == {(1, "local/a/0"): R.LOAD_REQUESTED}
    assert world.state.booked == {GPU: 8 * GIB}
    assert world.state.levels == {}
    world.checked()


def test_over_commit_does_not_promise_what_is_not_given_back() -> None:
    """The promise of a server that keeps 10 GiB is less by these 10 GiB."""
    world = Stand(over_commit_percent=100)
    world.gone(world.loaded("iris", 10 * GIB), 0)
    world.deploy(spec("next", devices=1, memory=23 * GIB))
    assert world.states("default/next") == {}
    world.run(60_000)
    assert world.states("default/next") == {}
    world.deploy(spec("less", devices=1, memory=22 * GIB))
    assert world.states("default/less") == {(1, "local/a/0"): R.LOAD_REQUESTED}


def test_s39_what_is_never_given_back_has_leaked_after_a_bounded_wait() -> None:
    """Marked once, still booked, told; and free again should the device show it after all."""
    world = Stand()
    key = world.loaded("iris", 10 * GIB)
    world.gone(key, 0)
    server = world.state.servers["local/a/0"]
    world.run(29_000)
    assert (len(server.awaited), len(server.leaked)) == (1, 0)
    world.run(9_000)
    assert (len(server.awaited), len(server.leaked)) == (0, 1)
    assert world.state.booked == {GPU: 10 * GIB}
    world.run(600_000)
    assert len(world.of_kind(f.MemoryLeaked)) == 1
    world.free["a"] += 10 * GIB
    world.run()
    assert (server.leaked, world.state.booked, world.state.levels) == ({}, {}, {})
    world.checked()


def test_the_wait_is_policy() -> None:
    world = Stand()
    world.set_policy(memory_return_ms=90_000)
    world.gone(world.loaded("iris", 10 * GIB), 0)
    world.run(84_000)
    assert world.of_kind(f.MemoryLeaked) == []
    world.run(12_000)
    assert len(world.of_kind(f.MemoryLeaked)) == 1


def test_another_life_has_leaked_nothing() -> None:
    """What the last one kept went with it; what is taken all the same, the reading shows."""
    world = Stand()
    world.gone(world.loaded("iris", 10 * GIB), 0)
    world.run(60_000)
    world.join("a", incarnation="two", devices=(gpu(16 * GIB),))
    assert (world.state.booked, world.state.levels) == ({}, {})
    world.checked()


def test_a_lost_server_is_not_called_leaky_and_a_forgotten_one_is_forgotten() -> None:
    """Nobody can say of a server that is silent what its devices show; back in the same life it is looked at again."""
    world = Stand()
    world.gone(world.loaded("iris", 10 * GIB), 0)
    world.lapse()
    world.pass_time(600_000)
    assert world.of_kind(f.MemoryLeaked) == []
    back = record("a", devices=(gpu(16 * GIB),))
    world.free["a"] = 16 * GIB
    world.registry(back)
    assert world.of_kind(f.MemoryReturned) != []
    assert world.state.booked == {}
    world.inventory(back)
    world.gone(world.loaded("iris", 10 * GIB), 0)
    world.lapse()
    world.pass_time(world.state.policy.forget_server_ms + 1)
    assert (world.state.servers, world.state.booked, world.state.levels) == ({}, {}, {})
    world.checked()


def test_a_stale_server_is_waited_for_again() -> None:
    world = Stand()
    world.gone(world.loaded("iris", 10 * GIB), 0)
    world.feed(i.ReadingStale("local/a/0"))
    world.pass_time(100_000)
    assert world.of_kind(f.MemoryLeaked) == []
    world.run(60_000)
    assert len(world.of_kind(f.MemoryLeaked)) == 1
    world.checked()


def test_unloads_at_the_same_time_are_counted_one_by_one() -> None:
    """Of three, two gave their memory back: one leaks, and only one."""
    world = Stand()
    keys = [world.loaded(f"m{n}", 5 * GIB) for n in range(3)]
    for key, back in zip(keys, (5 * GIB, 0, 5 * GIB), strict=True):
        world.gone(key, back)
    world.run(60_000)
    assert len(world.of_kind(f.MemoryLeaked)) == 1
    assert world.state.booked == {GPU: 5 * GIB}
    world.checked()


def test_a_load_that_takes_what_came_back_hides_nothing() -> None:
    """Ten came back and ten were taken again: what is free is as before, and nothing has leaked."""
    world = Stand(over_commit_percent=100)
    key = world.loaded("old", 10 * GIB)
    world.deploy(spec("new", devices=1, memory=6 * GIB))
    world.gone(key, 10 * GIB)
    world.load(ReplicaKey("default/new", 1, "local/a/0"), 6 * GIB)
    world.run(60_000)
    assert world.of_kind(f.MemoryLeaked) == []
    assert world.state.booked == {GPU: 6 * GIB}
    world.checked()


def test_a_reading_of_before_a_load_shows_nothing() -> None:
    """What a load has taken since is not what came back: a late heartbeat is not taken for the return of a leak."""
    world = Stand(over_commit_percent=100)
    world.gone(world.loaded("old", 8 * GIB), 0)
    world.deploy(spec("new", devices=1, memory=6 * GIB))
    world.load(ReplicaKey("default/new", 1, "local/a/0"), 6 * GIB)
    world.free["a"] += 6 * GIB  # the heartbeat was made before the load
    world.beat()
    assert world.of_kind(f.MemoryReturned) == []
    world.free["a"] -= 6 * GIB
    world.run(60_000)
    assert len(world.of_kind(f.MemoryLeaked)) == 1
    world.checked()


def test_while_a_load_runs_nobody_is_called_leaky() -> None:
    """It may be taking what came back; when it has ended, one can say."""
    world = Stand(over_commit_percent=100)
    key = world.loaded("old", 8 * GIB)
    world.gone(key, 8 * GIB)
    world.deploy(spec("new", devices=1, memory=8 * GIB))
    world.free["a"] -= 8 * GIB  # it has taken it, and is not ready yet
    world.run(120_000)
    assert world.of_kind(f.MemoryLeaked, f.MemoryReturned) == []
    world.free["a"] += 8 * GIB
    world.load(ReplicaKey("default/new", 1, "local/a/0"), 8 * GIB)
    world.run(15_000)
    assert world.of_kind(f.MemoryLeaked) == []
    assert len(world.of_kind(f.MemoryReturned)) == 1
    world.checked()


@pytest.mark.parametrize(("seen", "told"), [(False, True), (True, False)], ids=["not measured", "no word of before"])
def test_what_nobody_measured_is_free_with_a_reading_that_is_newer(seen: bool, told: bool) -> None:
    """It cannot be said whether it came back: the device's own free memory bounds what is placed there."""
    world = Stand()
    key = world.loaded("iris", 10 * GIB, seen=seen)
    world.gone(key, 0, told=told)
    world.deploy(spec("next", devices=1, memory=8 * GIB))
    world.beat()
    assert world.state.booked == {GPU: 10 * GIB}, "that reading may be of before"
    world.run(12_000)
    assert world.of_kind(f.MemoryLeaked) == []
    assert world.state.booked == {}
    assert world.states("default/next") == {}, "6 GiB are free"
    world.checked()


def test_a_return_too_small_to_be_seen_is_taken_for_one() -> None:
    """Less than a twentieth of the device cannot be told from what moves anyway."""
    world = Stand()
    world.gone(world.loaded("iris", 500 * MIB), 0)
    world.run(12_000)
    assert (world.state.booked, world.of_kind(f.MemoryLeaked)) == ({}, [])
    world.checked()


def test_many_small_leaks_are_one_that_is_seen() -> None:
    """What is passed over counts: it is passed over once per device, not once per model."""
    world = Stand()
    keys = [world.loaded(f"m{n}", 500 * MIB) for n in range(10)]
    for key in keys:
        world.undeploy(key.model.removeprefix("default/"))
    world.pass_time(1_100)
    for key in keys:
        world.unload(key, 0)
    world.run(60_000)
    assert len(world.of_kind(f.MemoryLeaked)) >= 8
    assert world.state.booked[GPU] >= 8 * 500 * MIB
    world.checked()


@pytest.mark.parametrize(("took", "booked"), [(149, 100), (300, 300)], ids=["its libraries", "far more"])
def test_host_memory_counts_when_it_is_far_off_and_is_not_waited_for(took: int, booked: int) -> None:
    """An allocator keeps what it was given back for the next model: nothing to be seen there means nothing."""
    world = World()
    rec = world.join("a")
    world.deploy()
    (replica,) = world.state.outstanding.values()
    memory = (r.DeviceMemory(device="cpu", declared=100 * MIB, measured=took * MIB),)
    world.report(rec, r.ModelLoaded(model=IRIS, generation=1, position=replica.position, memory=memory))
    assert world.state.booked == {("host-a-0", "cpu"): booked * MIB}
    world.undeploy()
    world.pass_time(1_100)
    world.answer()
    assert (world.state.booked, world.state.servers["local/a/0"].awaited) == ({}, {})


def test_servers_that_share_a_device_share_its_level() -> None:
    """What one is to give back is no room for the other, and either's reading of the device is good for its own."""
    world = Stand("a", "b", host="shared")
    key = world.loaded("iris", 10 * GIB, server="a")
    world.gone(key, 0)
    world.deploy(spec("next", devices=1, memory=8 * GIB, server="b"))
    assert world.states("default/next") == {}
    world.free["shared"] += 10 * GIB
    world.run(3_000)
    assert world.states("default/next") == {(1, "local/b/0"): R.LOAD_REQUESTED}
    world.checked()


def test_a_failed_load_is_not_waited_for() -> None:
    """What never was loaded gives nothing back."""
    world = Stand()
    world.deploy(spec(devices=1, memory=8 * GIB))
    key = ReplicaKey(IRIS, 1, "local/a/0")
    world.fail_load(key, retriable=False)
    world.unload(key, 0)
    assert world.state.booked == {}


def test_a_log_of_version_1_goes_on_without() -> None:
    """It cannot hold such facts: there memory is booked as declared, and free once unloaded, as it always was."""
    world = Stand(fold_version=1)
    key = world.loaded("iris", 10 * GIB, memory=4 * GIB)
    assert world.state.booked == {GPU: 4 * GIB}
    world.gone(key, 0)
    assert world.state.booked == {}
    assert {entry.fold_version for entry in world.log} == {1}
    world.checked()
    state = State()
    for payload, schema in zip(world.payloads, world.schemas, strict=True):
        fold(state, ENTRY.decode_trusted(payload, schema))
    assert "levels" not in image_of(state).decode() or state.levels == {}


# --- where it is seen -------------------------------------------------------------------------------------------------------


def test_what_is_not_given_back_is_shown() -> None:
    """Of the server in a column, of a model that is still wanted by server; the log says it in words."""
    world = Stand("a", "b")
    world.deploy(spec(devices=1, memory=4 * GIB, replicas=2))
    for key in list(world.state.outstanding):
        world.load(key, 5 * GIB)
    world.scale(1)
    world.pass_time(1_100)
    (key,) = world.state.outstanding
    world.unload(key, 0)
    (row,) = shown.unreturned(world.state, IRIS)
    assert (row["server"], row["leaked"]) == (key.server, False)
    world.run(60_000)
    (row,) = shown.unreturned(world.state, IRIS)
    assert shown.UNRETURNED["memory"](row) == "5 GiB on GPU-1"
    assert shown.UNRETURNED["state"](row) == "leaked"
    cells = {row["key"]: shown.SERVERS["unreturned"](row) for row in shown.servers(world.state)}
    assert cells == {"local/a/0": "-", "local/b/0": "-", key.server: "5 GiB leaked"}
    assert shown.model_row(world.state.models[IRIS])["size"] == 5 * GIB
    (leaked,) = world.of_kind(f.MemoryLeaked)
    assert narrate(leaked).startswith(f"{key.server} is leaky: it did not give back 5 GiB on GPU-1 of default/iris v1")


def test_a_decision_that_unloads_counts_what_stays_reserved() -> None:
    """Whatever else it places finds no room there: unloading and keeping reserved come to nothing, returning to a release."""
    world = Stand()
    key = world.loaded("iris", 10 * GIB)
    world.undeploy()
    world.pass_time(1_100)
    draft = Draft(world.state, world.at)
    model = draft.model(IRIS)
    assert model is not None
    replica = model.replicas[1, key.server]
    draft.change(replica, R.UNLOADED)
    assert draft.reserved == {GPU: -10 * GIB}
    await_return(draft, replica, (r.DeviceFree(device="GPU-1", free=6 * GIB),))
    assert draft.reserved == {GPU: 0}
    world.unload(key, 0)
    draft = Draft(world.state, world.at)
    info = record("a", devices=(gpu(16 * GIB),)).server
    assert info is not None
    on_devices(draft, world.state.servers[key.server], info)
    assert draft.reserved == {GPU: -10 * GIB}


def test_a_server_that_moves_to_another_machine_owes_nothing() -> None:
    """What it is to give back was the old machine's; the devices of the new one show as much free as they have."""
    world = Stand()
    world.gone(world.loaded("iris", 10 * GIB), 0)
    world.registry(record("a", devices=(gpu(16 * GIB),), host="another"))
    assert (world.state.booked, world.state.levels, world.of_kind(f.MemoryReturned)) == ({}, {}, [])
    world.checked()
