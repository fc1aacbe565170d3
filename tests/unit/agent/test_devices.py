"""Device readings, against an NVML written by hand."""
# the names are NVIDIA's

import os
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from magnetar_agent.devices import DeviceReading, Devices

GIB = 1 << 30


class NvmlError(Exception):
    """What the driver says when it refuses."""


@dataclass(eq=False)
class FakeDevice:
    """A GPU or a MIG instance; `fails` names the calls that raise."""

    uuid: str
    total: int = 16 * GIB
    processes: dict[int, int | None] = field(default_factory=dict)
    percent: int | None = 0
    instances: dict[int, "FakeDevice"] = field(default_factory=dict)
    fails: set[str] = field(default_factory=set)


class FakeNvml:
    """`pynvml`'s functions over a list of devices."""

    NVMLError = NvmlError

    def __init__(self, *gpus: FakeDevice) -> None:
        self.gpus = gpus
        self.count_fails = False
        self.shut = False

    def _answer(self, device: FakeDevice, call: str, value: Any) -> Any:
        if call in device.fails:
            raise NvmlError(f"{call}: GPU is lost")
        return value

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None:
        self.shut = True

    def nvmlDeviceGetCount(self) -> int:
        if self.count_fails:
            raise NvmlError("driver is gone")
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeDevice:
        return self._answer(self.gpus[index], "handle", self.gpus[index])

    def nvmlDeviceGetUUID(self, handle: FakeDevice) -> str:
        return self._answer(handle, "uuid", handle.uuid)

    def nvmlDeviceGetName(self, handle: FakeDevice) -> str:
        return self._answer(handle, "name", "NVIDIA A100")

    def nvmlDeviceGetMemoryInfo(self, handle: FakeDevice) -> Any:
        used = sum(n or 0 for n in handle.processes.values())
        return self._answer(handle, "memory", SimpleNamespace(total=handle.total, used=used, free=handle.total - used))

    def nvmlDeviceGetUtilizationRates(self, handle: FakeDevice) -> Any:
        if handle.percent is None:
            raise NvmlError("not supported")
        return SimpleNamespace(gpu=handle.percent)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: FakeDevice) -> list[Any]:
        return self._answer(
            handle, "processes", [SimpleNamespace(pid=p, usedGpuMemory=n) for p, n in handle.processes.items()]
        )

    def nvmlDeviceGetMigMode(self, handle: FakeDevice) -> list[int]:
        if not handle.instances:
            raise NvmlError("not supported")
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: FakeDevice) -> int:
        return self._answer(handle, "mig", 7)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: FakeDevice, index: int) -> FakeDevice:
        if index not in device.instances:
            raise NvmlError("not found")
        return device.instances[index]


def read(nvml: FakeNvml, *ours: int) -> dict[str, DeviceReading]:
    return {reading.uuid: reading for reading in Devices(nvml).read(ours)}


def test_two_gpus_and_the_host_are_three_devices() -> None:
    """Each GPU with its own memory and utilisation; host memory is the device `cpu`, last."""
    gpus = FakeNvml(FakeDevice("GPU-a", processes={7: 4 * GIB}, percent=35), FakeDevice("GPU-b"))
    a, b, cpu = Devices(gpus).read()
    assert (a.uuid, a.kind, a.name, a.parent) == ("GPU-a", "gpu", "NVIDIA A100", "")
    assert (a.total_bytes, a.free_bytes, a.largest_free_bytes, a.utilisation) == (16 * GIB, 12 * GIB, 12 * GIB, 0.35)
    assert (b.uuid, b.free_bytes) == ("GPU-b", 16 * GIB)
    assert (cpu.uuid, cpu.kind) == ("cpu", "cpu")
    assert 0 < cpu.free_bytes <= cpu.total_bytes


def test_a_split_gpu_is_its_instances() -> None:
    """A MIG instance is a device with a parent; the parent is no place, or its memory would be booked twice."""
    split = FakeDevice(
        "GPU-a",
        instances={0: FakeDevice("MIG-0", 10 * GIB, percent=None), 3: FakeDevice("MIG-3", 5 * GIB, percent=None)},
    )
    readings = read(FakeNvml(split, FakeDevice("GPU-b")))
    assert list(readings) == ["MIG-0", "MIG-3", "GPU-b", "cpu"]
    assert (readings["MIG-3"].kind, readings["MIG-3"].parent, readings["MIG-3"].total_bytes) == (
        "mig",
        "GPU-a",
        5 * GIB,
    )
    assert readings["MIG-0"].utilisation is None


