"""``threading``, ``queue``, ``time``, ``random``, ``uuid`` and ``secrets`` over the hub, with the names of the real ones."""

import queue as real_queue
import random as real_random
import uuid as real_uuid
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

from greenlet import GreenletExit

from tests.simulation.runtime import EPOCH_S, Hub, Process, Task

T = TypeVar("T")

Empty = real_queue.Empty


def _hub() -> Hub:
    return Hub.current


class Lock:
    """A lock; who waits contends anew when it is released."""

    __slots__ = ("_owner", "_waiters")

    def __init__(self) -> None:
        self._owner: object = None
        self._waiters: deque[Task] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        hub = Hub.current
        if hub.closing:
            return True
        hub.maybe_step()
        while self._owner is not None:
            if not blocking:
                return False
            assert hub.task is not None, "the hub itself cannot wait for a lock"
            self._waiters.append(hub.task)
            if not hub.park(None if timeout < 0 else timeout):
                self._waiters.remove(hub.task)
                return False
        self._owner = hub.task or hub
        return True

    def release(self) -> None:
        self._owner = None
        hub = Hub.current
        while self._waiters and not hub.wake(self._waiters.popleft()):
            pass

    def locked(self) -> bool:
        return self._owner is not None

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock:
    """A lock that its owner may take again."""

    __slots__ = ("_count", "_lock")

    def __init__(self) -> None:
        self._lock = Lock()
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        hub = Hub.current
        if self._count and self._lock._owner is (hub.task or hub):
            self._count += 1
            return True
        if not self._lock.acquire(blocking, timeout):
            return False
        self._count = 1
        return True

    def release(self) -> None:
        self._count -= 1
        if self._count <= 0:
            self._count = 0
            self._lock.release()

    def release_all(self) -> int:
        count, self._count = self._count, 0
        self._lock.release()
        return count

    def acquire_again(self, count: int) -> None:
        self._lock.acquire()
        self._count = count

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition:
    """A condition variable."""

    def __init__(self, lock: Lock | RLock | None = None) -> None:
        self._lock = lock if lock is not None else RLock()
        self._waiters: deque[Task] = deque()

    def acquire(self, *arguments: Any) -> bool:
        return self._lock.acquire(*arguments)

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        hub = Hub.current
        if hub.closing:
            raise GreenletExit
        assert hub.task is not None, "the hub itself cannot wait for a condition"
        lock = self._lock
        self._waiters.append(hub.task)
        count = lock.release_all() if isinstance(lock, RLock) else lock.release()
        told = hub.park(timeout)
        if not told and hub.task in self._waiters:
            self._waiters.remove(hub.task)
        if isinstance(lock, RLock):
            lock.acquire_again(count or 1)
        else:
            lock.acquire()
        return told

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        hub = Hub.current
        end = None if timeout is None else hub.now + timeout
        result = predicate()
        while not result:
            left = None if end is None else end - hub.now
            if left is not None and left <= 0:
                break
            self.wait(left)
            result = predicate()
        return result

    def notify(self, n: int = 1) -> None:
        hub = Hub.current
        while n and self._waiters:
            n -= hub.wake(self._waiters.popleft())

    def notify_all(self) -> None:
        self.notify(len(self._waiters))


class Event:
    """A flag to wait for."""

    def __init__(self) -> None:
        self._flag = False
        self._waiters: list[Task] = []

    def is_set(self) -> bool:
        return self._flag

    def set(self) -> None:
        self._flag = True
        waiters, self._waiters = self._waiters, []
        for task in waiters:
            Hub.current.wake(task)

    def clear(self) -> None:
        self._flag = False

    def wait(self, timeout: float | None = None) -> bool:
        hub = Hub.current
        if self._flag or hub.closing:
            hub.step()
            return True
        assert hub.task is not None, "the hub itself cannot wait for an event"
        self._waiters.append(hub.task)
        if not hub.park(timeout) and hub.task in self._waiters:
            self._waiters.remove(hub.task)
        return self._flag


