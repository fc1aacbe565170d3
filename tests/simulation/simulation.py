"""One run: a cluster on the runtime, chaos, then quiet, and what must hold all the while and in the end."""

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

from tests.simulation.adversary import Adversary
from tests.simulation.cluster import Cluster
from tests.simulation.invariants import Checker, Violated
from tests.simulation.rest import unsettled
from tests.simulation.runtime import Hub
from tests.simulation.underneath import simulated

CHAOS_S = 45.0
"""Virtual seconds of trouble."""

QUIET_S = 300.0
"""Virtual seconds without, after which all must be well; most runs are at rest much earlier."""

LOOK_S = 2.5
"""Virtual seconds between two comparisons of whole states."""


class Simulation:
    """A cluster that runs on virtual time.

    Attributes:
        hub: the runtime.
        cluster: what runs on it.
        checker: what watches it.
    """

    def __init__(self, seed: str, **cluster: object) -> None:
        self.hub = Hub(seed)
        self.cluster = Cluster(self.hub, seed, **cluster)  # type: ignore[arg-type]
        self.checker = Checker(self.cluster)

    def run_for(self, seconds: float) -> None:
        """Let virtual time pass.

        Raises:
            Violated: an invariant broke.
        """
        end = self.hub.now + seconds
        while self.hub.failure is None and self.hub.now < end:
            self.hub.run(min(end, self.hub.now + LOOK_S))
            self.checker.folded()
        if self.hub.failure is not None:
            raise self.hub.failure

    def until(self, condition: Callable[[], object], within: float, what: str = "") -> None:
        """Let time pass until something is so.

        Raises:
            Violated: it was not within so many virtual seconds, or an invariant broke.
        """
        end = self.hub.now + within
        while not condition():
            if self.hub.now >= end:
                raise Violated("it happens in time", f"not within {within} s: {what or condition}")
            self.run_for(0.25)

    def settle(self, within: float = QUIET_S) -> None:
        """Let time pass until everything is at rest, as it must be in the end.

        Raises:
            Violated: it is not within so many virtual seconds, or an invariant broke.
        """
        end = self.hub.now + within
        while left := unsettled(self.checker):
            if self.hub.now >= end:
                raise Violated("every wish ends Available, or says why not", f"after {within} quiet seconds: {left}")
            self.run_for(1.0)
        self.checker.folded()
        if self.hub.failure is not None:
            raise self.hub.failure


@contextmanager
def simulation(seed: str, **cluster: object) -> Generator[Simulation]:
    """Make a cluster whose production modules run on virtual time, and let go of it afterwards."""
    running = Simulation(seed, **cluster)
    with simulated(running.cluster, running.checker.spies()):
        try:
            yield running
        finally:
            running.hub.close()


@dataclass
class Result:
    """What came of a seed.

    Attributes:
        seed: which.
        failure: what was wrong; None = nothing.
        seconds: virtual time that passed.
        steps: switches of threads.
        digest: hash of all that happened.
        faults: fault → how often.
        entries: of the log.
        loads: models that a server held at some time.
        told: the newest events.
    """

    seed: int
    failure: BaseException | None = None
    seconds: float = 0.0
    steps: int = 0
    digest: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    entries: int = 0
    loads: int = 0
    told: list[str] = field(default_factory=list)

    @property
    def invariant(self) -> str:
        """The name of the invariant that broke, or of the exception."""
        if self.failure is None:
            return ""
        return self.failure.name if isinstance(self.failure, Violated) else type(self.failure).__name__


def run_seed(seed: int, mutation: AbstractContextManager[object] | None = None) -> Result:
    """Run one seed from beginning to end."""
    result = Result(seed)
    with simulation(str(seed), projector=seed % 3 == 0, registry=seed % 4 != 1) as running, mutation or nullcontext():
        hub = running.hub
        adversary = Adversary(running.cluster, running.checker, str(seed))
        began = hub.now
        try:
            adversary.begin(wishes=13, faults=11, seconds=CHAOS_S)
            running.run_for(CHAOS_S)
            adversary.heal()
            running.settle()
        except Exception as error:
            result.failure = hub.failure or error
        result.seconds = hub.now - began
        result.steps, result.digest, result.faults = hub.steps, hub.digest, adversary.faults
        result.loads = sum(len(server.ever) for server in running.cluster.servers.values())
        result.entries, result.told = running.checker.state.position + 1, hub.told()
    return result
