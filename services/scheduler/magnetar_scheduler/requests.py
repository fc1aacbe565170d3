"""Decide on requests: what users and services want."""

from collections.abc import Callable
from typing import Any

from magnetar_common.actors import who
from magnetar_common.amounts import counted
from magnetar_common.state import Model, Server, request_name
from magnetar_common.status import frozen_because
from magnetar_events import facts as f
from magnetar_events import versions
from magnetar_events.commands import COMMAND_KINDS
from magnetar_events.credentials import redacted
from magnetar_events.entry import FOLD_VERSION
from magnetar_events.models import ModelSpec
from magnetar_events.requests import (
    OF_NO_MODEL,
    CordonServer,
    DeleteTenant,
    DeployModel,
    DrainServer,
    FinalizeUpgrade,
    FreezeModel,
    ModelEvent,
    ResumeServer,
    RollbackModel,
    ScaleModel,
    SetPolicy,
    SetTenant,
    UndeployModel,
    UnfreezeModel,
)
from magnetar_scheduler.authorship import Author, author_of, check_may_govern, check_may_set
from magnetar_scheduler.draft import Draft
from magnetar_scheduler.drains import of_request
from magnetar_scheduler.inputs import Rejected, Request
from magnetar_scheduler.leaving import hurry
from magnetar_scheduler.reconcile import reconcile
from magnetar_scheduler.refusal import Refusal
from magnetar_scheduler.rollout import resize, supersede
from magnetar_scheduler.sizes import inherit
from magnetar_scheduler.tenants import check_wish, remove_tenant, set_tenant


def on_request(draft: Draft, source: Request) -> None:
    """Accept or reject a request; a client's retry of one changes nothing. Requests for another cluster are not ours."""
    event = source.event
    if event.cluster not in ("", draft.state.cluster):
        return
    try:
        author = author_of(draft.policy, source)
        earlier = draft.state.requests.get(request_name(event.source, event.id, author.publisher))
        if earlier is not None:
            draft.emit(f.RequestRepeated(event.id, event.source, earlier[0]))
            return
        _check_generation(draft, event)
        _ON[type(event.event)](draft, event, author, event.event)
    except Refusal as refusal:
        kind, subject = type(event.event).__name__, event.event.subject
        draft.emit(
            f.RequestRejected(
                event.id,
                event.source,
                kind,
                subject,
                refusal.code,
                refusal.field,
                refusal.message,
                source.publisher,
            )
        )
    _hold_back(draft, event)


def _hold_back(draft: Draft, event: ModelEvent) -> None:
    """Reject what the log cannot hold before the upgrade to this software is finalized: it would be lost in part."""
    in_force = draft.state.version
    needed = versions.needed(draft.facts, in_force)
    if needed <= in_force or isinstance(event.event, FinalizeUpgrade):
        return
    message = f"the log is of fold version {in_force}, this needs {needed}: run magnetar upgrade finalize"
    draft.facts.clear()
    kind, subject = type(event.event).__name__, event.event.subject
    draft.emit(f.RequestRejected(event.id, event.source, kind, subject, "UPGRADE_NOT_FINALIZED", "event", message))


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
    if event.expected_generation is None or isinstance(event.event, OF_NO_MODEL):
        return
    model = draft.state.models.get(event.event.subject)
    current = model.generation if model is not None and not model.deleted else 0
    if event.expected_generation != current:
        raise Refusal(
            "GENERATION_CONFLICT", "expectedGeneration", f"expected {event.expected_generation}, and it is {current}"
        )


def _accept(draft: Draft, event: ModelEvent, author: Author, generation: int) -> None:
    draft.emit(
        f.RequestAccepted(
            event.id,
            event.source,
            type(event.event).__name__,
            event.event.subject,
            generation,
            author.actor,
            author.authtype,
            author.authverified,
            event.reason,
            author.publisher,
        )
    )


def _deploy(draft: Draft, event: ModelEvent, author: Author, wish: DeployModel) -> None:
    spec, key = wish.model, wish.model.key
    model = draft.model(key)
    _check_thawed(model)
    same = model is not None and not model.deleted and _same_version(model.target.spec, spec)
    check_wish(draft, key, spec, spec.replicas, model.target.size if model is not None and same else 0)
    if model is not None and same:
        _accept(draft, event, author, model.generation)
        if model.wanted != spec.replicas:
            draft.emit(f.ModelScaled(key, spec.replicas, event.field_owner))
            resize(draft, model)
        if model.target.failed is not None:
            draft.emit(f.VersionRevived(key, model.generation, "wanted again"))
    else:
        _new_version(draft, event, author, spec)
    reconcile(draft, key)


