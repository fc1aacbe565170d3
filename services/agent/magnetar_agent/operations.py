"""The two operations on a version: load (fetch, check, load, verify) and unload. Each ends in exactly one report."""

import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import structlog

from magnetar_agent.adapters.base import RETRIABLE, Adapter, Code, LoadFailed, ModelSpec, OperationError
from magnetar_agent.artifacts import FetchedArtifact, fetch
from magnetar_agent.devices import CPU, DeviceReading
from magnetar_agent.secrets import resolve
from magnetar_agent.text import line
from magnetar_common.metrics import LOAD_SECONDS
from magnetar_events.commands import LoadModel, UnloadModel
from magnetar_events.models import served_name
from magnetar_events.reports import (
    DeviceFree,
    DeviceMemory,
    LoadTimes,
    ModelLoaded,
    ModelLoadFailed,
    ModelUnloaded,
    ModelUnloadFailed,
)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Operations:
    """What the operations need.

    Attributes:
        adapter: the inference server.
        artifacts: folder of fetched artifacts.
        secrets: folder of this host's secrets, or None.
        devices: reads the devices now.
        activity: returns (operations begun so far, operations running now): memory is measured by one that was alone.
        artifact_roots: folders that a `file:` URI may lead into; none = whatever this process may read.
    """

    adapter: Adapter
    artifacts: Path
    secrets: Path | None
    devices: Callable[[], list[DeviceReading]]
    activity: Callable[[], tuple[int, int]]
    artifact_roots: tuple[Path, ...] = ()

    def load(self, wanted: LoadModel, position: int, *, afresh: bool = False) -> ModelLoaded | ModelLoadFailed:
        """Load a version, and say how that went; never raises.

        Args:
            wanted: what to load.
            position: of the command, echoed in the report.
            afresh: unload it first, even if the server says that it is ready.
        """
        model, generation = wanted.model, wanted.generation
        before = _Before()
        try:
            return self._load(wanted, position, before, afresh=afresh)
        except Exception as error:  # noqa: BLE001 - whatever it is, the scheduler must hear of it
            code, message = _told(error, Code.LOAD_FAILED)
            _log.warning("load failed", model=model, generation=generation, code=code, error=message)
            return ModelLoadFailed(
                model=model,
                generation=generation,
                position=position,
                code=code,
                retriable=RETRIABLE[code],
                message=message,
                free=_free(before.readings, wanted.devices or (CPU,)) if self._alone(before) else (),
            )

    def unload(self, wanted: UnloadModel, position: int) -> ModelUnloaded | ModelUnloadFailed:
        """Unload a version, and say how that went; never raises."""
        model, generation = wanted.model, wanted.generation
        before = self._read()
        try:
            self.adapter.unload(served_name(model, generation))
        except Exception as error:  # noqa: BLE001 - whatever it is, the scheduler must hear of it
            code, message = _told(error, Code.UNLOAD_FAILED)
            _log.warning("unload failed", model=model, generation=generation, code=code, error=message)
            return ModelUnloadFailed(model=model, generation=generation, position=position, code=code, message=message)
        accelerators = [uuid for uuid, reading in before.items() if reading.kind != "cpu"]
        return ModelUnloaded(model=model, generation=generation, position=position, free=_free(before, accelerators))

    def _load(self, wanted: LoadModel, position: int, before: "_Before", *, afresh: bool) -> ModelLoaded:
        began = time.monotonic()
        artifact = self._fetch(wanted)
        fetch_ms = (time.monotonic() - began) * 1000
        if wanted.artifact_digest and artifact.sha256 != wanted.artifact_digest:
            raise LoadFailed(
                Code.ARTIFACT_MISMATCH,
                f"the artifact's sha256 is {artifact.sha256}, and {wanted.artifact_digest} is pinned to this version",
            )
        before.activity = self.activity()
        before.readings = self._read() if before.activity[1] == 1 else {}
        name = served_name(wanted.model, wanted.generation)
        if afresh:
            self.adapter.unload(name)
        result = self.adapter.load(
            ModelSpec(
                name=name,
                artifact=artifact.path,
                requirements=wanted.requirements,
                runtime_kind=wanted.runtime_kind,
                parameters=wanted.parameters,
                devices=wanted.devices or ("cpu",),
                memory_bytes=wanted.memory,
            )
        )
        for phase, milliseconds in (("fetch", fetch_ms), ("load", result.load_ms), ("verify", result.verify_ms)):
            LOAD_SECONDS.labels(phase).observe(milliseconds / 1000)
        alone = self._alone(before) and not result.already
        return ModelLoaded(
            model=wanted.model,
            generation=wanted.generation,
            position=position,
            digest=artifact.sha256,
            memory=self._memory(wanted, before.readings if alone else {}),
            http_port=urlsplit(self.adapter.endpoint(name)).port or 0,
            times=LoadTimes(fetch_ms=int(fetch_ms), load_ms=int(result.load_ms), verify_ms=int(result.verify_ms)),
        )

    def _fetch(self, wanted: LoadModel) -> FetchedArtifact:
        options: Mapping[str, object] = resolve(wanted.secret_name, self.secrets) if wanted.secret_name else {}
        return fetch(
            wanted.storage_uri, options, self.artifacts, expected=wanted.artifact_digest, roots=self.artifact_roots
        )

    def _read(self) -> dict[str, DeviceReading]:
        return {reading.uuid: reading for reading in self.devices() if not reading.error}

    def _alone(self, before: "_Before") -> bool:
        """Whether nothing else was begun since, so that what changed is this operation's doing."""
        return bool(before.readings) and self.activity() == before.activity

    def _memory(self, wanted: LoadModel, before: dict[str, DeviceReading]) -> tuple[DeviceMemory, ...]:
        """Return declared, measured and observed memory of each device; 0 where it is not known."""
        readings = self._read()
        found: list[DeviceMemory] = []
        for uuid in wanted.devices or (CPU,):
            now = readings.get(uuid)
            measured = _taken(before[uuid], now) if now is not None and uuid in before else 0
            observed = now.ours_bytes if now is not None else 0
            found.append(DeviceMemory(device=uuid, declared=wanted.memory, measured=measured, observed=observed))
        return tuple(found)


@dataclass(slots=True)
class _Before:
    """What was so when a load began, once it has; no readings if it was not alone even then."""

    readings: dict[str, DeviceReading] = field(default_factory=dict[str, DeviceReading])
    activity: tuple[int, int] = (0, 0)


def _taken(before: DeviceReading, after: DeviceReading) -> int:
    """Return the bytes by which the server's processes grew; 0 if that is not known.

    Where a driver does not say whose memory it is, an accelerator's free memory tells instead: few share it. A machine's
    does not: it moves with everything that runs there.
    """
    if after.ours_bytes:
        return max(0, after.ours_bytes - before.ours_bytes)
    return max(0, before.free_bytes - after.free_bytes) if after.kind != "cpu" else 0


def _free(readings: Mapping[str, DeviceReading], uuids: Iterable[str]) -> tuple[DeviceFree, ...]:
    return tuple(DeviceFree(device=uuid, free=readings[uuid].free_bytes) for uuid in uuids if uuid in readings)


def _told(error: Exception, otherwise: Code) -> tuple[Code, str]:
    """Return the code of a failure, and what to say of it."""
    if isinstance(error, OperationError):
        return error.code, line(error.message)
    # Its text may quote what a driver was given, secrets included: the place in our code is enough to find the defect.
    place = traceback.extract_tb(error.__traceback__)[-1]
    return otherwise, f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}"
