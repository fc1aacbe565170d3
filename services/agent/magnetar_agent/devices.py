"""What the devices of this host have, read anew at every heartbeat.

Memory belongs to a device, not to a server: two agents on one host read the same uuids and the same bytes, and each
knows which part is its own server's. Host memory is the device `cpu`. A GPU split by MIG is not itself a device to
place on: its instances are, with it as their parent.
"""

import contextlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import psutil

from magnetar_agent.nvml import Nvml, load_nvml

CPU = "cpu"


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """One device at one moment.

    Attributes:
        uuid: NVML's uuid, or `cpu`.
        kind: What it is.
        name: The product's name, which `gpuTypes` are matched against; for host memory `cpu`.
        parent: The uuid of the GPU that a MIG instance is part of, else empty.
        total_bytes: Its memory. For host memory the smaller of the machine's and the cgroup's limit.
        free_bytes: What nobody uses.
        largest_free_bytes: NVML has no block map: the same as free.
        ours_bytes: Used by the processes the caller named.
        utilisation: 0 to 1, or None where it cannot be read (MIG instances).
        error: Why the device could not be read; its numbers are then zero, and it is no place for a model.
    """

    uuid: str
    kind: Literal["gpu", "mig", "cpu"]
    name: str = ""
    parent: str = ""
    total_bytes: int = 0
    free_bytes: int = 0
    largest_free_bytes: int = 0
    ours_bytes: int = 0
    utilisation: float | None = None
    error: str = ""

    @property
    def others_bytes(self) -> int:
        """Bytes used by strangers: everything used that is not ours."""
        return max(0, self.total_bytes - self.free_bytes - self.ours_bytes)


