"""A stream: what is wanted of a fleet in a day, and what fails. Drawn from the distribution stated here, with a seed.

Nothing in it depends on who places: every policy gets the same models at the same times, the same rollouts, the same
servers lost and back. Times are ms, sizes bytes.

The distribution, whole (``docs/fleet.md`` says why):

- **Servers**: ``FLEET``; accelerators with the memory that their drivers report.
- **Models**: a Poisson stream whose rate swings by ``SWING`` over the day. The rate is what makes the mean of what is wanted
  at one time ``load`` of the fleet's device memory. Sizes: ``MIXES``. Replicas: ``REPLICAS``. One in ``CHOOSY`` names the
  accelerator type that it accepts (one that can hold it, by how many there are).
- **Lifetimes**: ``SHORTEST`` and a lognormal of median ``MEDIAN`` and sigma ``SIGMA``: half are gone after three hours, one
  in a hundred stays for more than two days. At the most ``LONGEST``.
- **Rollouts**: of each model a Poisson process, one in ``ROLLOUT`` of its life, never two within ``SHORTEST``.
- **Failures**: each server dies once in ``BETWEEN_DEATHS``, for a lognormal time of median ``DOWN`` (at least a minute), and
  comes back empty. A load fails with probability ``LOAD_FAILS``.
- **Memory**: a replica takes 90 to 100 % of what its model declares.
- **Loads** take ``LOAD_MS`` for ``LOAD_BYTES`` a device and in proportion, never less than 5 s, ± 20 %.

The fleet begins with the models that a stationary stream would have left alive, which arrive in the first hour in random
order; the day that is measured comes after it.
"""

import math
from dataclasses import dataclass, replace
from random import Random

MIB, GIB = 2**20, 2**30
SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

WARM_UP = HOUR
SHORTEST = 30 * MINUTE
MEDIAN, SIGMA = 2.5 * HOUR, 1.3
LONGEST = 14 * DAY
SWING = 0.1
LOAD = 0.7
ROLLOUT = 12 * HOUR
CHOOSY = 8
BETWEEN_DEATHS = 10 * DAY
DOWN = 30 * MINUTE
LOAD_FAILS = 0.01
LOAD_MS, LOAD_BYTES = 30 * SECOND, 16 * GIB
"""A cold start: 12 s fetch, 8 s load, 10 s compile (``shared/SEED_NUMBERS.md``), taken as that of a 16 GiB model."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Servers of one kind: so many of every 500, each with so many accelerators of this memory."""

    gpu_type: str
    devices: int
    memory: int
    servers: int


FLEET = (
    Kind("NVIDIA H100 80GB HBM3", 8, 81_559 * MIB, 60),
    Kind("NVIDIA A100-SXM4-40GB", 8, 40_960 * MIB, 60),
    Kind("NVIDIA A100-SXM4-80GB", 4, 81_920 * MIB, 80),
    Kind("NVIDIA L40S", 4, 46_068 * MIB, 100),
    Kind("NVIDIA A10", 4, 23_028 * MIB, 100),
    Kind("NVIDIA L4", 1, 23_034 * MIB, 100),
)


@dataclass(frozen=True, slots=True)
class Size:
    """Models of one size: so many accelerators, and on each of them from ``low`` to ``high`` bytes, evenly."""

    what: str
    devices: int
    low: int
    high: int
    share: float

    @property
    def middle(self) -> int:
        """The mean, in bytes a device."""
        return (self.low + self.high) // 2


_SMALL = Size("encoders, classifiers, speech", 1, 2 * GIB, 8 * GIB, 0.35)
_WHOLE = Size("mixtures on a whole server", 8, 60 * GIB, 76 * GIB, 0.01)
_GENERATIVE = (
    Size("7 to 9 B", 1, 16 * GIB, 22 * GIB, 0.35),
    Size("13 B, or 8 B with a long context", 1, 28 * GIB, 38 * GIB, 0.20),
    Size("32 B on one", 1, 60 * GIB, 76 * GIB, 0.15),
    Size("32 B on two", 2, 34 * GIB, 42 * GIB, 0.08),
    Size("70 B on two", 2, 66 * GIB, 76 * GIB, 0.12),
    Size("70 B on four", 4, 34 * GIB, 42 * GIB, 0.10),
)


def _with(one: Size) -> tuple[Size, ...]:
    return (one, *(replace(size, share=size.share * (1 - one.share)) for size in _GENERATIVE))


MIXES = {"generative": _GENERATIVE, "small": _with(_SMALL), "whole": _with(_WHOLE)}
"""Name → shares of the models by number. ``generative``: language models, 16 bit, with their caches. ``small``: with a third
of small models among them. ``whole``: one in a hundred takes a server of eight whole."""

REPLICAS = ((1, 0.85), (2, 0.12), (3, 0.03))


@dataclass(frozen=True, slots=True)
class Wish:
    """A model that somebody wants.

    Attributes:
        name: unique in the stream.
        at: when it is wanted.
        until: when no longer.
        devices: accelerators of one replica.
        memory: declared bytes on each.
        used: bytes that it really takes on each.
        gpu_types: those that it accepts; empty = any.
        replicas: so many of it.
        rollouts: when a new version is wanted.
    """

    name: str
    at: int
    until: int
    devices: int
    memory: int
    used: int
    gpu_types: tuple[str, ...]
    replicas: int
    rollouts: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """All that it is said to take."""
        return self.replicas * self.devices * self.memory


