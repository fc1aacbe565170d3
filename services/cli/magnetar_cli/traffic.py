"""Inference requests without a pause, from a thread, and what became of them."""

import threading
from collections import Counter
from typing import Self

from magnetar_cli import iris
from magnetar_common.bus import Bus
from magnetar_common.errors import MagnetarError
from magnetar_common.inference import InferenceClient, Routes

_PAUSE_S = 0.02
_TIMEOUT_S = 10.0


class Traffic:
    """Sends the samples again and again until it is closed.

    Attributes:
        answers: right answers by server.
        failures: what each request that failed, or was answered wrongly, came to.
    """

    def __init__(self, bus: Bus, model: str) -> None:
        self.answers: Counter[str] = Counter()
        self.failures: list[str] = []
        self._model = model
        self._routes = Routes(bus)
        self._client = InferenceClient(self._routes)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._send, name="traffic", daemon=True)

    @property
    def sent(self) -> int:
        """How many requests have been answered or have failed."""
        return self.answers.total() + len(self.failures)

    def start(self) -> Self:
        """Begin, once the routes are read."""
        self._routes.wait_ready(_TIMEOUT_S)
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop. Idempotent."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self._client.close()
        self._routes.close()

    def _send(self) -> None:
        payload = iris.request()
        while not self._stopping.wait(_PAUSE_S):
            try:
                answer = self._client.infer(self._model, payload, timeout=_TIMEOUT_S)
            except MagnetarError as error:
                self.failures.append(str(error))
                continue
            if iris.is_right(answer.json):
                self.answers[answer.server] += 1
            else:
                self.failures.append(f"{answer.server} answered {answer.json}")
