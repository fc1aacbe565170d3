"""Servers that hold one model each (vLLM's kind): load starts a process, unload ends it, the index is the processes."""

import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, cast

import httpx

from magnetar_agent.adapters.base import (
    Code,
    IndexEntry,
    IndexState,
    Limits,
    LoadFailed,
    LoadResult,
    ModelSpec,
    ServerUnreachable,
    UnloadFailed,
)
from magnetar_agent.adapters.repository import check_name, failure_code
from magnetar_agent.children import Child, spawn
from magnetar_agent.ports import free_port

_OPTION = re.compile(r"[a-z][a-z0-9-]*")
# What the agent decides; a model's parameters must not.
_RESERVED = frozenset({"host", "port", "model", "served-model-name", "uds"})


@dataclass(frozen=True, slots=True)
class ProcessTemplate:
    """How to start a server for one model.

    Attributes:
        kind: The kind of runtime, e.g. `vllm`.
        command: Program and arguments; `{model}` (artifact path), `{name}`, `{host}` and `{port}` are filled in. The
            model's parameters follow as `--key value` (`--key` if the value is empty).
        capabilities: Requirements it serves.
        health_path: Answers 200 once the server is up. Says nothing about the model.
        model_ready_path: Answers 200 once *this model* serves, `{name}` filled in; empty: the name must be listed by
            `models_path`.
        models_path: OpenAI's list of models, used where there is no ready URL (vLLM has none).
        version_path: Answers `{"version": …}`.
        devices_variable: Environment variable that names the devices.
    """

    kind: str
    command: Sequence[str]
    capabilities: tuple[str, ...] = ()
    health_path: str = "/health"
    model_ready_path: str = ""
    models_path: str = "/v1/models"
    version_path: str = "/version"
    devices_variable: str = "CUDA_VISIBLE_DEVICES"


VLLM = ProcessTemplate(
    kind="vllm",
    command=("vllm", "serve", "{model}", "--served-model-name", "{name}", "--host", "{host}", "--port", "{port}"),
    capabilities=("vllm",),
)
"""vLLM's OpenAI-compatible server; `vllm` is searched on the agent's PATH."""


@dataclass(slots=True)
class _Process:
    child: Child
    url: str
    serving: bool = False


