"""The two operations on a version: load (fetch, check, load, verify) and unload. Each ends in exactly one report."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import structlog
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

from magnetar_agent.adapters.base import Adapter, Code, LoadFailed, ModelSpec, OperationError
from magnetar_agent.artifacts import FetchedArtifact, fetch
from magnetar_agent.devices import DeviceReading
from magnetar_agent.secrets import resolve

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Operations:
    """What the operations need.

    Attributes:
        adapter: the inference server.
        artifacts: folder of fetched artifacts.
        secrets: folder of this host's secrets, or None.
        devices: reads the devices now.
        alone: whether no other operation runs (then memory can be measured).
    """

    adapter: Adapter
    artifacts: Path
    secrets: Path | None
    devices: Callable[[], list[DeviceReading]]
    alone: Callable[[], bool]

    def load(self, wanted: LoadModel, position: int, *, afresh: bool = False) -> ModelLoaded | ModelLoadFailed:
        """Load a version, and say how that went; never raises.

        Args:
            wanted: what to load.
            position: of the command, echoed in the report.
            afresh: unload it first, even if the server says that it is ready.
        """
        who = {"model": wanted.model, "generation": wanted.generation, "position": position}
        try:
            return self._load(wanted, position, afresh=afresh)
        except OperationError as error:
            _log.warning("load failed", **who, code=error.code, error=error.message)
            return ModelLoadFailed(**who, code=error.code, retriable=error.retriable, message=_line(error.message))
        except Exception as error:  # noqa: BLE001 - whatever it is, the scheduler must hear of it
            _log.exception("load failed", **who)
            message = f"{type(error).__name__}: {error}"
            return ModelLoadFailed(**who, code=Code.LOAD_FAILED, retriable=True, message=_line(message))

    def unload(self, wanted: UnloadModel, position: int) -> ModelUnloaded | ModelUnloadFailed:
        """Unload a version, and say how that went; never raises."""
        who = {"model": wanted.model, "generation": wanted.generation, "position": position}
        try:
            self.adapter.unload(served_name(wanted.model, wanted.generation))
        except OperationError as error:
            _log.warning("unload failed", **who, code=error.code, error=error.message)
            return ModelUnloadFailed(**who, code=error.code, message=_line(error.message))
        except Exception as error:  # noqa: BLE001 - as above
            _log.exception("unload failed", **who)
            return ModelUnloadFailed(**who, code=Code.UNLOAD_FAILED, message=_line(f"{type(error).__name__}: {error}"))
        return ModelUnloaded(**who)

    def _load(self, wanted: LoadModel, position: int, *, afresh: bool) -> ModelLoaded:
        began = time.monotonic()
        artifact = self._fetch(wanted)
        fetched = time.monotonic()
        if wanted.artifact_digest and artifact.sha256 != wanted.artifact_digest:
            raise LoadFailed(
                Code.ARTIFACT_MISMATCH,
                f"the artifact's sha256 is {artifact.sha256}, and {wanted.artifact_digest} is pinned to this version",
            )
        alone, before = self.alone(), self._free()
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
        fetch_ms = (fetched - began) * 1000
        for phase, milliseconds in (("fetch", fetch_ms), ("load", result.load_ms), ("verify", result.verify_ms)):
            LOAD_SECONDS.labels(phase).observe(milliseconds / 1000)
        measurable = alone and self.alone() and not result.already
        return ModelLoaded(
            model=wanted.model,
            generation=wanted.generation,
            position=position,
            digest=artifact.sha256,
            memory=self._memory(wanted, before if measurable else None),
            http_port=urlsplit(self.adapter.endpoint(name)).port or 0,
            times=LoadTimes(fetch_ms=int(fetch_ms), load_ms=int(result.load_ms), verify_ms=int(result.verify_ms)),
        )

    def _fetch(self, wanted: LoadModel) -> FetchedArtifact:
        options = resolve(wanted.secret_name, self.secrets) if wanted.secret_name else {}
        return fetch(wanted.storage_uri, options, self.artifacts, expected=wanted.artifact_digest)

    def _free(self) -> dict[str, int]:
        return {reading.uuid: reading.free_bytes for reading in self.devices()}

    def _memory(self, wanted: LoadModel, before: dict[str, int] | None) -> tuple[DeviceMemory, ...]:
        readings = {reading.uuid: reading for reading in self.devices()}
        found: list[DeviceMemory] = []
        for uuid in wanted.devices or ("cpu",):
            now = readings.get(uuid)
            measured = before.get(uuid, 0) - now.free_bytes if before is not None and now is not None else 0
            observed = now.ours_bytes if now is not None else 0
            found.append(
                DeviceMemory(device=uuid, declared=wanted.memory, measured=max(0, measured), observed=observed)
            )
        return tuple(found)


def _line(text: str) -> str:
    """Return text as the one line of printable characters that a report carries."""
    return "".join(c if c.isprintable() else " " for c in text)[:1000]
