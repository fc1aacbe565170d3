"""Devices from the driver to the placement: what NVML says, the agent reports, and the leader books."""

from pathlib import Path

from magnetar_agent.devices import Devices
from magnetar_common.status import ModelState, model_status
from magnetar_common.transitions import R
from magnetar_events import ServiceRecord
from magnetar_events import facts as f
from magnetar_events.records import Device
from tests.support.adapters import FakeAdapter
from tests.support.stage import Stage
from tests.support.world import MIB, World, record, spec
from tests.unit.agent.test_devices import FakeDevice, FakeNvml

GIB = 1024 * MIB
IRIS = "default/iris"


def read(tmp_path: Path, nvml: FakeNvml, server: str = "a", **fields: object) -> ServiceRecord:
    """The record that an agent on a host with these devices sends."""
    place = tmp_path / server
    place.mkdir()
    stage = Stage(place, FakeAdapter(), devices=Devices(nvml, own_cgroup=tmp_path / "none"))
    try:
        return stage.agent.refresh(record(server, **fields))  # type: ignore[arg-type]
    finally:
        stage.agent.close()


def join(world: World, rec: ServiceRecord) -> None:
    world.registry(rec)
    world.inventory(rec)


def placed_on(world: World, model: str = IRIS) -> dict[str, tuple[str, ...]]:
    """Server → devices, of the replicas of a model."""
    replicas = world.state.models[model].replicas.values()
    return {x.server: tuple(booking.device for booking in x.bookings) for x in replicas}


def test_two_servers_on_one_host_share_its_books(tmp_path: Path) -> None:
    """Memory belongs to a device: what one server's replica books is no longer there for the other's."""
    world = World()
    gpu = FakeNvml(FakeDevice("GPU-1", total=16 * GIB))
    for server in ("a", "b"):
        join(world, read(tmp_path, gpu, server, host="shared"))
    world.deploy(spec("one", devices=1, memory=10 * GIB))
    world.deploy(spec("two", devices=1, memory=10 * GIB))
    assert world.state.booked == {("shared", "GPU-1"): 10 * GIB}
    refused = world.state.models["default/two"].target.refused
    assert refused is not None
    assert {count.rule: count.servers for count in refused.refusals} == {"memory": 2}
    world.answer()
    world.undeploy("one")
    world.pass_time(5_000)
    world.answer()
    assert model_status(world.state.models["default/two"]).state is ModelState.AVAILABLE
    assert world.state.booked == {("shared", "GPU-1"): 10 * GIB}


def test_same_uuid_on_two_hosts_is_two_devices(tmp_path: Path) -> None:
    """Host memory is ``cpu`` everywhere, and each host's own."""
    world = World()
    for server in ("a", "b"):
        join(world, read(tmp_path, FakeNvml(FakeDevice("GPU-1")), server))
    world.deploy(spec(devices=1, memory=10 * GIB, replicas=2))
    assert len(placed_on(world)) == 2


def test_two_devices_on_one_server_are_all_or_nothing(tmp_path: Path) -> None:
    """Two GPUs take a model that needs two, each booked in full; a third is refused, whole."""
    world = World()
    two = FakeNvml(FakeDevice("GPU-1", total=16 * GIB), FakeDevice("GPU-2", total=16 * GIB))
    join(world, read(tmp_path, two))
    world.deploy(spec(devices=2, memory=10 * GIB))
    assert placed_on(world) == {"local/a/0": ("GPU-1", "GPU-2")}
    world.answer()
    world.deploy(spec("more", devices=2, memory=10 * GIB))
    world.deploy(spec("three", devices=3, memory=1))
    for model, rule in (("default/more", "memory"), ("default/three", "devices")):
        refused = world.state.models[model].target.refused
        assert refused is not None
        assert [count.rule for count in refused.refusals] == [rule]
        assert placed_on(world, model) == {}
    assert world.state.booked == {("host-a-0", "GPU-1"): 10 * GIB, ("host-a-0", "GPU-2"): 10 * GIB}


