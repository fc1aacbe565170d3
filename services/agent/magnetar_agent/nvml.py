"""The part of NVML that the agent uses, as the module `pynvml` (nvidia-ml-py) offers it."""
# ruff: noqa: D102, N802, N815  # the names and their contracts are NVIDIA's

from collections.abc import Sequence
from typing import Any, Protocol, cast

import structlog

log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger()


class NvmlMemory(Protocol):
    """Bytes of one device."""

    total: Any
    free: Any
    used: Any


class NvmlUtilisation(Protocol):
    """Percent of the last sample period in which a kernel ran."""

    gpu: Any


class NvmlProcess(Protocol):
    """A process with memory on a device; `usedGpuMemory` in bytes, None where the driver cannot say."""

    pid: Any
    usedGpuMemory: Any


class Nvml(Protocol):
    """The functions used, each raising a subclass of `NVMLError` when the driver refuses."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> Any: ...
    def nvmlShutdown(self) -> Any: ...
    def nvmlDeviceGetCount(self) -> Any: ...
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...
    def nvmlDeviceGetUUID(self, handle: Any) -> Any: ...
    def nvmlDeviceGetName(self, handle: Any) -> Any: ...
    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> NvmlMemory: ...
    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> NvmlUtilisation: ...
    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> Sequence[NvmlProcess]: ...
    def nvmlDeviceGetMigMode(self, handle: Any) -> Sequence[int]: ...
    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any) -> int: ...
    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Any, index: int) -> Any: ...


def load_nvml() -> Nvml | None:
    """Return NVML, initialised; None on a host without NVIDIA's driver, which is no error and is logged once here."""
    try:
        import pynvml  # pyright: ignore[reportMissingTypeStubs]
    except ImportError:
        log.info("nvml.absent", reason="nvidia-ml-py is not installed")
        return None
    nvml = cast("Nvml", pynvml)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        log.info("nvml.absent", reason=str(error))
        return None
    return nvml