def _new_version(draft: Draft, event: ModelEvent, author: Author, spec: ModelSpec, *, rollback_of: int = 0) -> None:
    key, model = spec.key, draft.model(spec.key)
    if model is None and len(draft.state.models) >= draft.policy.max_models:
        limit = f"there are {len(draft.state.models)} models, and the policy's maxModels is {draft.policy.max_models}"
        raise Refusal("TOO_MANY_MODELS", "event.model.name", limit)
    generation = _last(draft, key) + 1
    _accept(draft, event, author, generation)
    if model is not None:
        supersede(draft, model)
    draft.emit(f.ModelWanted(key, generation, spec, rollback_of=rollback_of))
    inherit(draft, key)


def _last(draft: Draft, key: str) -> int:
    """Return the last generation that a model has had."""
    return draft.state.generations.get(key, draft.state.floor)


def _same_version(old: ModelSpec, new: ModelSpec) -> bool:
    """Whether two specifications differ at most in the number of replicas."""
    return old == new or old.model_copy(update={"replicas": new.replicas}) == new


def _known(draft: Draft, key: str) -> Model:
    model = draft.model(key)
    if model is None or model.deleted:
        raise Refusal("NOT_FOUND", "event.name", f"there is no model {key}")
    return model


def _thawed(draft: Draft, key: str) -> Model:
    model = _known(draft, key)
    _check_thawed(model)
    return model


def _check_thawed(model: Model | None) -> None:
    if model is not None and model.frozen:
        raise Refusal("FROZEN", "event.name", f"{model.key} is {frozen_because(model)}")


def _undeploy(draft: Draft, event: ModelEvent, author: Author, wish: UndeployModel) -> None:
    model = _thawed(draft, wish.subject)
    _accept(draft, event, author, model.generation)
    draft.emit(f.ModelUndeployed(model.key, draft.at + draft.policy.delete_deadline_ms))
    reconcile(draft, model.key)


def _scale(draft: Draft, event: ModelEvent, author: Author, wish: ScaleModel) -> None:
    model = _thawed(draft, wish.subject)
    spec = model.target.spec
    if wish.replicas < spec.min_replicas or (spec.max_replicas and wish.replicas > spec.max_replicas):
        limits = f"{spec.min_replicas} to {spec.max_replicas or 'any'}"
        raise Refusal("OUT_OF_RANGE", "event.replicas", f"{wish.replicas} is outside the model's limits, {limits}")
    check_wish(draft, model.key, spec, wish.replicas, model.target.size)
    _accept(draft, event, author, model.generation)
    if wish.replicas != model.wanted:
        draft.emit(f.ModelScaled(model.key, wish.replicas, event.field_owner))
    resize(draft, model)
    if model.target.failed is not None and model.routed() <= {model.generation}:
        draft.emit(f.VersionRevived(model.key, model.generation, "scaled"))
    reconcile(draft, model.key, "scaled")
    if wish.now:
        hurry(draft, model, "scaled in now")


def _rollback(draft: Draft, event: ModelEvent, author: Author, wish: RollbackModel) -> None:
    key, last = wish.subject, _last(draft, wish.subject)
    model = draft.model(key)
    _check_thawed(model)
    if wish.to > last or (model is None and key not in draft.state.generations):
        there = f"its last is {last}" if key in draft.state.generations else "there was no such model"
        raise Refusal("NOT_FOUND", "event.to", f"there was no version {wish.to} of {key}: {there}")
    alive = model if model is not None and not model.deleted else None
    version = alive.versions.get(wish.to) if alive else None
    if alive is not None and version is not None:
        spec = _as_many(version.spec, alive.wanted)  # as wanted now, before what is half rolled out is cut down
        if wish.to != alive.generation:
            check_wish(draft, key, spec, spec.replicas, version.size)
        _accept(draft, event, author, wish.to)
        if wish.to != alive.generation:
            supersede(draft, alive)
            draft.emit(f.ModelWanted(key, wish.to, spec, again=True))
        elif version.failed is not None:
            draft.emit(f.VersionRevived(key, wish.to, "wanted again"))
    elif wish.model is None:
        message = (
            f"nothing of version {wish.to} is left: its specification and digest, which the log has, must come along"
        )
        raise Refusal("VERSION_RETIRED", "event.model", message)
    else:
        spec = _as_many(wish.model, alive.wanted) if alive else wish.model
        check_wish(draft, key, spec, spec.replicas)
        _new_version(draft, event, author, spec, rollback_of=wish.to)
    reconcile(draft, key, f"rolled back to version {wish.to}")


