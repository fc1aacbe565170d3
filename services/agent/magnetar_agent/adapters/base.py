"""The one interface between the agent and an inference server, and the errors that cross it.

Every call blocks; the agent runs it on a thread of its own. Calls for different models may run at the same time; the
caller serialises calls for the same model. An adapter keeps no opinion of what should be loaded: it reports what the
server says.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol


class Code(StrEnum):
    """Why an operation on a server failed. Strings, because they travel in reports."""

    LOAD_FAILED = "LOAD_FAILED"
    LOAD_FAIL_MEMORY = "LOAD_FAIL_MEMORY"
    LOAD_FAIL_DISK = "LOAD_FAIL_DISK"
    UNLOAD_FAILED = "UNLOAD_FAILED"
    ARTIFACT_MISSING = "ARTIFACT_MISSING"
    ARTIFACT_INVALID = "ARTIFACT_INVALID"
    ARTIFACT_FORBIDDEN = "ARTIFACT_FORBIDDEN"
    ARTIFACT_UNREACHABLE = "ARTIFACT_UNREACHABLE"
    ARTIFACT_MISMATCH = "ARTIFACT_MISMATCH"
    DRIVER_MISSING = "DRIVER_MISSING"
    SECRET_MISSING = "SECRET_MISSING"  # noqa: S105 - a code, not a secret
    UNSUPPORTED = "UNSUPPORTED"
    SERVER_UNREACHABLE = "SERVER_UNREACHABLE"
    TIMEOUT = "TIMEOUT"


RETRIABLE: Mapping[Code, bool] = {
    # Out of memory now is not out of memory later, or elsewhere.
    Code.LOAD_FAIL_MEMORY: True,
    Code.LOAD_FAIL_DISK: True,
    Code.SERVER_UNREACHABLE: True,
    Code.TIMEOUT: True,
    Code.ARTIFACT_UNREACHABLE: True,
    Code.UNLOAD_FAILED: True,
    # The server read the model and said no: flaky loads exist (a licence server, a download), so another attempt is
    # worth its price; the scheduler's limit on attempts ends it.
    Code.LOAD_FAILED: True,
    # What follows is the same on every attempt until somebody changes something.
    # Object stores are consistent after a write: what is not there was named wrongly.
    Code.ARTIFACT_MISSING: False,
    Code.ARTIFACT_INVALID: False,
    Code.ARTIFACT_FORBIDDEN: False,
    Code.ARTIFACT_MISMATCH: False,
    Code.DRIVER_MISSING: False,
    Code.SECRET_MISSING: False,
    Code.UNSUPPORTED: False,
}
"""The one table of what is worth trying again. Complete: a test compares it with `Code`."""


class OperationError(Exception):
    """Something the agent was told to do did not happen.

    Attributes:
        code: What kind of failure.
        message: What happened, to which object, and what to do; safe to log and to send.
    """

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message

    @property
    def retriable(self) -> bool:
        """Whether another attempt may succeed without anybody changing anything (`RETRIABLE`)."""
        return RETRIABLE[self.code]


class LoadFailed(OperationError):
    """A model is not loaded, and nothing of it is left on the server."""


class UnloadFailed(OperationError):
    """The server still holds the model, or cannot be asked."""


class ServerUnreachable(OperationError):
    """The server did not answer a question (not a statement about any model).

    Attributes:
        busy: it took the question and was silent: a server in the middle of a load may be. Otherwise it was not there.
    """

    def __init__(self, message: str, *, busy: bool = False) -> None:
        super().__init__(Code.SERVER_UNREACHABLE, message)
        self.busy = busy


class IndexState(StrEnum):
    """A model's state in the server's own index (the names of the V2 repository extension)."""

    READY = "READY"
    LOADING = "LOADING"
    UNLOADING = "UNLOADING"
    UNKNOWN = "UNKNOWN"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One model in the server's index.

    `UNAVAILABLE` means that it holds no memory: not loaded, or its load failed (Triton then gives a reason).
    `UNKNOWN` is MLServer's word for registered but not ready: loading, or its runtime said no; it may hold memory.
    """

    state: IndexState
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What to load.

    Attributes:
        name: The server-side name, e.g. `default_iris_3`; characters `a-z0-9_.-`, beginning with a letter or digit.
        artifact: The fetched artifact on this host: a folder, or one file.
        requirements: Capabilities asked for, e.g. `("sklearn",)`; the first that the server knows decides the runtime.
        runtime_kind: The kind of server asked for, or empty.
        parameters: Runtime parameters; their meaning is the adapter's.
        devices: Device uuids placed on, or `("cpu",)`.
        memory_bytes: Bytes reserved for it; 0 if unknown.
    """

    name: str
    artifact: Path
    requirements: tuple[str, ...] = ()
    runtime_kind: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict[str, str])
    devices: tuple[str, ...] = ("cpu",)
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LoadResult:
    """A model that is in the index as READY and whose own ready URL answered 200.

    Attributes:
        name: The server-side name.
        already: It was loaded before the call; nothing was done.
        load_ms: From the call to the server's answer, milliseconds.
        verify_ms: From that answer until index and ready URL agreed, milliseconds.
    """

    name: str
    already: bool
    load_ms: float
    verify_ms: float


@dataclass(frozen=True, slots=True)
class Limits:
    """How long an adapter tries.

    Attributes:
        attempts: Tries of one HTTP call whose transport failed.
        elapsed_seconds: No new try of that call begins after this long.
        load_seconds: A load that is not verified by then fails with TIMEOUT.
        unload_seconds: An unload that the index does not confirm by then fails with TIMEOUT.
        ask_seconds: Time-out of a question (index, ready, live, metadata).
        poll_seconds: Between two looks at the index.
    """

    attempts: int = 4
    elapsed_seconds: float = 15.0
    load_seconds: float = 600.0
    unload_seconds: float = 60.0
    ask_seconds: float = 5.0
    poll_seconds: float = 0.05


class Adapter(Protocol):
    """What the agent needs of an inference server."""

    @property
    def kind(self) -> str:
        """`mlserver`, `triton`, or the kind a process adapter was given (`vllm`, …)."""
        ...

    def load(self, spec: ModelSpec) -> LoadResult:
        """Load a model; return only once the server's index says READY *and* the model's own ready URL answers 200.

        A model that is already in that state is left alone (`already`). A repeat after a failure starts from nothing.

        Raises:
            LoadFailed: It is not loaded; what was left of it is cleared as far as the server can be reached.
        """
        ...

    def unload(self, name: str) -> None:
        """Unload a model; return only once the index says it is gone. A model the server does not know is success.

        Raises:
            UnloadFailed: The index does not say so within the limit, or the server cannot be asked.
        """
        ...

    def index(self) -> dict[str, IndexEntry]:
        """Return the server's real index, with models nobody here loaded.

        Raises:
            ServerUnreachable: There is no answer. Never an empty index instead.
        """
        ...

    def ready(self, name: str) -> bool:
        """Whether this one model answers its own ready URL with 200; any failure to answer is False.

        Never the server-wide readiness, which is true of a server without a single model.
        """
        ...

    def alive(self) -> bool:
        """Whether the server's process answers at all. Says nothing about any model."""
        ...

    def endpoint(self, name: str) -> str:
        """Return the base URL at which this model serves inference (one for all models of a repository server)."""
        ...

    def server_info(self) -> tuple[str, str]:
        """Return the server's name and version as it states them.

        Raises:
            ServerUnreachable: There is no answer.
        """
        ...

    def capabilities(self) -> tuple[str, ...]:
        """Return the requirements this server can serve, sorted."""
        ...

    def close(self) -> None:
        """Release connections, and processes the adapter itself started. Repeatable."""
        ...
