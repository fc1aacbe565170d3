"""A model that depends on another (``base``) and failed for a retriable reason is tried again once that one serves.

It may have failed for nothing else: both were rescheduled together, and the base took longer.
"""

from collections.abc import Iterator

from magnetar_common.state import ReplicaKey
from magnetar_common.transitions import R
from magnetar_events import facts as f
from magnetar_events.models import ModelSpec
from magnetar_scheduler.draft import Draft


def revive_dependants(draft: Draft) -> None:
    """Revive what failed before this decision made its base Available, or in it, by a load from before its base was.

    What is revived is unsettled, and placed with the next piece of what is pending.
    """
    served = {fact.model for fact in _changes(draft, R.AVAILABLE)}
    failed = draft.state.failed if served else ()
    again = [key for key in failed if base_of(draft.state.models[key].target.spec) in served]
    again += [fact.model for fact in draft.facts if isinstance(fact, f.VersionFailed) and _too_early(draft, fact)]
    for key in again:
        model = draft.model(key)
        if draft.full:
            return
        if model is not None and model.target.failed is not None:
            base = base_of(model.target.spec)
            draft.emit(f.VersionRevived(key, model.generation, f"its base {base} serves"))


def base_of(spec: ModelSpec) -> str:
    """Return the key of the model that one depends on, or an empty string."""
    return f"{spec.tenant}/{spec.base}" if spec.base else ""


def _too_early(draft: Draft, failed: f.VersionFailed) -> bool:
    """Whether a wanted version failed by a load that may have begun before its base served, which it does by now."""
    model = draft.model(failed.model)
    if not failed.retriable or model is None or failed.generation != model.generation or not model.target.spec.base:
        return False
    base = draft.seen(base_of(model.target.spec))
    since = (each.since for each in base.replicas.values() if each.state is R.AVAILABLE) if base is not None else ()
    keys = (ReplicaKey(each.model, each.generation, each.server) for each in _changes(draft, R.LOAD_FAILED))
    loads = (draft.state.replica(key) for key in keys if key[:2] == (failed.model, failed.generation))
    began = min((load.since for load in loads if load is not None), default=draft.at + 1)
    return max(since, default=-1) >= began


def _changes(draft: Draft, after: R) -> Iterator[f.ReplicaChanged]:
    return (fact for fact in draft.facts if isinstance(fact, f.ReplicaChanged) and fact.after == after)
