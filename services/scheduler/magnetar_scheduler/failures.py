"""What becomes of a version that failed: where it is tried again, what of it is replaced, and what is let go of."""

from magnetar_common.state import Model, Version
from magnetar_common.status import PLACES
from magnetar_common.transitions import R
from magnetar_events import facts as f
from magnetar_scheduler.draft import Draft
from magnetar_scheduler.leaving import let_go

NO_MATTER_OF_ROOM = frozenset(
    {"failed-here", "beside", "lost", "draining", "runtime", "requirements", "gpu-type", "server"}
)
"""Rules that turn a server down whatever room there is. What failed does not wait for them: a server that comes revives it."""


def fail(draft: Draft, model: Model, version: Version, code: str, message: str, *, retriable: bool) -> None:
    """Decide that a version cannot be had, with every place that was tried; again when it was tried at more of them.

    What is tried beyond the policy's limit, to replace what served, is no failure of its own.
    """
    told = sorted(model.given_up(version.generation).items())[:PLACES]
    places = tuple(f"{server}: {why}" for server, why in told)
    known, most = version.failed, draft.policy.load_servers
    if known is None or (known.retriable and len(known.places) < most and known.places != places):
        draft.emit(f.VersionFailed(model.key, version.generation, code, message, retriable, places))


def to_place(draft: Draft, model: Model, version: Version) -> int:
    """Return how many replicas of a version are to be placed.

    Of one that failed for a retriable reason all that is missing, until it has failed on as many servers as it may; of
    what got traffic no less is replaced, on as many servers more, and as many again when nothing of it is left.
    """
    generation, failed = version.generation, version.failed
    if failed is None:
        return model.missing(generation)
    tried, most = len(model.given_up(generation)), draft.policy.load_servers
    live = sum(replica.live for replica in model.of(generation))
    if failed.retriable and tried < most:
        return max(0, version.wanted - live)
    most *= (2 if live else 3) if generation in model.routed() else 1
    return model.bereft(generation) if tried < most else 0


def revive_what_is_whole(draft: Draft, model: Model) -> None:
    """Forget that a version failed once all that is wanted of it is there: by another server, or as fewer are wanted.

    One that failed for good, and was given no traffic yet, gets none because fewer are wanted now.
    """
    for generation in model.kept():
        version = model.versions[generation]
        failed = version.failed
        if failed is None or not (failed.retriable or generation in model.routed()):
            continue
        ready = sum(replica.live and replica.state in (R.LOADED, R.AVAILABLE) for replica in model.of(generation))
        if ready >= version.wanted:
            draft.emit(f.VersionRevived(model.key, generation, "all that is wanted of it is loaded"))


def clear_away(draft: Draft, model: Model) -> None:
    """Let go of what is left of a wanted version that failed for good and gets no traffic, while an old one serves."""
    target, routed = model.target, model.routed()
    if target.failed is None or target.refused is not None or target.generation in routed:
        return
    if not any(replica.state is R.AVAILABLE and replica.generation in routed for replica in model.replicas.values()):
        return
    left = list(model.of(target.generation))
    more = target.failed.retriable and len(model.given_up(target.generation)) < draft.policy.load_servers
    if not more:  # otherwise it would be loaded again
        for replica in left:
            let_go(draft, replica, "its version failed")