@pytest.mark.parametrize("call", ["handle", "uuid", "memory", "processes", "name"])
def test_a_failing_device_hides_no_other(call: str) -> None:
    """A device whose driver call fails is shown with the error, under the uuid it had, and the rest are read."""
    sick = FakeDevice("GPU-a")
    devices = Devices(FakeNvml(sick, FakeDevice("GPU-b")))
    devices.read()
    sick.fails = {call}
    a, b, _ = devices.read()
    assert (a.uuid, a.total_bytes, a.free_bytes) == ("GPU-a", 0, 0)
    assert "GPU is lost" in a.error
    assert (b.uuid, b.error, b.free_bytes) == ("GPU-b", "", 16 * GIB)


def test_a_device_that_never_answered_has_a_name_of_its_place() -> None:
    """It cannot be placed on, but it is not silent."""
    readings = read(FakeNvml(FakeDevice("GPU-a", fails={"handle"}), FakeDevice("GPU-b")))
    assert readings["index-0"].error
    assert not readings["GPU-b"].error


def test_a_driver_that_goes_away_shows_every_device_with_the_error() -> None:
    """Devices do not vanish from the fleet because the driver restarts."""
    gpu = FakeDevice("GPU-a")
    nvml = FakeNvml(gpu)
    devices = Devices(nvml)
    devices.read()
    nvml.count_fails, gpu.fails = True, {"handle"}
    a, _ = devices.read()
    assert (a.uuid, bool(a.error)) == ("GPU-a", True)


def test_a_strangers_memory_is_visible() -> None:
    """Used by others is what is used less what is ours."""
    me = os.getpid()
    reading = read(FakeNvml(FakeDevice("GPU-a", processes={me: 3 * GIB, 999_999: 5 * GIB, 999_998: None})), me)["GPU-a"]
    assert (reading.ours_bytes, reading.others_bytes, reading.free_bytes) == (3 * GIB, 5 * GIB, 8 * GIB)


def test_two_servers_on_one_host_read_the_same_device() -> None:
    """Same uuid, same free bytes; each one's own memory is the other's stranger."""
    nvml = FakeNvml(FakeDevice("GPU-a", processes={999_001: 2 * GIB, 999_002: 6 * GIB}))
    one, two = read(nvml, 999_001)["GPU-a"], read(nvml, 999_002)["GPU-a"]
    assert (one.uuid, one.free_bytes) == (two.uuid, two.free_bytes)
    assert (one.ours_bytes, one.others_bytes) == (two.others_bytes, two.ours_bytes) == (2 * GIB, 6 * GIB)


def test_a_host_without_a_driver_has_only_its_memory() -> None:
    """No NVIDIA driver is no error."""
    assert [reading.uuid for reading in Devices().read()][-1] == "cpu"


def test_a_cgroup_limit_below_the_hosts_memory_is_the_limit(tmp_path: Path) -> None:
    """The tightest of all enclosing groups counts, without the page cache that the kernel gives back."""
    pod = tmp_path / "cgroup" / "pod"
    agent = pod / "agent"
    agent.mkdir(parents=True)
    for folder, limit, used, cache in ((pod, str(2 * GIB), GIB, GIB // 2), (agent, "max", GIB // 4, 0)):
        (folder / "memory.max").write_text(limit + "\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 1\ninactive_file {cache}\n")
    (tmp_path / "own").write_text("0::/pod/agent\n")
    (cpu,) = Devices(FakeNvml(), cgroups=tmp_path / "cgroup", own_cgroup=tmp_path / "own").read([os.getpid()])
    assert cpu.total_bytes == 2 * GIB
    assert cpu.free_bytes == 2 * GIB - GIB // 2
    assert 0 < cpu.ours_bytes < psutil.virtual_memory().total


def test_closing_releases_the_driver() -> None:
    """NVML counts its users."""
    nvml = FakeNvml()
    Devices(nvml).close()
    assert nvml.shut
