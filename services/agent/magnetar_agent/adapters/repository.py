"""Servers with the V2 model-repository API: a folder of models, load and unload over HTTP, and an index.

The answer to a load or unload is a hint; the index and the model's own ready URL are the truth. Triton answers an
unload before it has happened (measured: 1.2 s before, for a Python model); MLServer answers 200 when a runtime's
`load()` returned False, and never says LOADING but UNKNOWN.
"""

import abc
import logging
import os
import re
import shutil
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any, cast

import httpx
import tenacity

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

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,254}")
_OUT_OF_MEMORY = re.compile(
    r"out of memory|MemoryError|bad_alloc|cannot allocate memory|Unable to allocate|OutOfMemory", re.IGNORECASE
)

logging.getLogger("httpx").setLevel(logging.WARNING)  # one line for every look at the index otherwise


def check_name(name: str) -> None:
    """Refuse a model name that could be anything but one plain folder and one URL segment.

    Raises:
        LoadFailed: ARTIFACT_INVALID.
    """
    if not _NAME.fullmatch(name) or ".." in name:
        raise LoadFailed(Code.ARTIFACT_INVALID, f"model name {name!r} must match {_NAME.pattern} and hold no '..'")


def failure_code(message: str) -> Code:
    """Tell an out-of-memory load from any other by the server's own words."""
    return Code.LOAD_FAIL_MEMORY if _OUT_OF_MEMORY.search(message) else Code.LOAD_FAILED


