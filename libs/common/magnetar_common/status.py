"""What to tell people about a model: computed from the state alone, with target and active side by side."""

import re
from dataclasses import dataclass
from enum import StrEnum

from magnetar_common.quotas import code_of
from magnetar_common.state import Model, Replica, State
from magnetar_common.transitions import ON_ITS_WAY, R

PLACES = 20
"""Places at which a version failed that are told, at most: each with what its agent said."""

_SERVES = re.compile(r"; version [0-9 and]+ goes on serving")


class ModelState(StrEnum):
    """The one word for how a model is."""

    PROGRESSING = "Progressing"
    AVAILABLE = "Available"
    DEGRADED = "Degraded"
    SCHEDULE_FAILED = "ScheduleFailed"
    FAILED = "Failed"
    TERMINATING = "Terminating"


@dataclass(slots=True, frozen=True)
class Active:
    """A version that gets traffic."""

    generation: int
    weight: int
    available: int


@dataclass(slots=True, frozen=True)
class ModelStatus:
    """How a model is.

    Attributes:
        model: key.
        state: Available = all that is wanted is in the route table; Degraded = fewer, and no more are to come;
            ScheduleFailed = nothing of the wanted version fits anywhere; Failed = it cannot be loaded.
        generation: the wanted version (the target).
        wanted: replicas of it.
        available: replicas of it in the route table.
        active: who gets the traffic; another version than the target while a rollout is under way or stuck.
        code: typed reason; empty when all is well.
        reason: for people.
        retriable: whether it may still come right by itself.
        replicas: every one, in order of version and server.
        frozen: by whom and why nothing of it is changed; empty = it is not frozen.
    """

    model: str
    state: ModelState
    generation: int
    wanted: int
    available: int
    active: tuple[Active, ...]
    code: str
    reason: str
    retriable: bool
    replicas: tuple[Replica, ...]
    frozen: str = ""


def model_status(model: Model) -> ModelStatus:
    """Return how a model is."""
    replicas = tuple(sorted(model.replicas.values(), key=lambda r: (r.generation, r.server)))
    available = _available(model, model.generation)
    active = tuple(Active(t.generation, t.weight, _available(model, t.generation)) for t in model.traffic)
    state, code, reason, retriable = _judge(model, available)
    return ModelStatus(
        model.key,
        state,
        model.generation,
        model.wanted,
        available,
        active,
        code,
        reason,
        retriable,
        replicas,
        frozen_because(model),
    )


def frozen_because(model: Model) -> str:
    """Return by whom and why a model is frozen, for people; empty if it is not."""
    if not model.frozen:
        return ""
    return f"frozen by {model.frozen_by}: {model.frozen_reason or 'no reason was given'}"


def _available(model: Model, generation: int) -> int:
    return sum(replica.state is R.AVAILABLE for replica in model.of(generation))


def _judge(model: Model, available: int) -> tuple[ModelState, str, str, bool]:
    if model.deleted:
        return ModelState.TERMINATING, "", f"{len(model.replicas)} replicas are being unloaded", True
    failed = model.target.failed
    in_traffic = model.generation in model.routed()
    if available >= model.wanted and in_traffic:
        waiting = model.target.refused  # what is to replace those on a draining server
        return ModelState.AVAILABLE, code_of(waiting) if waiting else "", waiting.message if waiting else "", True
    if model.frozen:
        serves = any(replica.state is R.AVAILABLE for replica in model.replicas.values())
        return ModelState.DEGRADED if serves else ModelState.FAILED, "FROZEN", frozen_because(model), True
    if failed is not None:
        places = [f"{server}: {why}" for server, why in sorted(model.given_up(model.generation).items())[:PLACES]]
        told = any(failed.message in place for place in places)
        reason = "; ".join(places if told else (failed.message, *places))
        again = [r for r in model.of(model.generation) if r.live and r.position >= model.target.failed_at]
        state = ModelState.DEGRADED if available and in_traffic else ModelState.FAILED
        state = ModelState.PROGRESSING if any(r.state in ON_ITS_WAY for r in again) else state
        return state, failed.code, reason, failed.retriable
    refused = model.target.refused
    if refused is not None:
        # One that is Loaded and not routed is not on its way: it waits for those that do not fit.
        arriving = any(r.live and r.state not in (R.LOADED, R.AVAILABLE) for r in model.of(model.generation))
        state = ModelState.DEGRADED if available and not arriving else ModelState.SCHEDULE_FAILED
        state = ModelState.PROGRESSING if arriving else state
        claim = model.target.claim
        told = ""
        if model.target.reserved:
            told = f"; what becomes free on {claim} is reserved for it"
        elif claim:
            told = f"; replicas of lower priority leave {claim} for it"
        are = "is" if refused.missing == 1 else "are"
        reason = (
            f"{refused.missing} of {model.wanted} replicas {are} missing: {_still_so(model, refused.message)}{told}"
        )
        return state, code_of(refused), reason, True
    troubled = next((r for r in model.of(model.generation) if r.state is R.LOAD_FAILED), None)
    if troubled is not None:
        return (
            ModelState.PROGRESSING,
            troubled.code,
            f"attempt {troubled.attempt} on {troubled.server}: {troubled.reason}",
            True,
        )
    return ModelState.PROGRESSING, "", f"{available} of {model.wanted} replicas are available", True


def _still_so(model: Model, message: str) -> str:
    """Return why a version waits, without the end of it that says that an old one serves if none does any more."""
    serves = any(r.state is R.AVAILABLE and r.generation != model.generation for r in model.replicas.values())
    return message if serves else _SERVES.split(message, maxsplit=1)[0]


def statuses(state: State) -> list[ModelStatus]:
    """Return how every model is, by key."""
    return [model_status(state.models[key]) for key in sorted(state.models)]
