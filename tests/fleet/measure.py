"""What is measured of a run: all of it seen in the world."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import process_time

from tests.fleet.magnetar import Magnetar
from tests.fleet.packed import Packed
from tests.fleet.stream import MINUTE, MIXES, WARM_UP, Size, Stream, Wish
from tests.fleet.totals import Totals
from tests.fleet.world import Policy, Seen, World

PATIENCE = 15 * MINUTE
"""Who is not whole after this long was not placed. Every model is wanted for longer."""

POLICIES: dict[str, tuple[str, Callable[[World], Policy]]] = {
    "magnetar": ("Magnetar", Magnetar),
    "totals": ("totals", Totals),
    "sums": ("sums", partial(Magnetar, sums=True)),
    "packed": ("packed", Packed),
}
"""Name → (title, policy)."""


@dataclass(frozen=True, slots=True)
class Measures:
    """A run in numbers. Shares are from 0 to 1.

    Attributes:
        models: that were wanted in the measured day.
        placed: share of them whose replicas were all ready within ``PATIENCE``.
        fragmented: share of them that were not, of whom a load had failed because no device held what the sum did.
        placed_memory: as ``placed``, each model weighed by its device memory.
        rollouts: share of the new versions of running models that were whole within ``PATIENCE``.
        recovered: share of the models hit by the death of a server that were whole again within ``PATIENCE``.
        utilisation: of the device memory of living servers, mean.
        fragmentation: share of the free device memory that a model drawn from the mix could not use, mean.
        moves: loads beyond the one of each replica and version.
        futile: loads that failed for memory.
        gaps: replicas taken away though the model had no other one ready.
        decisions: made.
        seconds: CPU time of the run.
    """

    models: int
    placed: float
    fragmented: float
    placed_memory: float
    rollouts: float
    recovered: float
    utilisation: float
    fragmentation: float
    moves: int
    futile: int
    gaps: int
    decisions: int
    seconds: float


def run(policy: str, stream: Stream, mix: str) -> Measures:
    """Run a stream under a policy."""
    began = process_time()
    world = World(stream)
    placing = POLICIES[policy][1](world)
    seen = world.run(placing)
    return _measured(stream, seen, mix, placing.decisions, process_time() - began)


def _measured(stream: Stream, seen: Seen, mix: str, decisions: int, seconds: float) -> Measures:
    last = stream.end - PATIENCE
    wishes = [wish for wish in stream.wishes if WARM_UP <= wish.at <= last]
    placed = [wish for wish in wishes if _in_time(seen, (wish.name, 1), wish.at)]
    there = {wish.name for wish in placed}
    rollouts = [
        ((wish.name, n + 2), at)
        for wish in stream.wishes
        for n, at in enumerate(wish.rollouts)
        if WARM_UP <= at <= last and seen.served_at_rollout.get((wish.name, n + 2))
    ]
    by_name = {wish.name: wish for wish in stream.wishes}
    hit = [hit for hit in seen.hit if hit.at <= last and _steady(by_name[hit.model], hit.at)]
    replicas = {wish.name: wish.replicas for wish in stream.wishes}
    return Measures(
        models=len(wishes),
        placed=_share(len(placed), len(wishes)),
        fragmented=_share(
            sum(w.name not in there and (w.name, 1) in seen.memory_failures for w in wishes), len(wishes)
        ),
        placed_memory=_share(sum(wish.bytes for wish in placed), sum(wish.bytes for wish in wishes)),
        rollouts=_share(sum(_in_time(seen, version, at) for version, at in rollouts), len(rollouts)),
        recovered=_share(sum(0 < h.whole_at <= h.at + PATIENCE for h in hit), len(hit)),
        utilisation=sum(used for used, _ in seen.samples) / len(seen.samples),
        fragmentation=sum(fragmentation(free, MIXES[mix]) for _, free in seen.samples) / len(seen.samples),
        moves=sum(max(0, loads - replicas[name]) for (name, _), loads in seen.loads.items()),
        futile=sum(seen.memory_failures.values()),
        gaps=seen.gaps,
        decisions=decisions,
        seconds=seconds,
    )


def fragmentation(free: list[list[int]], mix: tuple[Size, ...]) -> float:
    """Return the share of the free memory of all devices that a model drawn from the mix could not use, on average.

    What it can use of a server is what is free on the devices that hold its part, if there are enough of them, and else
    nothing (Weng et al., "Beware of Fragmentation", USENIX ATC 2023, without the other resources).

    Args:
        free: bytes by device, of each server.
        mix: sizes with their shares.
    """
    usable = 0.0
    for size in mix:
        for devices in free:
            rooms = [room for room in devices if room >= size.middle]
            if len(rooms) >= size.devices:
                usable += size.share * sum(rooms)
    return 1 - usable / max(1, sum(map(sum, free)))


def _steady(wish: Wish, at: int) -> bool:
    """Whether a model is wanted for ``PATIENCE`` after a moment, and no new version of it meanwhile."""
    return wish.until >= at + PATIENCE and not any(at < rollout <= at + PATIENCE for rollout in wish.rollouts)


def _in_time(seen: Seen, version: tuple[str, int], at: int) -> bool:
    return 0 < seen.whole_at.get(version, 0) <= at + PATIENCE


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0