def link_or_copy(source: str, target: str) -> None:
    """Hard-link a file, or copy it across file systems: the cache holds these many GB already."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


class RepositoryAdapter(abc.ABC):
    """What MLServer and Triton share. A subclass says what a model's folder looks like.

    Args:
        base_url: The server's HTTP root, e.g. `http://127.0.0.1:8080`.
        repository: The model repository as this process sees it; the server reads the same folder.
        limits: How long to try.
        diagnose: Returns the last lines of the server's log, if it is ours: MLServer's answer to a failed load is only
            "Internal Server Error".
        transport: In place of the network, for tests.
    """

    kind: str = ""

    def __init__(
        self,
        base_url: str,
        repository: Path,
        *,
        limits: Limits | None = None,
        diagnose: Callable[[], str] | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._repository = repository
        self._limits = limits or Limits()
        self._diagnose = diagnose
        # The server is on this host or beside it: a proxy from the environment would only be in the way.
        self._http = httpx.Client(
            base_url=self._base_url, timeout=self._limits.ask_seconds, transport=transport, trust_env=False
        )

    @abc.abstractmethod
    def materialise(self, spec: ModelSpec, folder: Path) -> None:
        """Fill `folder` (exists, empty) so that the server can load `spec.name` from it.

        Raises:
            LoadFailed: UNSUPPORTED or ARTIFACT_INVALID.
        """

    @abc.abstractmethod
    def capabilities(self) -> tuple[str, ...]:
        """Return the requirements this server can serve, sorted."""

    def load(self, spec: ModelSpec) -> LoadResult:
        """See `Adapter.load`."""
        check_name(spec.name)
        started = time.monotonic()
        deadline = started + self._limits.load_seconds
        try:
            if self._state(spec.name) is IndexState.READY and self.ready(spec.name):
                return LoadResult(spec.name, already=True, load_ms=0.0, verify_ms=0.0)
        except ServerUnreachable as error:
            raise LoadFailed(error.code, error.message) from error
        try:
            self._place(spec)
            answer = self._operate(spec.name, "load", deadline)
            answered = time.monotonic()
            self._verify(spec.name, answer, deadline)
        except LoadFailed:
            self._clear(spec.name)
            raise
        return LoadResult(
            spec.name, already=False, load_ms=(answered - started) * 1e3, verify_ms=(time.monotonic() - answered) * 1e3
        )

    def unload(self, name: str) -> None:
        """See `Adapter.unload`."""
        check_name(name)
        deadline = time.monotonic() + self._limits.unload_seconds
        try:
            answer = self._operate(name, "unload", deadline)
            gone = {None, IndexState.UNAVAILABLE}
            # MLServer forgets what has no folder even while it serves it, so the folder goes last and the ready URL is
            # asked too.
            while (state := self._state(name)) not in gone or (
                answer.status_code != HTTPStatus.NOT_FOUND and self.ready(name)
            ):
                if time.monotonic() > deadline:
                    raise UnloadFailed(
                        Code.TIMEOUT, f"{name} is still {state} {self._limits.unload_seconds:g} s after its unload"
                    )
                time.sleep(self._limits.poll_seconds)
        except (ServerUnreachable, LoadFailed) as error:
            raise UnloadFailed(error.code, f"unload of {name}: {error.message}") from error
        shutil.rmtree(self._repository / name, ignore_errors=True)

    def index(self) -> dict[str, IndexEntry]:
        """See `Adapter.index`."""
        answer = self._ask("POST", "/v2/repository/index", json={})
        if answer.status_code != HTTPStatus.OK:
            raise ServerUnreachable(
                f"{self._base_url} answered its index with {answer.status_code}: {answer.text[:300]}"
            )
        try:
            rows = cast("list[dict[str, Any]]", answer.json())
        except ValueError as error:
            raise ServerUnreachable(f"{self._base_url} answered its index with what is no JSON: {error}") from error
        entries: dict[str, IndexEntry] = {}
        for row in rows:
            # Triton lists a model never loaded without a state, and one row a version: any version that lives keeps
            # the name.
            entry = IndexEntry(_state(str(row.get("state") or "UNAVAILABLE")), str(row.get("reason") or ""))
            known = entries.get(row["name"])
            if known is None or _RANK[entry.state] < _RANK[known.state]:
                entries[str(row["name"])] = entry
        return entries

    def ready(self, name: str) -> bool:
        """See `Adapter.ready`."""
        try:
            return self._ask("GET", f"/v2/models/{name}/ready").status_code == HTTPStatus.OK
        except ServerUnreachable:
            return False

    def alive(self) -> bool:
        """See `Adapter.alive`."""
        try:
            return self._http.get("/v2/health/live").status_code == HTTPStatus.OK
        except httpx.TransportError:
            return False

    def endpoint(self, name: str) -> str:
        """See `Adapter.endpoint`."""
        del name
        return self._base_url

    def server_info(self) -> tuple[str, str]:
        """See `Adapter.server_info`."""
        answer = self._ask("GET", "/v2")
        if answer.status_code != HTTPStatus.OK:
            raise ServerUnreachable(f"{self._base_url}/v2 answered {answer.status_code}")
        body = cast("dict[str, Any]", answer.json())
        return str(body.get("name", "")), str(body.get("version", ""))

    def close(self) -> None:
        """See `Adapter.close`. The server itself is not ours to stop."""
        self._http.close()

    def _place(self, spec: ModelSpec) -> None:
        if not spec.artifact.exists():
            raise LoadFailed(Code.ARTIFACT_MISSING, f"{spec.name}: there is no artifact at {spec.artifact}")
        folder = self._repository / spec.name
        try:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            self.materialise(spec, folder)
        except OSError as error:
            raise LoadFailed(Code.LOAD_FAIL_DISK, f"{spec.name}: cannot write {folder}: {error}") from error

    def _verify(self, name: str, answer: httpx.Response, deadline: float) -> None:
        while True:
            try:
                entry = self.index().get(name)
            except ServerUnreachable as error:
                raise LoadFailed(error.code, f"{name}: {error.message}") from error
            if entry is not None and entry.state is IndexState.READY and answer.is_success and self.ready(name):
                return
            if entry is None or entry.state in _NOT_COMING or not answer.is_success:
                raise self._refusal(name, answer, entry)
            if time.monotonic() > deadline:
                raise LoadFailed(Code.TIMEOUT, f"{name} is {entry.state} but does not answer its ready URL")
            time.sleep(self._limits.poll_seconds)

    def _refusal(self, name: str, answer: httpx.Response, entry: IndexEntry | None) -> LoadFailed:
        said = (entry.reason if entry else "") or answer.text.strip() or "no reason given"
        log = self._diagnose().strip() if self._diagnose else ""
        message = f"{name}: the server answered {answer.status_code}: {said}"
        if log and answer.text.strip() in {"", "Internal Server Error"}:
            message += f"; its log ends: {log}"
        return LoadFailed(failure_code(message), message[:2000])

    def _clear(self, name: str) -> None:
        """Leave nothing of a failed load behind: best effort, because the failure itself is already the report."""
        try:
            self.unload(name)
        except UnloadFailed:
            shutil.rmtree(self._repository / name, ignore_errors=True)

    def _state(self, name: str) -> IndexState | None:
        entry = self.index().get(name)
        return entry.state if entry else None

    def _operate(self, name: str, verb: str, deadline: float) -> httpx.Response:
        url = f"/v2/repository/models/{name}/{verb}"
        try:
            return self._ask("POST", url, timeout=max(0.1, deadline - time.monotonic()), json={})
        except ServerUnreachable as error:
            code = Code.TIMEOUT if time.monotonic() >= deadline else error.code
            raise LoadFailed(code, f"{verb} of {name}: {error.message}") from error

    def _ask(self, method: str, url: str, *, timeout: float | None = None, json: object = None) -> httpx.Response:
        """Make one HTTP call, again within the limits when the transport failed; a read time-out is not tried again."""
        retry = tenacity.Retrying(
            retry=tenacity.retry_if_exception(
                lambda e: isinstance(e, httpx.TransportError) and not isinstance(e, httpx.ReadTimeout)
            ),
            stop=tenacity.stop_after_attempt(self._limits.attempts)
            | tenacity.stop_after_delay(self._limits.elapsed_seconds),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=2.0),
            reraise=True,
        )
        try:
            return retry(self._http.request, method, url, timeout=timeout or self._limits.ask_seconds, json=json)
        except httpx.TransportError as error:
            raise ServerUnreachable(
                f"{self._base_url}{url}: {type(error).__name__}: {error}", busy=isinstance(error, httpx.ReadTimeout)
            ) from error


# What a load that was answered does not come back from. A server that answers before the end says LOADING.
_NOT_COMING = {IndexState.UNAVAILABLE, IndexState.UNKNOWN}
_RANK = {state: rank for rank, state in enumerate(IndexState)}  # the declared order: the liveliest first


def _state(word: str) -> IndexState:
    return IndexState(word) if word in IndexState.__members__ else IndexState.UNKNOWN
