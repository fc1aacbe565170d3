"""Decide on requests: what users and services want."""

from collections.abc import Callable
from typing import Any

from magnetar_common.state import Model
from magnetar_events import facts as f
from magnetar_events.credentials import redacted
from magnetar_events.models import ModelSpec
from magnetar_events.requests import DeployModel, ModelEvent, ScaleModel, SetPolicy, UndeployModel
from magnetar_scheduler.draft import Draft
from magnetar_scheduler.inputs import Rejected, Request
from magnetar_scheduler.reconcile import reconcile


class _Refusal(Exception):
    def __init__(self, code: str, field: str, message: str) -> None:
        super().__init__(message)
        self.code, self.field, self.message = code, field, message


def on_request(draft: Draft, source: Request) -> None:
    """Accept or reject a request; a client's retry of one changes nothing. Requests for another cluster are not ours."""
    event = source.event
    if event.cluster not in ("", draft.state.cluster):
        return
    earlier = draft.state.requests.get((event.source, event.id))
    if earlier is not None:
        draft.emit(f.RequestRepeated(event.id, event.source, earlier[0]))
        return
    try:
        _check_generation(draft, event)
        _ON[type(event.event)](draft, event, event.event)
    except _Refusal as refusal:
        kind, subject = type(event.event).__name__, event.event.subject
        draft.emit(
            f.RequestRejected(event.id, event.source, kind, subject, refusal.code, refusal.field, refusal.message)
        )


def on_rejected(draft: Draft, source: Rejected) -> None:
    """Record bytes that are not a valid message."""
    error = source.error
    request, origin = error.envelope.get("id", ""), error.envelope.get("source", "")
    draft.emit(
        f.RequestRejected(
            _short(request),
            _short(origin),
            error.kind[:64],
            source.topic,
            error.code,
            redacted(error.field)[:256],  # a label's name is part of it
            redacted(error.message)[:512],
        )
    )


def _short(value: object) -> str:
    return redacted(value) if isinstance(value, str) and len(value) <= 256 and value.isprintable() else ""


def _check_generation(draft: Draft, event: ModelEvent) -> None:
    if event.expected_generation is None or isinstance(event.event, SetPolicy):
        return
    model = draft.state.models.get(event.event.subject)
    current = model.generation if model is not None and not model.deleted else 0
    if event.expected_generation != current:
        raise _Refusal(
            "GENERATION_CONFLICT", "expectedGeneration", f"expected {event.expected_generation}, and it is {current}"
        )


def _accept(draft: Draft, event: ModelEvent, generation: int) -> None:
    actor = event.actor
    draft.emit(
        f.RequestAccepted(
            event.id,
            event.source,
            type(event.event).__name__,
            event.event.subject,
            generation,
            actor.authid,
            actor.authtype,
            "none",  # nothing is verified yet, whatever the message claims
            event.reason,
        )
    )


def _deploy(draft: Draft, event: ModelEvent, wish: DeployModel) -> None:
    spec, key = wish.model, wish.model.key
    model = draft.state.models.get(key)
    if model is not None and not model.deleted and _same_version(model.target.spec, spec):
        _accept(draft, event, model.generation)
        if model.wanted != spec.replicas:
            draft.emit(f.ModelScaled(key, spec.replicas, event.field_owner))
        if model.target.failed is not None:
            draft.emit(f.VersionRevived(key, model.generation, "wanted again"))
    else:
        generation = draft.state.generations.get(key, 0) + 1
        _accept(draft, event, generation)
        draft.emit(f.ModelWanted(key, generation, spec))
    reconcile(draft, key)


def _same_version(old: ModelSpec, new: ModelSpec) -> bool:
    """Whether two specifications differ at most in the number of replicas."""
    return old == new or old.model_copy(update={"replicas": new.replicas}) == new


def _known(draft: Draft, key: str) -> Model:
    model = draft.state.models.get(key)
    if model is None or model.deleted:
        raise _Refusal("NOT_FOUND", "event.name", f"there is no model {key}")
    return model


def _undeploy(draft: Draft, event: ModelEvent, wish: UndeployModel) -> None:
    model = _known(draft, wish.subject)
    _accept(draft, event, model.generation)
    draft.emit(f.ModelUndeployed(model.key, draft.at + draft.policy.delete_deadline_ms))
    reconcile(draft, model.key)


def _scale(draft: Draft, event: ModelEvent, wish: ScaleModel) -> None:
    model = _known(draft, wish.subject)
    spec = model.target.spec
    if wish.replicas < spec.min_replicas or (spec.max_replicas and wish.replicas > spec.max_replicas):
        limits = f"{spec.min_replicas} to {spec.max_replicas or 'any'}"
        raise _Refusal("OUT_OF_RANGE", "event.replicas", f"{wish.replicas} is outside the model's limits, {limits}")
    _accept(draft, event, model.generation)
    if wish.replicas != model.wanted:
        draft.emit(f.ModelScaled(model.key, wish.replicas, event.field_owner))
        reconcile(draft, model.key, "scaled")


def _set_policy(draft: Draft, event: ModelEvent, wish: SetPolicy) -> None:
    _accept(draft, event, 0)
    draft.emit(f.PolicySet(wish.policy))


_ON: dict[type, Callable[[Draft, ModelEvent, Any], None]] = {
    DeployModel: _deploy,
    UndeployModel: _undeploy,
    ScaleModel: _scale,
    SetPolicy: _set_policy,
}
