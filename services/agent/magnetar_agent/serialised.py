"""Work in order per key, at the same time across keys, with a limit on how much runs at once."""

import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Serialised(Generic[K]):
    """Runs jobs: those of one key one after the other, in the order in which they were given.

    Args:
        limit: jobs that run at once.
    """

    def __init__(self, limit: int) -> None:
        self._pool = ThreadPoolExecutor(limit, thread_name_prefix="operation")
        self._queues: dict[K, deque[Callable[[], None]]] = {}
        self._lock = threading.Lock()

    def submit(self, key: K, job: Callable[[], None]) -> None:
        """Run a job after those of the same key that were given before. A job must not raise."""
        with self._lock:
            queue = self._queues.get(key)
            if queue is not None:
                queue.append(job)
                return
            self._queues[key] = deque([job])
        self._pool.submit(self._drain, key)

    def busy(self) -> set[K]:
        """Return the keys with a job running or waiting."""
        with self._lock:
            return set(self._queues)

    def close(self) -> None:
        """Drop what waits, and wait for what runs."""
        with self._lock:
            for queue in self._queues.values():
                while len(queue) > 1:
                    queue.pop()
        self._pool.shutdown(cancel_futures=True)

    def _drain(self, key: K) -> None:
        while True:
            with self._lock:
                job = self._queues[key][0]
            try:
                job()
            finally:
                with self._lock:
                    queue = self._queues[key]
                    queue.popleft()
                    more = bool(queue)
                    if not more:
                        del self._queues[key]
            if not more:
                return