class Thread:
    """A thread of the process that starts it."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self.name = name or "thread"
        self.daemon = daemon
        self._call = (target, args, kwargs or {})
        self._task: Task | None = None
        self._process: Process | None = None
        self._ended = False
        self._joining: list[Task] = []

    def start(self) -> None:
        hub = Hub.current
        assert hub.task is not None, "only a simulated process starts threads"
        self._process = hub.task.process
        self._task = self._process.spawn(self.name, self._run, self)
        hub.maybe_step()

    def _run(self) -> None:
        hub = Hub.current
        target, arguments, keywords = self._call
        try:
            if target is not None:
                target(*arguments, **keywords)
        except GreenletExit:
            raise
        except BaseException as error:
            assert self._process is not None
            hub.note(self._process.name, "thread died", thread=self.name, error=repr(error))
            hub.failure = hub.failure or error
        self._ended = True
        for task in self._joining:
            hub.wake(task)

    def is_alive(self) -> bool:
        return self._task is not None and not self._ended

    def join(self, timeout: float | None = None) -> None:
        hub = Hub.current
        if self._task is None or self._ended or hub.closing:
            return
        assert hub.task is not None, "the hub itself cannot join a thread"
        self._joining.append(hub.task)
        hub.park(timeout)


_MAIN = Thread(name="the test's own thread")


def _current_thread() -> Thread:
    task = Hub.current.task
    if task is None:
        return _MAIN
    if task.handle is None:
        task.handle = Thread(name=task.name)
    assert isinstance(task.handle, Thread)
    return task.handle


class SimpleQueue(Generic[T]):
    """An unbounded queue."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._waiters: deque[Task] = deque()

    def put(self, item: T, block: bool = True, timeout: float | None = None) -> None:
        hub = Hub.current
        if hub.closing:
            return
        self._items.append(item)
        while self._waiters and not hub.wake(self._waiters.popleft()):
            pass
        if hub.task is not None:
            hub.maybe_step()

    put_nowait = put

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        if not block:
            return self.get_nowait()
        hub = Hub.current
        end = None if timeout is None else hub.now + timeout
        while not self._items:
            if hub.closing:
                raise GreenletExit
            left = None if end is None else end - hub.now
            if left is not None and left <= 0:
                raise Empty
            assert hub.task is not None, "the hub itself cannot wait for a queue"
            self._waiters.append(hub.task)
            if not hub.park(left) and hub.task in self._waiters:
                self._waiters.remove(hub.task)
        return self._items.popleft()

    def get_nowait(self) -> T:
        Hub.current.maybe_step()
        if not self._items:
            raise Empty
        return self._items.popleft()

    def qsize(self) -> int:
        return len(self._items)

    def empty(self) -> bool:
        return not self._items


def _monotonic() -> float:
    return Hub.current.now


def _time() -> float:
    hub = Hub.current
    return EPOCH_S + hub.now + (hub.task.process.skew if hub.task is not None else 0.0)


def _time_ns() -> int:
    return int(_time() * 1e9)


def _sleep(seconds: float) -> None:
    Hub.current.park(seconds)


def _uuid4() -> real_uuid.UUID:
    return real_uuid.UUID(int=_hub().production.getrandbits(128), version=4)


def _token_hex(nbytes: int = 32) -> str:
    hub = _hub()
    token = f"{hub.production.getrandbits(8 * nbytes):0{2 * nbytes}x}"
    if hub.task is not None:
        hub.task.process.tokens.append(token)
    return token


threading = SimpleNamespace(
    Thread=Thread,
    Lock=Lock,
    RLock=RLock,
    Condition=Condition,
    Event=Event,
    current_thread=_current_thread,
    main_thread=lambda: _MAIN,
)
queue = SimpleNamespace(SimpleQueue=SimpleQueue, Queue=SimpleQueue, Empty=Empty, Full=real_queue.Full)
time = SimpleNamespace(monotonic=_monotonic, time=_time, time_ns=_time_ns, sleep=_sleep)
random = SimpleNamespace(
    Random=real_random.Random,
    random=lambda: _hub().production.random(),
    uniform=lambda a, b: _hub().production.uniform(a, b),
    choice=lambda items: _hub().production.choice(items),
    choices=lambda *a, **k: _hub().production.choices(*a, **k),
    sample=lambda items, n: _hub().production.sample(items, n),
    randint=lambda a, b: _hub().production.randint(a, b),
)
uuid = SimpleNamespace(uuid4=_uuid4, UUID=real_uuid.UUID)
secrets = SimpleNamespace(token_hex=_token_hex)