class Devices:
    """Reads the devices of this host.

    Args:
        nvml: NVML; by default the installed one, or none without a driver.
        cgroups: Root of the cgroup file system.
        own_cgroup: File that names this process's cgroup.
    """

    def __init__(
        self,
        nvml: Nvml | None = None,
        *,
        cgroups: Path = Path("/sys/fs/cgroup"),
        own_cgroup: Path = Path("/proc/self/cgroup"),
    ) -> None:
        self._nvml = nvml if nvml is not None else load_nvml()
        self._cgroups = cgroups
        self._own_cgroup = own_cgroup
        # By NVML index: what a device that fails today was called when it last answered.
        self._known: dict[tuple[int, int | None], DeviceReading] = {}
        self._count = 0
        psutil.cpu_percent(interval=None)  # the first call has nothing to compare with and returns 0

    def read(self, ours: Collection[int] = ()) -> list[DeviceReading]:
        """Read every device; host memory is always the last.

        A device whose driver calls fail is in the list with `error`, under the uuid it had before, and hides no other.

        Args:
            ours: Process ids of our server; their children count too. In a container NVML speaks of the host's ids, so
                that there everything is others'.
        """
        family = _with_children(ours)
        readings: list[DeviceReading] = []
        if self._nvml is not None:
            # Should it fail, the devices of the last count are read, and say themselves why they cannot be.
            with contextlib.suppress(self._nvml.NVMLError):
                self._count = int(self._nvml.nvmlDeviceGetCount())
            for index in range(self._count):
                readings += self._read_gpu(self._nvml, index, family)
        return [*readings, self._read_host(family)]

    def held(self, pids: Collection[int]) -> dict[str, int]:
        """Return device → bytes that some processes and their children hold, of each device on which they hold any."""
        family = _with_children(pids)
        held = {CPU: sum(_resident(pid) for pid in family)}
        if self._nvml is not None:
            for index in range(self._count):
                held |= {each.uuid: each.ours_bytes for each in self._read_gpu(self._nvml, index, family)}
        return {uuid: size for uuid, size in held.items() if size}

    def close(self) -> None:
        """Release NVML. Not to be read afterwards."""
        if self._nvml is not None:
            with contextlib.suppress(self._nvml.NVMLError):  # the driver may be gone already
                self._nvml.nvmlShutdown()

    def _read_gpu(self, nvml: Nvml, index: int, ours: set[int]) -> list[DeviceReading]:
        instances: dict[int, Any] = {}
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = _text(nvml.nvmlDeviceGetUUID(handle))
            split = _is_split(nvml, handle)
            if split:
                instances = _mig_instances(nvml, handle)
        except nvml.NVMLError as error:
            return self._failed(index, str(error))
        if not split:
            return [self._read_device(nvml, (index, None), handle, DeviceReading(uuid, "gpu"), ours)]
        readings: list[DeviceReading] = []
        for number, instance in instances.items():
            try:
                blank = DeviceReading(_text(nvml.nvmlDeviceGetUUID(instance)), "mig", parent=uuid)
            except nvml.NVMLError as error:
                blank = DeviceReading(f"{uuid}/mig-{number}", "mig", parent=uuid)
                readings.append(replace(self._known.get((index, number), blank), error=str(error)))
                continue
            readings.append(self._read_device(nvml, (index, number), instance, blank, ours))
        return readings

    def _read_device(
        self, nvml: Nvml, place: tuple[int, int | None], handle: Any, blank: DeviceReading, ours: set[int]
    ) -> DeviceReading:
        self._known[place] = blank
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            named = replace(blank, name=_text(nvml.nvmlDeviceGetName(handle)))
        except nvml.NVMLError as error:
            return replace(blank, error=str(error))
        self._known[place] = named
        free = int(memory.free)
        return replace(
            named,
            total_bytes=int(memory.total),
            free_bytes=free,
            largest_free_bytes=free,
            ours_bytes=sum(int(p.usedGpuMemory or 0) for p in processes if int(p.pid) in ours),
            utilisation=_utilisation(nvml, handle),
        )

    def _failed(self, index: int, error: str) -> list[DeviceReading]:
        known = [reading for (place, _), reading in self._known.items() if place == index]
        return [replace(reading, error=error) for reading in known or [DeviceReading(f"index-{index}", "gpu")]]

    def _read_host(self, ours: set[int]) -> DeviceReading:
        memory = psutil.virtual_memory()
        total, free = memory.total, memory.available
        for limit, used in self._cgroup_limits():
            total, free = min(total, limit), min(free, max(0, limit - used))
        return DeviceReading(
            CPU,
            "cpu",
            name=CPU,
            total_bytes=total,
            free_bytes=free,
            largest_free_bytes=free,
            ours_bytes=sum(_resident(pid) for pid in ours),
            utilisation=psutil.cpu_percent(interval=None) / 100,
        )

    def _cgroup_limits(self) -> list[tuple[int, int]]:
        """Return (limit, used) in bytes of each limited cgroup (version 2) from ours up to the root.

        Used leaves out `inactive_file`: page cache that the kernel gives back first, as the kubelet's working set does.
        """
        try:
            lines = self._own_cgroup.read_text().splitlines()
        except OSError:
            return []  # no cgroups on this system
        own = next((line[3:] for line in lines if line.startswith("0::")), "/")
        folder = self._cgroups / own.strip("/")
        found: list[tuple[int, int]] = []
        for place in [folder, *folder.parents]:
            if not place.is_relative_to(self._cgroups):
                break
            try:
                limit = (place / "memory.max").read_text().strip()
                used = int((place / "memory.current").read_text())
                statistics = (place / "memory.stat").read_text().splitlines()
            except OSError:
                continue  # the root has no limit; a group without the memory controller neither
            cache = next((int(line.split()[1]) for line in statistics if line.startswith("inactive_file ")), 0)
            if limit != "max":
                found.append((int(limit), used - cache))
        return found


def _with_children(pids: Collection[int]) -> set[int]:
    family = set(pids)
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):  # ended between two looks: it uses nothing now
            family.update(child.pid for child in psutil.Process(pid).children(recursive=True))
    return family


def _resident(pid: int) -> int:
    try:
        return psutil.Process(pid).memory_info().rss
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0


def _is_split(nvml: Nvml, handle: Any) -> bool:
    try:
        return nvml.nvmlDeviceGetMigMode(handle)[0] == 1
    except nvml.NVMLError:
        return False  # NOT_SUPPORTED: a GPU without MIG


def _mig_instances(nvml: Nvml, handle: Any) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        with contextlib.suppress(nvml.NVMLError):  # NOT_FOUND: this place holds no instance
            found[number] = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
    return found


def _utilisation(nvml: Nvml, handle: Any) -> float | None:
    try:
        return int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
    except nvml.NVMLError:
        return None  # NOT_SUPPORTED on MIG instances


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)  # bytes before nvidia-ml-py 12
