"""What the agent says of memory: before and after its operations, on devices that really have less afterwards."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar_agent.adapters.base import Code, ModelSpec
from magnetar_agent.devices import Devices
from magnetar_events.reports import DeviceFree, ModelLoaded, ModelLoadFailed, ModelUnloaded
from tests.support.adapters import FakeAdapter
from tests.support.stage import SERVED, Stage, staged
from tests.unit.agent.test_devices import GIB, FakeDevice, FakeNvml

STRANGER = 1


@pytest.fixture
def gpu() -> FakeDevice:
    return FakeDevice("GPU-1")


@pytest.fixture
def stage(tmp_path: Path, gpu: FakeDevice) -> Iterator[Stage]:
    """An agent before a server whose process ids it does not know, as in a container."""
    adapter = FakeAdapter()
    adapter.on_load = lambda _: gpu.processes.update({STRANGER: 3 * GIB})
    with staged(tmp_path, adapter, devices=Devices(FakeNvml(gpu), own_cgroup=tmp_path / "none")) as running:
        yield running


def test_a_load_takes_what_is_no_longer_free(stage: Stage) -> None:
    stage.load(1, devices=("GPU-1",))
    (memory,) = stage.hears(ModelLoaded, 1).memory
    assert (memory.device, memory.declared, memory.measured, memory.observed) == ("GPU-1", 100, 3 * GIB, 0)


def test_what_its_own_processes_took_is_told_apart_from_strangers(tmp_path: Path, gpu: FakeDevice) -> None:
    """Where the driver says whose memory it is: somebody else loads meanwhile, and it is not taken for ours."""
    ours = os.getpid()

    def load(_: ModelSpec) -> None:
        gpu.processes.update({ours: 2 * GIB, STRANGER: 9 * GIB})

    adapter = FakeAdapter()
    adapter.on_load = load
    with staged(tmp_path, adapter, devices=Devices(FakeNvml(gpu), own_cgroup=tmp_path / "none")) as stage:
        stage.agent._pids = lambda: (ours,)
        stage.load(1, devices=("GPU-1",))
        (memory,) = stage.hears(ModelLoaded, 1).memory
    assert (memory.measured, memory.observed) == (2 * GIB, 2 * GIB)


def test_host_memory_of_a_server_whose_processes_are_not_known_is_not_measured(stage: Stage) -> None:
    """What a whole machine has free moves with everything that runs there."""
    stage.load(1)
    (memory,) = stage.hears(ModelLoaded, 1).memory
    assert (memory.device, memory.measured) == ("cpu", 0)


def test_a_load_that_fails_says_what_was_free_before_it(stage: Stage) -> None:
    stage.adapter.fails[SERVED] = (Code.LOAD_FAIL_MEMORY, "CUDA out of memory")
    stage.load(1, devices=("GPU-1",))
    told = stage.hears(ModelLoadFailed, 1)
    assert (told.code, told.free) == ("LOAD_FAIL_MEMORY", (DeviceFree(device="GPU-1", free=16 * GIB),))


def test_a_load_that_fails_before_it_began_says_nothing_of_memory(stage: Stage) -> None:
    stage.load(1, devices=("GPU-1",), artifact_digest="0" * 64)
    told = stage.hears(ModelLoadFailed, 1)
    assert (told.code, told.free) == ("ARTIFACT_MISMATCH", ())


def test_an_unload_says_what_its_accelerators_had_free_before(stage: Stage) -> None:
    """By that the leader knows what came back, whatever the heartbeats said."""
    stage.load(1, devices=("GPU-1",))
    stage.hears(ModelLoaded, 1)
    stage.unload(2)
    assert stage.hears(ModelUnloaded, 2).free == (DeviceFree(device="GPU-1", free=13 * GIB),)
