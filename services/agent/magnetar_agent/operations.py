"""The two operations on a version: load (fetch, check, load, verify) and unload. Each ends in exactly one report."""

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import structlog

from magnetar_agent.adapters.base import RETRIABLE, Adapter, Code, LoadFailed, ModelSpec, OperationError
from magnetar_agent.artifacts import FetchedArtifact, fetch
from magnetar_agent.devices import DeviceReading
from magnetar_agent.secrets import resolve
from magnetar_agent.text import line
from magnetar_common.metrics import LOAD_SECONDS
from magnetar_events.commands import LoadModel, UnloadModel
from magnetar_events.models import served_name
from magnetar_events.reports import (
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
        try:
            return self._load(wanted, position, afresh=afresh)
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
            )

    def unload(self, wanted: UnloadModel, position: int) -> ModelUnloaded | ModelUnloadFailed:
        """Unload a version, and say how that went; never raises."""
        model, generation = wanted.model, wanted.generation
        try:
            self.adapter.unload(served_name(model, generation))
        except Exception as error:  # noqa: BLE001 - whatever it is, the scheduler must hear of it
            code, message = _told(error, Code.UNLOAD_FAILED)
            _log.warning("unload failed", model=model, generation=generation, code=code, error=message)
            return ModelUnloadFailed(model=model, generation=generation, position=position, code=code, message=message)
        return ModelUnloaded(model=model, generation=generation, position=position)

    def _load(self, wanted: LoadModel, position: int, *, afresh: bool) -> ModelLoaded:
        began = time.monotonic()
        artifact = self._fetch(wanted)
        fetch_ms = (time.monotonic() - began) * 1000
        if wanted.artifact_digest and artifact.sha256 != wanted.artifact_digest:
            raise LoadFailed(
                Code.ARTIFACT_MISMATCH,
                f"the artifact's sha256 is {artifact.sha256}, and {wanted.artifact_digest} is pinned to this version",
            )
        activity = self.activity()
        before = self._free() if activity[1] == 1 else {}
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
        alone = self.activity() == activity and not result.already
        return ModelLoaded(
            model=wanted.model,
            generation=wanted.generation,
            position=position,
            digest=artifact.sha256,
            memory=self._memory(wanted, before if alone else {}),
            http_port=urlsplit(self.adapter.endpoint(name)).port or 0,
            times=LoadTimes(fetch_ms=int(fetch_ms), load_ms=int(result.load_ms), verify_ms=int(result.verify_ms)),
        )

    def _fetch(self, wanted: LoadModel) -> FetchedArtifact:
        options: Mapping[str, object] = resolve(wanted.secret_name, self.secrets) if wanted.secret_name else {}
        return fetch(
            wanted.storage_uri, options, self.artifacts, expected=wanted.artifact_digest, roots=self.artifact_roots
        )

    def _free(self) -> dict[str, int]:
        return {reading.uuid: reading.free_bytes for reading in self.devices() if not reading.error}

    def _memory(self, wanted: LoadModel, before: dict[str, int]) -> tuple[DeviceMemory, ...]:
        """Return declared, measured and observed memory of each device; 0 where it is not known."""
        readings = {reading.uuid: reading for reading in self.devices() if not reading.error}
        found: list[DeviceMemory] = []
        for uuid in wanted.devices or ("cpu",):
            now = readings.get(uuid)
            measured = max(0, before[uuid] - now.free_bytes) if now is not None and uuid in before else 0
            observed = now.ours_bytes if now is not None else 0
            found.append(DeviceMemory(device=uuid, declared=wanted.memory, measured=measured, observed=observed))
        return tuple(found)


def _told(error: Exception, otherwise: Code) -> tuple[Code, str]:
    """Return the code of a failure, and what to say of it."""
    if isinstance(error, OperationError):
        return error.code, line(error.message)
    # Its text may quote what a driver was given, secrets included: the place in our code is enough to find the defect.
    place = traceback.extract_tb(error.__traceback__)[-1]
    return otherwise, f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}"