class ProcessAdapter:
    """An `Adapter` whose server is one process a model.

    Args:
        template: How to start one.
        folder: For the logs of the processes.
        limits: How long to try; `load_seconds` spans start to ready.
        grace_seconds: Between SIGTERM and SIGKILL on unload.
        host: Address the processes listen on and are reached at.
        environment: Environment of the processes; the agent's own by default.
    """

    def __init__(
        self,
        template: ProcessTemplate,
        folder: Path,
        *,
        limits: Limits | None = None,
        grace_seconds: float = 10.0,
        host: str = "127.0.0.1",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._template = template
        self._folder = folder
        self._limits = limits or Limits()
        self._grace_seconds = grace_seconds
        self._host = host
        self._environment = dict(os.environ if environment is None else environment)
        self._http = httpx.Client(timeout=self._limits.ask_seconds, trust_env=False)
        self._lock = threading.Lock()
        self._processes: dict[str, _Process] = {}
        self._version = ""

    @property
    def kind(self) -> str:
        """See `Adapter.kind`."""
        return self._template.kind

    def load(self, spec: ModelSpec) -> LoadResult:
        """See `Adapter.load`. A process that ended earlier is replaced."""
        check_name(spec.name)
        if not spec.artifact.exists():
            raise LoadFailed(Code.ARTIFACT_MISSING, f"{spec.name}: there is no artifact at {spec.artifact}")
        if self._is_serving(spec.name) and self.ready(spec.name):
            return LoadResult(spec.name, already=True, load_ms=0.0, verify_ms=0.0)
        started = time.monotonic()
        self._end(spec.name)
        process = self._start(spec)
        try:
            self._await(spec.name, process, self._template.health_path, started + self._limits.load_seconds)
            healthy = time.monotonic()
            self._await(spec.name, process, "", started + self._limits.load_seconds)
        except LoadFailed:
            self._end(spec.name)
            raise
        process.serving = True
        return LoadResult(
            spec.name, already=False, load_ms=(healthy - started) * 1e3, verify_ms=(time.monotonic() - healthy) * 1e3
        )

    def unload(self, name: str) -> None:
        """See `Adapter.unload`. Ends the process and whatever it started."""
        try:
            self._end(name)
        except OSError as error:
            raise UnloadFailed(Code.UNLOAD_FAILED, f"cannot end the process of {name}: {error}") from error

    def index(self) -> dict[str, IndexEntry]:
        """See `Adapter.index`. A process that ended by itself stays listed as UNAVAILABLE, with its last words."""
        with self._lock:
            processes = dict(self._processes)
        return {name: _entry(process) for name, process in processes.items()}

    def ready(self, name: str) -> bool:
        """See `Adapter.ready`: health, and the model's own ready URL or its place in the server's list."""
        with self._lock:
            process = self._processes.get(name)
        if process is None or process.child.exit_code is not None:
            return False
        return self._ok(process.url + self._template.health_path) and self._model_ready(name, process)

    def alive(self) -> bool:
        """See `Adapter.alive`. There is no server apart from the models, so nothing that could be dead."""
        return True

    def endpoint(self, name: str) -> str:
        """See `Adapter.endpoint`; every model has a URL of its own.

        Raises:
            ServerUnreachable: There is no process for it.
        """
        with self._lock:
            process = self._processes.get(name)
        if process is None:
            raise ServerUnreachable(f"no process serves {name}")
        return process.url

    def pids(self) -> tuple[int, ...]:
        """Process ids of the running servers: whose device memory is ours."""
        with self._lock:
            return tuple(p.child.pid for p in self._processes.values() if p.child.exit_code is None)

    def pids_of(self, name: str) -> tuple[int, ...]:
        """Process ids that serve one model, and nothing else."""
        with self._lock:
            process = self._processes.get(name)
        return (process.child.pid,) if process is not None and process.child.exit_code is None else ()

    def server_info(self) -> tuple[str, str]:
        """See `Adapter.server_info`. The version is empty until a process has answered."""
        if not self._version:
            with self._lock:
                urls = [p.url for p in self._processes.values() if p.serving]
            for url in urls[:1]:
                body = self._json(url + self._template.version_path)
                self._version = str(body.get("version", ""))
        return self.kind, self._version

    def capabilities(self) -> tuple[str, ...]:
        """See `Adapter.capabilities`."""
        return tuple(sorted({self.kind, *self._template.capabilities}))

    def close(self) -> None:
        """See `Adapter.close`. Ends every process."""
        with self._lock:
            names = list(self._processes)
        for name in names:
            self._end(name)
        self._http.close()

    def _start(self, spec: ModelSpec) -> _Process:
        port = free_port(self._host)
        values = {"model": str(spec.artifact), "name": spec.name, "host": self._host, "port": str(port)}
        command = [part.format_map(values) for part in self._template.command]
        for key, value in spec.parameters.items():
            if not _OPTION.fullmatch(key) or key in _RESERVED:
                raise LoadFailed(
                    Code.UNSUPPORTED, f"{spec.name}: parameter {key!r} is not an option that a model may set"
                )
            command += [f"--{key}={value}"] if value else [f"--{key}"]
        gpus = [d for d in spec.devices if d != "cpu"]
        # Empty, not absent: a model placed on the host's memory must not see the GPUs.
        environment = self._environment | {self._template.devices_variable: ",".join(gpus)}
        try:
            child = spawn(command, environment=environment, folder=self._folder, log=self._folder / f"{spec.name}.log")
        except OSError as error:
            raise LoadFailed(Code.LOAD_FAILED, f"{spec.name}: cannot start {command[0]}: {error}") from error
        process = _Process(child, f"http://{self._host}:{port}")
        with self._lock:
            self._processes[spec.name] = process
        return process

    def _await(self, name: str, process: _Process, path: str, deadline: float) -> None:
        """Wait for a path to answer 200, or without one for the model; a process that ends meanwhile has failed."""
        while not (self._ok(process.url + path) if path else self._model_ready(name, process)):
            code = process.child.wait(self._limits.poll_seconds)
            if code is not None:
                message = f"{name}: the process ended with {code} before it was ready: {process.child.tail()}"
                raise LoadFailed(failure_code(message), message[-2000:] if len(message) > 2000 else message)
            if time.monotonic() > deadline:
                waiting = path or "the model's own readiness"
                raise LoadFailed(Code.TIMEOUT, f"{name}: no 200 from {waiting} within {self._limits.load_seconds:g} s")

    def _model_ready(self, name: str, process: _Process) -> bool:
        if self._template.model_ready_path:
            return self._ok(process.url + self._template.model_ready_path.format(name=name))
        listed = self._json(process.url + self._template.models_path).get("data")
        rows = cast("list[dict[str, Any]]", listed) if isinstance(listed, list) else []
        return any(row.get("id") == name for row in rows)

    def _ok(self, url: str) -> bool:
        try:
            return self._http.get(url).status_code == HTTPStatus.OK
        except httpx.TransportError:
            return False

    def _json(self, url: str) -> dict[str, Any]:
        try:
            body: object = self._http.get(url).raise_for_status().json()
        except (httpx.HTTPError, ValueError):
            return {}
        return cast("dict[str, Any]", body) if isinstance(body, dict) else {}

    def _is_serving(self, name: str) -> bool:
        with self._lock:
            process = self._processes.get(name)
        return process is not None and process.serving and process.child.exit_code is None

    def _end(self, name: str) -> None:
        with self._lock:
            process = self._processes.get(name)
        if process is not None:
            process.child.stop(self._grace_seconds)
            with self._lock:
                self._processes.pop(name, None)


def _entry(process: _Process) -> IndexEntry:
    code = process.child.exit_code
    if code is not None:
        return IndexEntry(IndexState.UNAVAILABLE, f"its process ended with {code}: {process.child.tail(4)}")
    return IndexEntry(IndexState.READY if process.serving else IndexState.LOADING)
