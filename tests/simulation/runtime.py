"""A deterministic, cooperative runtime: many simulated processes with their threads, one virtual clock, one seed.

Each simulated thread is a greenlet, and exactly one runs. Whatever may block, and every use of the bus, switches to the
hub, which picks the next runnable thread with the seed's own random numbers; when none is runnable, time jumps to the
next timer. So a seed is a schedule, and every switch is a step at which a process may be crashed.
"""

import contextlib
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any, ClassVar
from zlib import crc32

from greenlet import GreenletExit, getcurrent, greenlet

STEP_S = 20e-6
"""What one step costs (virtual seconds): nothing takes no time, and a loop that never blocks moves the clock."""

MAX_STEPS = 4_000_000
"""More steps than this are a loop that gets nowhere."""

EPOCH_S = 1_700_000_000.0
"""What an honest wall clock shows at the beginning of a run."""

TRACE = 120
"""Events that are kept for the report of a failure."""


class Stuck(Exception):
    """The simulation itself cannot go on."""


class Task:
    """One simulated thread."""

    __slots__ = ("greenlet", "handle", "name", "parked", "process", "serial", "woken")

    def __init__(self, process: "Process", name: str, run: Callable[[], None], handle: object = None) -> None:
        self.process = process
        self.name = name
        self.handle = handle
        self.greenlet: Any = greenlet(run)
        self.parked = False
        self.woken = False
        self.serial = 0


class Process:
    """A group of threads that live, stand still and die together, with a wall clock of their own.

    Attributes:
        hub: of the run.
        name: of what runs in it.
        skew: seconds by which its wall clock is off.
        alive: it has not ended.
        frozen: it stands still, as after SIGSTOP.
        steps: how often one of its threads was resumed.
        crash_at: the step at which it is killed; 0 = none.
        error: what ended its main thread, if that was an exception.
        troubled: when it was last not running freely.
        connections: its buses; they break when it dies.
        on_end: told once it has ended.
        died_at: when; None while it lives.
        tokens: what it drew from ``secrets``: the incarnation of an agent is one.
        said_goodbye: it began to leave the registry.
    """

    def __init__(self, hub: "Hub", name: str, main: Callable[[], None], *, skew: float = 0.0) -> None:
        self.hub = hub
        self.name = name
        self.skew = skew
        self.alive = True
        self.frozen = False
        self.steps = 0
        self.crash_at = 0
        self.error: BaseException | None = None
        self.troubled = hub.now
        self.connections: list[Any] = []
        self.on_end: list[Callable[[Process], None]] = []
        self.died_at: float | None = None
        self.tokens: list[str] = []
        self.said_goodbye = False
        self._held: list[Task] = []
        self._mail: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        hub.processes.append(self)

        def guarded() -> None:
            try:
                main()
            except Exception as error:
                self.error = error
            if self.alive:
                hub.note(self.name, "ends", error=repr(self.error) if self.error else "")
                hub.at(hub.now, self.end)

        self.spawn("main", guarded)

    def spawn(self, name: str, run: Callable[[], None], handle: object = None) -> Task:
        """Start a thread."""
        task = Task(self, name, run, handle)
        self.hub.tasks.append(task)
        self.hub.make_ready(task)
        return task

    def hold(self, task: Task) -> None:
        """Keep a runnable thread of a frozen process back."""
        self._held.append(task)

    def kill(self) -> None:
        """End at once, as by ``kill -9``: nothing of it runs again, no ``finally`` either."""
        if self.alive:
            self.hub.note(self.name, "killed", step=self.steps)
            self.end()

    def end(self) -> None:
        """It is no more; its connections break."""
        if not self.alive:
            return
        self.alive, self.frozen, self.died_at = False, False, self.hub.now
        self._held.clear()
        self._mail.clear()
        for connection in self.connections:
            connection.abandoned()
        for told in self.on_end:
            told(self)

    def freeze(self) -> None:
        """Stand still from here on; timers of its threads run out meanwhile."""
        if self.alive and not self.frozen:
            self.hub.note(self.name, "frozen")
            self.frozen, self.troubled = True, self.hub.now
            for connection in self.connections:
                connection.silenced()

    def thaw(self) -> None:
        """Go on; what arrived meanwhile is taken up first."""
        if self.alive and self.frozen:
            self.hub.note(self.name, "thawed")
            self.frozen, self.troubled = False, self.hub.now
            mail, self._mail = self._mail, []
            held, self._held = self._held, []
            for task in held:
                self.hub.make_ready(task)
            for fn, arguments in mail:
                fn(*arguments)

    def deliver(self, fn: Callable[..., object], *arguments: Any) -> None:
        """Call something on its behalf now, or once it is thawed, or never if it is dead."""
        if self.frozen:
            self._mail.append((fn, arguments))
        elif self.alive:
            fn(*arguments)

    def later(self, delay: float, fn: Callable[..., object], *arguments: Any) -> None:
        """Call something on its behalf after a while."""
        self.hub.at(self.hub.now + delay, self.deliver, fn, *arguments)


