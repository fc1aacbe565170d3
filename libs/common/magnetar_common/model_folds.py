"""What a fact does to one model by itself: versions, replicas, traffic.

``evolve`` uses these on the model in the state, and adds the books and the indexes; ``decide`` uses them on a copy of its
own, to see what becomes of a model before anything is appended. Each returns whether the fact was legal.
"""

from collections.abc import Callable
from typing import Any

from magnetar_common.state import Model, Replica, Version
from magnetar_common.transitions import STATES, R, is_legal
from magnetar_events import facts as f

PREEMPTED = "PREEMPTED"
"""Code of a replica that leaves for a model of higher priority."""


def fold_model(model: Model, fact: Any, position: int, at: int) -> bool:
    """Make a fact about a model so on that model alone; return whether it was legal."""
    return MODEL_FOLDS[type(fact)](model, fact, position, at)


def model_wanted(model: Model, fact: f.ModelWanted, position: int, at: int) -> bool:
    """A version is wanted: the model is there, and that is its target."""
    spec = fact.spec
    model.generation, model.deleted, model.due = fact.generation, False, 0
    known = model.versions.get(fact.generation) if fact.again else None
    if known is not None:
        known.spec, known.wanted, known.position, known.at = spec, spec.replicas, position, at
        known.refused, known.failed, known.places, known.full = None, None, {}, 0
        known.claim, known.preempted = "", False
        return True
    model.versions[fact.generation] = Version(
        fact.generation, spec, position, at, wanted=spec.replicas, digest=spec.artifact_digest
    )
    return True


def _model_scaled(model: Model, fact: f.ModelScaled, position: int, at: int) -> bool:
    version = model.versions.get(model.generation)
    if version is None:
        return False
    version.wanted, version.refused, model.owner = fact.replicas, None, fact.owner
    _drop_claim(version)
    return True


def _model_frozen(model: Model, fact: f.ModelFrozen, position: int, at: int) -> bool:
    model.frozen, model.frozen_by, model.frozen_reason = True, fact.actor, fact.reason
    for version in model.versions.values():
        version.claim = ""
    return True


def _model_unfrozen(model: Model, fact: f.ModelUnfrozen, position: int, at: int) -> bool:
    model.frozen, model.frozen_by, model.frozen_reason = False, "", ""
    return True


def _version_kept(model: Model, fact: f.VersionKept, position: int, at: int) -> bool:
    version = model.versions.get(fact.generation)
    if version is None:
        return False
    version.wanted, version.full, version.refused, version.claim = fact.replicas, fact.full, None, ""
    return True


def _model_undeployed(model: Model, fact: f.ModelUndeployed, position: int, at: int) -> bool:
    model.deleted, model.due = True, fact.due
    return True


def _artifact_pinned(model: Model, fact: f.ArtifactPinned, position: int, at: int) -> bool:
    version = model.versions.get(fact.generation)
    if version is None or version.digest not in ("", fact.digest):
        return False
    version.digest = fact.digest
    return True


def _version_failed(model: Model, fact: f.VersionFailed, position: int, at: int) -> bool:
    version = model.versions.get(fact.generation)
    if version is None:
        return False
    version.failed, version.failed_at, version.refused, version.claim = fact, position, None, ""
    return True


def _version_revived(model: Model, fact: f.VersionRevived, position: int, at: int) -> bool:
    version = model.versions.get(fact.generation)
    if version is None:
        return False
    version.failed = None
    version.places = {}
    return True


def _version_retired(model: Model, fact: f.VersionRetired, position: int, at: int) -> bool:
    if fact.generation == model.generation or any(True for _ in model.of(fact.generation)):
        return False
    return model.versions.pop(fact.generation, None) is not None


def _traffic_changed(model: Model, fact: f.TrafficChanged, position: int, at: int) -> bool:
    model.traffic = fact.targets
    return True


def _replica_placed(model: Model, fact: f.ReplicaPlaced, position: int, at: int) -> bool:
    key = (fact.generation, fact.server)
    if fact.generation not in model.versions or key in model.replicas:
        return False
    model.replicas[key] = Replica(
        fact.model, fact.generation, fact.server, R.LOAD_REQUESTED, position, at, fact.bookings, due=fact.due
    )
    version = model.versions[fact.generation]
    version.claim = ""
    if version.preempted and not model.missing(fact.generation):
        version.preempted = False
    return True


def _replica_adopted(model: Model, fact: f.ReplicaAdopted, position: int, at: int) -> bool:
    key = (fact.generation, fact.server)
    if key in model.replicas:
        return False
    model.replicas[key] = Replica(
        fact.model, fact.generation, fact.server, R.LOADED, position, at, fact.bookings, reason=fact.reason
    )
    return True