def test_one_device_short_of_two_takes_nothing(tmp_path: Path) -> None:
    """A stranger holds one of them: half of the model is not placed on the other."""
    world = World()
    join(world, read(tmp_path, FakeNvml(FakeDevice("GPU-1"), FakeDevice("GPU-2", processes={1: 12 * GIB}))))
    world.deploy(spec(devices=2, memory=10 * GIB))
    assert world.states() == {}
    assert world.state.booked == {}
    world.deploy(spec("small", devices=1, memory=10 * GIB))
    assert placed_on(world, "default/small") == {"local/a/0": ("GPU-1",)}


def test_mig_instances_are_placed_on_and_their_parent_is_not(tmp_path: Path) -> None:
    """A split GPU is no device; its instances are, each with its own memory."""
    world = World()
    slices = {n: FakeDevice(f"MIG-{n}", total=8 * GIB, percent=None) for n in (0, 1)}
    join(world, read(tmp_path, FakeNvml(FakeDevice("GPU-1", total=80 * GIB, instances=slices))))
    for name in ("one", "two", "three"):
        world.deploy(spec(name, devices=1, memory=5 * GIB))
    assert placed_on(world, "default/one") == {"local/a/0": ("MIG-0",)}
    assert placed_on(world, "default/two") == {"local/a/0": ("MIG-1",)}
    assert placed_on(world, "default/three") == {}
    assert {device for _, device in world.state.booked} == {"MIG-0", "MIG-1"}


def test_parent_that_is_reported_beside_its_instances_is_not_placed_on() -> None:
    """An agent of another make may list the split GPU too: it has more room than either, and takes nothing."""
    world = World()
    parent = Device(uuid="GPU-1", kind="gpu", total=80 * GIB, free=80 * GIB, largest_free=80 * GIB)
    child = Device(uuid="MIG-0", kind="mig", parent="GPU-1", total=8 * GIB, free=8 * GIB, largest_free=8 * GIB)
    join(world, record("a", devices=(parent, child)))
    world.deploy(spec("small", devices=1, memory=5 * GIB))
    world.deploy(spec("large", devices=1, memory=40 * GIB))
    assert placed_on(world, "default/small") == {"local/a/0": ("MIG-0",)}
    assert placed_on(world, "default/large") == {}


def test_device_that_cannot_be_read_takes_nothing(tmp_path: Path) -> None:
    """The call that fails names its device; the other one is placed on."""
    world = World()
    broken = FakeDevice("GPU-1", fails={"memory"})
    join(world, read(tmp_path, FakeNvml(broken, FakeDevice("GPU-2"))))
    assert "GPU is lost" in world.state.servers["local/a/0"].devices["GPU-1"].error
    world.deploy(spec(devices=1, memory=GIB))
    assert placed_on(world) == {"local/a/0": ("GPU-2",)}


def test_devices_of_the_placement_reach_the_server(tmp_path: Path) -> None:
    """The command names them, and the adapter is asked to load on just those."""
    from magnetar_scheduler.effects import replica_command

    world = World()
    join(world, read(tmp_path, FakeNvml(FakeDevice("GPU-1"), FakeDevice("GPU-2"))))
    world.deploy(spec(devices=2, memory=GIB))
    command = replica_command(world.state, 1, next(iter(world.state.outstanding.values())))
    assert command is not None
    assert command.command.devices == ("GPU-1", "GPU-2")  # type: ignore[union-attr]
    assert isinstance(world.log[-1].facts[-1], f.ReplicaPlaced)
    assert set(world.states().values()) == {R.LOAD_REQUESTED}


def test_room_that_a_finished_load_makes_for_another_server_of_its_host_is_seen() -> None:
    """While a load runs no reading shows it, and it counts on top of the readings of everybody on that host."""
    world = World()
    memory = Device(uuid="cpu", total=300 * MIB, free=100 * MIB, largest_free=100 * MIB)
    for server in ("a", "b"):
        world.join(server, host="shared", devices=(memory,))
    world.deploy(spec("first", memory=60 * MIB, server="a"))
    world.deploy(spec("second", memory=80 * MIB, server="b"))
    assert world.states("default/second") == {}
    world.answer()
    world.deploy(spec("third", memory=80 * MIB, server="b"))
    assert world.states("default/third") == {(1, "local/b/0"): R.LOAD_REQUESTED}
