"""The canary: a request that a living engine answers, whatever the answer; one that hangs finds a dead one out.

Health endpoints keep saying 200 while workers are dead and requests hang (MLServer#707, vllm#39863). An error answer is
an answer: only silence counts.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import structlog

from magnetar_agent.adapters.base import Adapter, ServerUnreachable
from magnetar_agent.ledger import VersionKey
from magnetar_agent.threads import Failed, guarded
from magnetar_events.models import served_name

SILENCES = 2
"""Canaries in a row without an answer after which a model counts as hung."""

CLOSE_S = 2.0
"""A question in progress is waited for this long (seconds) at the end."""

_REPOSITORY_KINDS = frozenset({"mlserver", "triton"})

_log = structlog.get_logger(__name__)


class Canary:
    """Asks loaded models for an inference, one after the other.

    Args:
        adapter: knows where each model answers.
        loaded: returns the versions to ask.
        on_hung: told when one turns out to be hung.
        every_s: each model is asked this often (seconds); 0 = never.
        patience_s: an answer that takes longer than this (seconds) is none.
        failed: told of what ended the thread.
    """

    def __init__(
        self,
        adapter: Adapter,
        loaded: Callable[[], set[VersionKey]],
        on_hung: Callable[[], None],
        *,
        every_s: float,
        patience_s: float,
        failed: Failed,
    ) -> None:
        self._adapter = adapter
        self._loaded = loaded
        self._on_hung = on_hung
        self._every_s = every_s
        self._silences: dict[VersionKey, int] = {}
        self._stopping = threading.Event()
        self._http = httpx.Client(timeout=httpx.Timeout(patience_s, connect=2.0), trust_env=False)
        self._thread = guarded("canary", self._run, failed)

    def start(self) -> None:
        """Begin to ask."""
        if self._every_s:
            self._thread.start()

    def close(self) -> None:
        """Stop. A question in progress is given a moment; one that hangs ends with its server, or its patience."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            self._http.close()

    def hung(self, key: VersionKey) -> bool:
        """Whether a version was silent so often that it must be loaded afresh."""
        return self._silences.get(key, 0) >= SILENCES

    def forgive(self, key: VersionKey) -> None:
        """Begin anew with a version: it was loaded afresh, or is gone."""
        self._silences.pop(key, None)

    def sings(self, name: str) -> bool:
        """Whether the model of this server-side name answers at all within the patience."""
        path, body = self._request(name)
        try:
            self._http.post(f"{self._adapter.endpoint(name).rstrip('/')}{path}", json=body)
        except (httpx.TransportError, ServerUnreachable):
            return False
        return True

    def _run(self) -> None:
        while not self._stopping.is_set():
            models = sorted(self._loaded())
            for key in models or (None,):
                if self._stopping.wait(self._every_s / max(1, len(models))):
                    return
                if key is not None:
                    self._ask(key)

    def _ask(self, key: VersionKey) -> None:
        sang = self.sings(served_name(*key))
        if sang or key not in self._loaded():  # or it was unloaded meanwhile, and is silent by right
            self.forgive(key)
            return
        self._silences[key] = self._silences.get(key, 0) + 1
        if self._silences[key] == SILENCES:
            _log.error("a loaded model answers no inference", model=key[0], generation=key[1])
            self._on_hung()

    def _request(self, name: str) -> tuple[str, Mapping[str, Any]]:
        if self._adapter.kind in _REPOSITORY_KINDS:
            sample = {"name": "canary", "shape": [1, 1], "datatype": "FP32", "data": [0.0]}
            return f"/v2/models/{name}/infer", {"inputs": [sample]}
        return "/v1/completions", {"model": name, "prompt": ".", "max_tokens": 1}