@dataclass(frozen=True, slots=True)
class Outage:
    """A server is gone for a while."""

    server: int
    at: int
    until: int


@dataclass(frozen=True, slots=True)
class Stream:
    """What happens to a fleet.

    Attributes:
        seed: of all its draws.
        servers: the kind of each.
        wishes: by time.
        outages: by time.
        end: of the measured day.
    """

    seed: int
    servers: tuple[Kind, ...]
    wishes: tuple[Wish, ...]
    outages: tuple[Outage, ...]
    end: int

    @property
    def memory(self) -> int:
        """Device memory of the whole fleet."""
        return sum(kind.devices * kind.memory for kind in self.servers)

    def offered(self) -> tuple[float, float]:
        """Return (mean, peak) over the measured day of what is wanted at one time, as a share of the fleet's memory."""
        changes: list[tuple[int, int]] = []
        for wish in self.wishes:
            changes += [(wish.at, wish.bytes), (wish.until, -wish.bytes)]
        wanted = peak = area = 0
        since = WARM_UP
        for at, change in sorted(changes):
            if at >= self.end:
                break
            if at > since:
                peak = max(peak, wanted)
                area += wanted * (at - since)
                since = at
            wanted += change
        area += wanted * (self.end - since)
        return area / (self.end - WARM_UP) / self.memory, max(peak, wanted) / self.memory


def fleet(servers: int) -> tuple[Kind, ...]:
    """Return so many servers in the proportions of ``FLEET``, the kinds in turn."""
    whole = sum(kind.servers for kind in FLEET)
    kinds: list[Kind] = []
    for n in range(servers):  # at each step the kind that is farthest behind its share
        counts = {kind: kinds.count(kind) for kind in FLEET}
        kinds.append(max(FLEET, key=lambda kind: kind.servers / whole * (n + 1) - counts[kind]))
    return tuple(kinds)


def draw(seed: int, *, servers: int = 500, load: float = LOAD, hours: float = 24, mix: str = "generative") -> Stream:
    """Draw a stream.

    Args:
        seed: the same seed gives the same stream.
        servers: how many.
        load: mean of what is wanted at one time, as a share of the fleet's device memory.
        mix: of ``MIXES``.
        hours: length of what is measured; an hour to fill the fleet comes before it.
    """
    random = Random(seed)
    kinds = fleet(servers)
    end = WARM_UP + int(hours * HOUR)
    memory = sum(kind.devices * kind.memory for kind in kinds)
    sizes = MIXES[mix]
    a_model = sum(size.share * size.devices * size.middle for size in sizes) * sum(n * share for n, share in REPLICAS)
    a_life = SHORTEST + MEDIAN * math.exp(SIGMA**2 / 2)
    rate = load * memory / a_model / a_life  # models per ms
    wishes: list[Wish] = []
    at = WARM_UP - LONGEST
    while (at := at + random.expovariate(rate * (1 + SWING))) < end:  # thinned to the rate of the hour
        swing = 1 + SWING * math.sin(2 * math.pi * (at - WARM_UP) / DAY)
        if random.random() * (1 + SWING) > swing:
            continue
        life = min(LONGEST, SHORTEST + random.lognormvariate(math.log(MEDIAN), SIGMA))
        if at + life < 2 * WARM_UP:
            continue  # gone before anything is measured
        begins = int(at) if at >= WARM_UP else random.randrange(WARM_UP)
        wishes.append(_wish(random, f"m{len(wishes):05d}", begins, int(at + life), kinds, sizes))
    wishes.sort(key=lambda wish: (wish.at, wish.name))
    return Stream(seed, kinds, tuple(wishes), _outages(random, servers, end), end)


def _wish(random: Random, name: str, at: int, until: int, kinds: tuple[Kind, ...], sizes: tuple[Size, ...]) -> Wish:
    (size,) = random.choices(sizes, [size.share for size in sizes])
    memory = random.randrange(size.low, size.high + 1, 64 * MIB)
    (replicas,) = random.choices([n for n, _ in REPLICAS], [share for _, share in REPLICAS])
    gpu_types: tuple[str, ...] = ()
    if not random.randrange(CHOOSY):
        fitting = [kind for kind in kinds if kind.memory >= memory and kind.devices >= size.devices]
        gpu_types = tuple(k.gpu_type for k in random.choices(fitting, [k.devices for k in fitting]) if fitting)
    rollouts: list[int] = []
    due = float(at)
    while (due := due + SHORTEST + random.expovariate(1 / (ROLLOUT - SHORTEST))) < until - SHORTEST:
        rollouts.append(int(due))
    used = int(memory * random.uniform(0.9, 1.0))
    return Wish(name, at, until, size.devices, memory, used, gpu_types, replicas, tuple(rollouts))


def _outages(random: Random, servers: int, end: int) -> tuple[Outage, ...]:
    outages: list[Outage] = []
    for server in range(servers):
        at = float(WARM_UP)
        while (at := at + random.expovariate(1 / BETWEEN_DEATHS)) < end:
            down = max(MINUTE, random.lognormvariate(math.log(DOWN), 1.0))
            outages.append(Outage(server, int(at), int(at + down)))
            at += down + MINUTE
    return tuple(sorted(outages, key=lambda outage: (outage.at, outage.server)))