class Hub:
    """Runs everything. One at a time is :attr:`current`.

    Args:
        seed: of the run.
        preemption: chance that a lock, a queue or an event is a switch point even if it does not block.

    Attributes:
        now: virtual monotonic time (seconds).
        failure: set by whoever finds something wrong; ends the run.
        digest: a hash over everything that happened: equal for equal seeds.
    """

    current: ClassVar["Hub"]

    def __init__(self, seed: str, *, preemption: float = 0.05) -> None:
        self.now = 100.0
        self.steps = 0
        self.processes: list[Process] = []
        self.tasks: list[Task] = []
        self.task: Task | None = None
        self.failure: BaseException | None = None
        self.digest = 0
        self.trace: deque[tuple[float, str, str, dict[str, object]]] = deque(maxlen=TRACE)
        self.production = Random(f"{seed}/production")
        self.closing = False
        self._schedule = Random(f"{seed}/schedule").random
        self._preemption = preemption
        self._ready: list[Task] = []
        self._timers: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._sequence = 0
        self._hub: Any = None
        Hub.current = self

    # --- what happens when -----------------------------------------------------------------------------------------------

    def at(self, when: float, fn: Callable[..., object], *arguments: Any) -> None:
        """Call something at a time, on the hub itself: it must not block."""
        self._sequence += 1
        heappush(self._timers, (when, self._sequence, fn, arguments))

    def after(self, delay: float, fn: Callable[..., object], *arguments: Any) -> None:
        """Call something after a while."""
        self.at(self.now + delay, fn, *arguments)

    def note(self, who: str, event: str, *, shown: bool = True, **fields: object) -> None:
        """Put an event into the trace; one that is not ``shown`` counts for the digest alone."""
        if shown:
            self.trace.append((self.now, who, event, fields))
        self.digest = crc32(f"{self.now:.6f}{who}{event}{fields}".encode(), self.digest)

    def told(self) -> list[str]:
        """Return the newest events, a line each."""
        return [
            f"{when:10.4f}  {who:<14} {event}" + "".join(f" {key}={str(value)[:160]}" for key, value in fields.items())
            for when, who, event, fields in self.trace
        ]

    # --- threads ---------------------------------------------------------------------------------------------------------

    def make_ready(self, task: Task) -> None:
        """Let a thread run when its turn comes."""
        task.parked = False
        if task.process.frozen:
            task.process.hold(task)
        elif task.process.alive:
            self._ready.append(task)

    def wake(self, task: Task) -> bool:
        """End a thread's wait; return whether it waited."""
        if not task.parked or not task.process.alive:
            return False
        task.serial += 1
        task.woken = True
        self.make_ready(task)
        return True

    def park(self, timeout: float | None = None) -> bool:
        """Wait to be woken; return whether that happened within ``timeout`` seconds."""
        if self.closing:
            raise GreenletExit
        task = self.task
        if task is None:
            raise Stuck("the hub itself cannot wait: this is for a simulated thread")
        task.serial += 1
        task.parked, task.woken = True, False
        if timeout is not None:
            self.at(self.now + max(timeout, 0.0), self._lapse, task, task.serial)
        self._hub.switch()
        return task.woken

    def _lapse(self, task: Task, serial: int) -> None:
        if task.parked and task.serial == serial and task.process.alive:
            task.serial += 1
            self.make_ready(task)

    def step(self) -> None:
        """Let others run: a switch point."""
        if self.closing:
            raise GreenletExit
        task = self.task
        if task is not None:
            self.make_ready(task)
            self._hub.switch()

    def maybe_step(self) -> None:
        """Let others run now and then, as a preemptive scheduler does."""
        if self._schedule() < self._preemption:
            self.step()

    # --- the loop --------------------------------------------------------------------------------------------------------

    def run(self, until: float) -> None:
        """Run until a virtual time, or until something failed."""
        ready, timers, schedule = self._ready, self._timers, self._schedule
        self._hub = getcurrent()
        while self.failure is None:
            while timers and timers[0][0] <= self.now:
                _, _, fn, arguments = heappop(timers)
                fn(*arguments)
            if ready:
                index = int(schedule() * len(ready))
                task = ready[index]
                ready[index] = ready[-1]
                ready.pop()
                process = task.process
                if not process.alive:
                    continue
                if process.frozen:
                    process.hold(task)
                    continue
                process.steps += 1
                if process.steps == process.crash_at:
                    process.kill()
                    continue
                self.now += STEP_S
                self.steps += 1
                self.digest = (self.digest * 31 + index) & 0xFFFFFFFF
                self.task = task
                task.greenlet.switch()
                self.task = None
            elif timers and timers[0][0] < until:
                self.now = timers[0][0]
            else:
                self.now = max(self.now, until)
                return
            if self.now >= until:
                return
            if self.steps > MAX_STEPS:
                raise Stuck(f"{MAX_STEPS} steps, and no end: the last were\n" + "\n".join(self.told()))

    def close(self) -> None:
        """Unwind every thread. Nothing that blocks blocks any more, and nothing reaches anything."""
        self.closing = True
        self._hub = getcurrent()
        for task in self.tasks:
            if task.greenlet and not task.greenlet.dead:
                with contextlib.suppress(BaseException):
                    task.greenlet.throw(GreenletExit)
        for process in self.processes:
            process.alive = False
        self.tasks.clear()
        self._ready.clear()
        self._timers.clear()
