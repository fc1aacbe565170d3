"""Work in order per key, at the same time across keys, with a limit on how much runs at once."""

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from queue import SimpleQueue
from typing import Generic, TypeVar

from magnetar_agent.threads import Failed, guarded

K = TypeVar("K", bound=Hashable)


class Serialised(Generic[K]):
    """Runs jobs: those of one key one after the other, in the order in which they were given.

    Args:
        limit: jobs that run at once.
        failed: told of an exception that a job raised; no job should.
    """

    def __init__(self, limit: int, failed: Failed) -> None:
        self._queues: dict[K, deque[Callable[[], None]]] = {}
        self._ready: SimpleQueue[K | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._closing = False
        self.begun = 0
        """Jobs that were begun."""
        self.running = 0
        """Jobs that run now."""
        self._threads = [guarded(f"operation-{number}", self._run, failed) for number in range(limit)]
        for thread in self._threads:
            thread.start()

    def submit(self, key: K, job: Callable[[], None]) -> None:
        """Run a job after those of the same key that were given before; after ``close`` it is dropped."""
        with self._lock:
            if self._closing:
                return
            queue = self._queues.setdefault(key, deque())
            queue.append(job)
            if len(queue) == 1:
                self._ready.put(key)

    def close(self, timeout: float) -> bool:
        """Drop what waits, and wait for what runs; return whether it ended within ``timeout`` seconds."""
        with self._lock:
            self._closing = True
        for _ in self._threads:
            self._ready.put(None)
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while (key := self._ready.get()) is not None:
            with self._lock:
                if self._closing:
                    return
                job = self._queues[key][0]
                self.begun += 1
                self.running += 1
            try:
                job()
            finally:
                with self._lock:
                    self.running -= 1
                    queue = self._queues[key]
                    queue.popleft()
                    if queue:
                        self._ready.put(key)
                    else:
                        del self._queues[key]