def _as_many(spec: ModelSpec, replicas: int) -> ModelSpec:
    """Return a specification that wants so many replicas, as far as its own limits let it."""
    most = spec.max_replicas or replicas
    return spec.model_copy(update={"replicas": min(max(replicas, spec.min_replicas), most)})


def _freeze(draft: Draft, event: ModelEvent, author: Author, wish: FreezeModel) -> None:
    model = _known(draft, wish.subject)
    _accept(draft, event, author, model.generation)
    by = who(author.actor, author.authtype, author.authverified, author.publisher)
    if not model.frozen or (event.reason and (model.frozen_by, model.frozen_reason) != (by, event.reason)):
        draft.emit(f.ModelFrozen(model.key, by, event.reason))


def _unfreeze(draft: Draft, event: ModelEvent, author: Author, wish: UnfreezeModel) -> None:
    model = _known(draft, wish.subject)
    _accept(draft, event, author, model.generation)
    if model.frozen:
        draft.emit(f.ModelUnfrozen(model.key))
        reconcile(draft, model.key, "unfrozen")


def _set_policy(draft: Draft, event: ModelEvent, author: Author, wish: SetPolicy) -> None:
    check_may_set(draft.policy, wish.policy, author.publisher)
    _accept(draft, event, author, 0)
    draft.emit(f.PolicySet(wish.policy))


def _finalize(draft: Draft, event: ModelEvent, author: Author, wish: FinalizeUpgrade) -> None:
    check_may_govern(draft.policy, author.publisher)
    in_force = draft.state.version
    if wish.fold_version > FOLD_VERSION:
        raise Refusal(
            "SOFTWARE_TOO_OLD",
            "event.foldVersion",
            f"the leading scheduler knows fold version {FOLD_VERSION}, not {wish.fold_version}: upgrade it first",
        )
    if wish.fold_version < in_force:
        raise Refusal(
            "OUT_OF_RANGE", "event.foldVersion", f"the log is of fold version {in_force}; there is no way back"
        )
    older = sorted(server.key for server in draft.state.servers.values() if not server.lost and _lacks(server))
    if older:
        raise Refusal(
            "AGENTS_TOO_OLD",
            "event.foldVersion",
            f"upgrade {counted(len(older), 'agent')} first: {', '.join(older[:10])}",
        )
    _accept(draft, event, author, 0)
    if wish.fold_version > in_force:
        draft.emit(f.UpgradeFinalized(wish.fold_version))


def _server(draft: Draft, event: ModelEvent, author: Author, wish: CordonServer | DrainServer | ResumeServer) -> None:
    check_may_govern(draft.policy, author.publisher, "cordon, drain or resume a server")
    facts = of_request(draft, wish, event.reason)
    _accept(draft, event, author, 0)
    for fact in facts:
        draft.emit(fact)


def _set_tenant(draft: Draft, event: ModelEvent, author: Author, wish: SetTenant) -> None:
    check_may_govern(draft.policy, author.publisher, "set tenants")
    fact = set_tenant(draft, wish)
    _accept(draft, event, author, 0)
    if fact is not None:
        draft.emit(fact)


def _delete_tenant(draft: Draft, event: ModelEvent, author: Author, wish: DeleteTenant) -> None:
    check_may_govern(draft.policy, author.publisher, "delete tenants")
    fact = remove_tenant(draft, wish)
    _accept(draft, event, author, 0)
    draft.emit(fact)


def _lacks(server: Server) -> bool:
    """Whether an agent has said which kinds of command it knows, and one that we send is not among them."""
    return bool(server.info.commands) and not set(COMMAND_KINDS) <= set(server.info.commands)


_ON: dict[type, Callable[[Draft, ModelEvent, Author, Any], None]] = {
    DeployModel: _deploy,
    UndeployModel: _undeploy,
    ScaleModel: _scale,
    RollbackModel: _rollback,
    FreezeModel: _freeze,
    UnfreezeModel: _unfreeze,
    SetPolicy: _set_policy,
    FinalizeUpgrade: _finalize,
    CordonServer: _server,
    DrainServer: _server,
    ResumeServer: _server,
    SetTenant: _set_tenant,
    DeleteTenant: _delete_tenant,
}
