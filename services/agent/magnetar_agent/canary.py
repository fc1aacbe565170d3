"""The canary: a request that a living engine answers, whatever the answer; one that hangs finds a dead one out.

Health endpoints keep saying 200 while workers are dead and requests hang (MLServer#707, vllm#39863). An error answer is
an answer: only silence counts.
"""

from collections.abc import Mapping
from typing import Any

import httpx

from magnetar_agent.adapters.base import Adapter

_REPOSITORY_KINDS = frozenset({"mlserver", "triton"})


class Canary:
    """Asks models for an inference.

    Args:
        adapter: knows where each model answers.
        patience_s: an answer that takes longer than this (seconds) is none.
    """

    def __init__(self, adapter: Adapter, patience_s: float) -> None:
        self._adapter = adapter
        self._http = httpx.Client(timeout=httpx.Timeout(patience_s, connect=2.0), trust_env=False)

    def sings(self, name: str) -> bool:
        """Whether a model answers at all within the patience."""
        path, body = self._request(name)
        try:
            self._http.post(f"{self._adapter.endpoint(name).rstrip('/')}{path}", json=body)
        except httpx.TransportError:
            return False
        return True

    def close(self) -> None:
        """Release the connections."""
        self._http.close()

    def _request(self, name: str) -> tuple[str, Mapping[str, Any]]:
        if self._adapter.kind in _REPOSITORY_KINDS:
            sample = {"name": "canary", "shape": [1, 1], "datatype": "FP32", "data": [0.0]}
            return f"/v2/models/{name}/infer", {"inputs": [sample]}
        return "/v1/completions", {"model": name, "prompt": ".", "max_tokens": 1}