def _replica_changed(model: Model, fact: f.ReplicaChanged, position: int, at: int) -> bool:
    replica = model.replicas.get((fact.generation, fact.server))
    after = STATES.get(fact.after)
    if replica is None or after is None or replica.state != fact.before or not is_legal(replica.state, after):
        return False
    if after is R.UNLOADED:
        del model.replicas[fact.generation, fact.server]
        return True
    if fact.code == PREEMPTED and fact.generation in model.versions:
        model.versions[fact.generation].preempted = True
    if after in (R.LOAD_REQUESTED, R.UNLOAD_REQUESTED):
        replica.position = position
    if after is R.LOAD_FAILED and fact.generation in model.versions:
        model.versions[fact.generation].places[fact.server] = f"{fact.code}: {fact.reason}"
    replica.state, replica.since, replica.due = after, at, fact.due
    replica.code, replica.reason, replica.retriable = fact.code, fact.reason, fact.retriable
    replica.attempt = fact.attempt
    return True


def _replica_measured(model: Model, fact: f.ReplicaMeasured, position: int, at: int) -> bool:
    replica = model.replicas.get((fact.generation, fact.server))
    if replica is None:
        return False
    replica.digest, replica.measured, replica.parallel = fact.digest, fact.measured, fact.parallel
    replica.http_port = fact.http_port
    return True


def _size_learnt(model: Model, fact: f.SizeLearnt, position: int, at: int) -> bool:
    version = model.versions.get(fact.generation)
    if version is None:
        return False
    version.learnt = fact.bytes
    return True


def _replica_booked(model: Model, fact: f.ReplicaBooked, position: int, at: int) -> bool:
    replica = model.replicas.get((fact.generation, fact.server))
    if replica is None:
        return False
    replica.bookings = fact.bookings
    return True


def _placement_refused(model: Model, fact: f.PlacementRefused, position: int, at: int) -> bool:
    version = model.versions.get(fact.generation)
    if version is None:
        return False
    version.refused = fact
    _drop_claim(version)
    return True


def _placement_settled(model: Model, fact: f.PlacementSettled, position: int, at: int) -> bool:
    version = model.versions.get(fact.generation)
    if version is None:
        return False
    version.refused, version.claim, version.preempted = None, "", False
    return True


def _replicas_preempted(model: Model, fact: f.ReplicasPreempted, position: int, at: int) -> bool:
    version = model.versions.get(fact.generation)
    if version is None:
        return False
    version.claim, version.claimed_until = fact.server, fact.due
    return True


def _server_reserved(model: Model, fact: f.ServerReserved, position: int, at: int) -> bool:
    version = model.versions.get(fact.generation)
    if version is None or version.refused is None:
        return False
    version.claim, version.claimed_until, version.reservation = fact.server, fact.due, fact
    return True


def _reservation_ended(model: Model, fact: f.ReservationEnded, position: int, at: int) -> bool:
    version = model.versions.get(fact.generation)
    if version is None or not version.reserved:
        return False
    version.claim = ""
    return True


def _drop_claim(version: Version) -> None:
    """Nobody leaves for a version any more; what is reserved for it stays so, for it goes on waiting."""
    if not version.reserved:
        version.claim = ""


MODEL_FOLDS: dict[type, Callable[[Model, Any, int, int], bool]] = {
    f.ModelWanted: model_wanted,
    f.ModelScaled: _model_scaled,
    f.ModelUndeployed: _model_undeployed,
    f.ModelFrozen: _model_frozen,
    f.ModelUnfrozen: _model_unfrozen,
    f.VersionKept: _version_kept,
    f.ArtifactPinned: _artifact_pinned,
    f.VersionFailed: _version_failed,
    f.VersionRevived: _version_revived,
    f.VersionRetired: _version_retired,
    f.TrafficChanged: _traffic_changed,
    f.ReplicaPlaced: _replica_placed,
    f.ReplicaAdopted: _replica_adopted,
    f.ReplicaChanged: _replica_changed,
    f.ReplicaMeasured: _replica_measured,
    f.SizeLearnt: _size_learnt,
    f.ReplicaBooked: _replica_booked,
    f.PlacementRefused: _placement_refused,
    f.PlacementSettled: _placement_settled,
    f.ReplicasPreempted: _replicas_preempted,
    f.ServerReserved: _server_reserved,
    f.ReservationEnded: _reservation_ended,
}
"""Fact about a model → what it does to it."""
