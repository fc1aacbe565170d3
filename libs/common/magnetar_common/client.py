"""Asking Magnetar for something from any service, and hearing from the log what becomes of it.

It needs the base install only. ::

    with Magnetar(source="billing") as magnetar:
        magnetar.deploy(name="iris", storage_uri="s3://models/iris", memory="100Mi").available(timeout=60)

A request carries (source, id). To ask again with the same two changes nothing and finds the first one's answer: that
is how to go on after a time-out, which never says that nothing was stored.
"""

import threading
import time
import uuid
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from magnetar_common.bus import LATEST, Bus, Producer, connect
from magnetar_common.errors import BusUnavailable, LogHole, NotAvailable, RequestRefused, Unanswered
from magnetar_common.log import LogReader, LogRecord, replay, until_position
from magnetar_common.model_folds import fold_model
from magnetar_common.past import recall
from magnetar_common.settings import BusSettings
from magnetar_common.signing import Signer, SigningSettings, signer_of
from magnetar_common.state import Model
from magnetar_common.status import ModelState, model_status
from magnetar_common.topics import MODEL_EVENTS
from magnetar_common.transitions import R
from magnetar_events import MODEL_EVENT, ModelEvent, cloudevents, schemas
from magnetar_events import facts as f
from magnetar_events.entry import BARRIER, Entry
from magnetar_events.models import ModelSpec
from magnetar_events.policy import Policy
from magnetar_events.requests import (
    DRAIN_MS,
    OF_NO_MODEL,
    Actor,
    CordonServer,
    DeleteTenant,
    DeployModel,
    DrainServer,
    FinalizeUpgrade,
    FreezeModel,
    RequestKind,
    ResumeServer,
    RollbackModel,
    ScaleModel,
    SetPolicy,
    SetTenant,
    UndeployModel,
    UnfreezeModel,
)
from magnetar_events.tenants import Tenant

POLL_S = 0.2
"""One read of the log waits for at most this long (seconds), and so does a pause while the broker is away."""


class OutcomeState(StrEnum):
    """How far a request has come; from Progressing to Terminating they are those of a model."""

    SENT = "Sent"
    REJECTED = "Rejected"
    ACCEPTED = "Accepted"
    PROGRESSING = ModelState.PROGRESSING.value
    AVAILABLE = ModelState.AVAILABLE.value
    DEGRADED = ModelState.DEGRADED.value
    SCHEDULE_FAILED = ModelState.SCHEDULE_FAILED.value
    FAILED = ModelState.FAILED.value
    TERMINATING = ModelState.TERMINATING.value
    SUPERSEDED = "Superseded"
    REMOVED = "Removed"


_SETTLED = frozenset(
    {
        OutcomeState.REJECTED,
        OutcomeState.ACCEPTED,
        OutcomeState.AVAILABLE,
        OutcomeState.FAILED,
        OutcomeState.SUPERSEDED,
        OutcomeState.REMOVED,
    }
)


@dataclass(slots=True, frozen=True)
class Outcome:
    """What has become of a request, as far as the log has been read.

    Attributes:
        state: Sent = not answered yet; Accepted = there is nothing more to it (it was about no model); Superseded = a newer
            version is wanted; Removed = the model is gone. ScheduleFailed and Degraded may still come right by themselves.
        generation: the model's that answers it; 0 = none.
        wanted: replicas of that version.
        available: replicas of it in the route table.
        code: typed reason of Rejected, ScheduleFailed, Degraded or Failed.
        field: which field is wrong, for Rejected.
        message: for people.
    """

    state: OutcomeState
    generation: int = 0
    wanted: int = 0
    available: int = 0
    code: str = ""
    field: str = ""
    message: str = ""

    @property
    def settled(self) -> bool:
        """Whether nothing more is to be waited for."""
        return self.state in _SETTLED


class Magnetar:
    """A service's way to ask for models. Safe to use from several threads; each handle is for one.

    Args:
        bus: a connection of the caller's, which stays open; or how to make one (None = as the environment says).
        source: which service asks; stable, for a retry is known by (source, id).
        actor: on whose behalf; one who signs names itself, unless it is a gateway.
        signer: signs the requests; None = as the environment says (:class:`SigningSettings`).

    Raises:
        SigningKeyUnusable: the environment names a key that cannot be used.
    """

    def __init__(
        self,
        bus: Bus | BusSettings | None = None,
        *,
        source: str,
        actor: Actor | None = None,
        signer: Signer | None = None,
    ) -> None:
        self._signer = signer or signer_of(SigningSettings())
        self._owned = bus is None or isinstance(bus, BusSettings)
        self._bus: Bus = connect(bus) if bus is None or isinstance(bus, BusSettings) else bus
        self._source = source
        self._actor = actor or (self._signer.actor if self._signer else Actor())
        self._producer: Producer | None = None
        self._opening = threading.Lock()

    def deploy(
        self,
        spec: ModelSpec | None = None,
        *,
        reason: str = "",
        expected_generation: int | None = None,
        id: str = "",  # noqa: A002 - the field's name
        **fields: Any,
    ) -> "Handle":
        """Want a model, given as a specification or as the fields of one.

        Args:
            spec: what is wanted.
            reason: why, in free text.
            expected_generation: refuse unless this is the model's generation (0 = no such model yet).
            id: of an earlier try of the same request; empty = a new request.
            fields: of :class:`magnetar_events.models.ModelSpec`, instead of ``spec``.

        Raises:
            pydantic.ValidationError: the fields do not make a specification; nothing was sent.
            BusError: not sent. After ``SendTimedOut`` it may have been stored: ask again with the same id.
        """
        model = spec if spec is not None else ModelSpec(**fields)
        return self._ask(DeployModel(model=model), reason, expected_generation, id)

    def undeploy(
        self,
        name: str,
        *,
        tenant: str = "default",
        reason: str = "",
        expected_generation: int | None = None,
        id: str = "",  # noqa: A002 - the field's name
    ) -> "Handle":
        """No longer want a model; arguments and errors as for :meth:`deploy`."""
        return self._ask(UndeployModel(tenant=tenant, name=name), reason, expected_generation, id)

    def scale(
        self,
        name: str,
        replicas: int,
        *,
        tenant: str = "default",
        now: bool = False,
        reason: str = "",
        expected_generation: int | None = None,
        id: str = "",  # noqa: A002 - the field's name
    ) -> "Handle":
        """Want another number of replicas of a model; arguments and errors as for :meth:`deploy`.

        With ``now``, what is on its way out leaves without the grace; requests that it works on may fail.
        """
        wish = ScaleModel(tenant=tenant, name=name, replicas=replicas, now=now)
        return self._ask(wish, reason, expected_generation, id)

    def rollback(
        self,
        name: str,
        to: int,
        *,
        tenant: str = "default",
        spec: ModelSpec | None = None,
        reason: str = "",
        expected_generation: int | None = None,
        id: str = "",  # noqa: A002 - the field's name
    ) -> "Handle":
        """Want an earlier version again, in as many replicas as are wanted now; other arguments and errors as for deploy.

        One that is still there goes on as it is. One of which nothing is left becomes a new version with the same
        specification and the same artifact: if that is no longer the same, it fails (``ARTIFACT_MISMATCH``). What it was
        (:func:`magnetar_common.past.recall`) is looked up in the log, which is read, unless ``spec`` says it.

        Raises:
            LogError: the log cannot be read.
        """
        known = spec or recall(self._bus, f"{tenant}/{name}", to)
        wish = RollbackModel(tenant=tenant, name=name, to=to, model=known)
        return self._ask(wish, reason, expected_generation, id)

    def freeze(self, name: str, *, tenant: str = "default", reason: str = "", id: str = "") -> "Handle":  # noqa: A002
        """Let nothing of a model be changed until it is unfrozen; arguments and errors as for :meth:`deploy`."""
        return self._ask(FreezeModel(tenant=tenant, name=name), reason, None, id)

    def unfreeze(self, name: str, *, tenant: str = "default", reason: str = "", id: str = "") -> "Handle":  # noqa: A002
        """Let a frozen model be changed again; arguments and errors as for :meth:`deploy`."""
        return self._ask(UnfreezeModel(tenant=tenant, name=name), reason, None, id)

    def set_policy(self, policy: Policy, *, reason: str = "", id: str = "") -> "Handle":  # noqa: A002
        """Replace the rules in force; arguments and errors as for :meth:`deploy`."""
        return self._ask(SetPolicy(policy=policy), reason, None, id)

    def finalize_upgrade(self, fold_version: int, *, reason: str = "", id: str = "") -> "Handle":  # noqa: A002
        """Let the log hold what only software of this fold version knows; arguments and errors as for :meth:`deploy`."""
        return self._ask(FinalizeUpgrade(fold_version=fold_version), reason, None, id)

    def drain_server(
        self,
        server: str,
        *,
        deadline_s: float = DRAIN_MS / 1000,
        reason: str = "",
        id: str = "",  # noqa: A002 - the field's name
    ) -> "Handle":
        """Place nothing more on a server, and move what is there: each model is Available elsewhere before it leaves.

        Args:
            server: ``cluster/server/replica``, or without the cluster.
            deadline_s: after so many seconds the log says what could not be moved; it goes on serving.
            reason: as for :meth:`deploy`.
            id: as for :meth:`deploy`.

        Raises:
            as :meth:`deploy`.
        """
        return self._ask(DrainServer(server=server, deadline_ms=round(1000 * deadline_s)), reason, None, id)

    def cordon_server(self, server: str, *, reason: str = "", id: str = "") -> "Handle":  # noqa: A002
        """Place nothing more on a server; what is there stays. Arguments and errors as for :meth:`drain_server`."""
        return self._ask(CordonServer(server=server), reason, None, id)

    def resume_server(self, server: str, *, reason: str = "", id: str = "") -> "Handle":  # noqa: A002
        """Place on a server again, be it cordoned or drained. Arguments and errors as for :meth:`drain_server`."""
        return self._ask(ResumeServer(server=server), reason, None, id)

    def set_tenant(self, tenant: Tenant, *, reason: str = "", id: str = "") -> "Handle":  # noqa: A002
        """Replace a tenant's floor and cap; arguments and errors as for :meth:`deploy`."""
        return self._ask(SetTenant(tenant=tenant), reason, None, id)

    def delete_tenant(self, name: str, *, reason: str = "", id: str = "") -> "Handle":  # noqa: A002
        """Let a tenant have neither floor nor cap; its models stay. Arguments and errors as for :meth:`deploy`."""
        return self._ask(DeleteTenant(name=name), reason, None, id)

    def close(self) -> None:
        """Close what was opened here: handles of a connection of our own, too."""
        if self._producer is not None:
            self._producer.close()
        if self._owned:
            self._bus.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _ask(self, wish: RequestKind, reason: str, expected_generation: int | None, identifier: str) -> "Handle":
        event = ModelEvent(
            id=identifier or str(uuid.uuid4()),
            source=self._source,
            cluster=self._signer.cluster if self._signer else "",
            actor=self._actor,
            reason=reason,
            expected_generation=expected_generation,
            event=wish,
        )
        producer = self._opened()
        reader = LogReader(self._bus, LATEST, name=self._source)  # before the request is sent: its answer comes after
        try:
            payload, properties = MODEL_EVENT.encode(event), cloudevents.of_request(event)
            if self._signer is not None:
                properties = self._signer.sign(payload, properties)
            producer.send(payload, key=wish.subject, properties=properties)
        except BaseException as error:
            reader.close()
            if isinstance(error, BusUnavailable):
                self._drop(producer)  # to open another one may work sooner, and if it does not, it says why
            raise
        return Handle(self._bus, event, reader)

    def _drop(self, producer: Producer) -> None:
        with self._opening:
            if self._producer is producer:
                self._producer = None
        producer.close()

    def _opened(self) -> Producer:
        with self._opening:
            if self._producer is None:
                schema = schemas.schema_json(MODEL_EVENTS.schema)
                self._producer = self._bus.producer(MODEL_EVENTS.name, schema=schema, name=self._source)
            return self._producer


class Handle:
    """One request, followed through the log. For one thread.

    A new version's history begins with its request, and is followed from there. A request that concerns an older one (a
    repeat, an equal specification, another number of replicas) needs what came before: that is replayed once from the
    log, at the cost of reading it.

    Attributes:
        id: of the request; with the source, its name.
        outcome: as far as the log has been read; it moves only while one of the methods is at work.
    """

    def __init__(self, bus: Bus, event: ModelEvent, reader: LogReader) -> None:
        self.id = event.id
        self.outcome = Outcome(OutcomeState.SENT)
        self._bus = bus
        self._name = (event.source, event.id)
        self._subject = event.event.subject
        self._reader = reader
        self._unheard: LogRecord | None = None
        self._position = -1
        self._generation = 0
        self._model: Model | None = None
        self._close = weakref.finalize(self, reader.close)
        self._close.atexit = False  # then the connection is closed with all that is open on it

    def progress(self, timeout: float | None = None) -> Iterator[Outcome]:
        """Yield the outcome as it is and at each change, until it is settled or ``timeout`` seconds are over.

        Raises:
            LogError: the log cannot be followed.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        yield self.outcome
        while not self.outcome.settled:
            wait = POLL_S if deadline is None else min(POLL_S, deadline - time.monotonic())
            if wait <= 0:
                return
            before = self.outcome
            try:
                self._unheard = self._unheard or self._reader.read(wait)
                if self._unheard is not None:
                    self._reader.take(self._unheard, self._hear)
                    self._unheard = None
            except BusUnavailable:  # the broker is away; what was read and not understood is taken up again
                time.sleep(wait)
            if self.outcome != before:
                yield self.outcome
        self.close()

    def wait(self, timeout: float) -> Outcome:
        """Return the outcome once it is settled, or as it is after ``timeout`` seconds: see its ``state``."""
        for _ in self.progress(timeout):
            pass
        return self.outcome

    def accepted(self, timeout: float) -> Outcome:
        """Return the outcome once the request is accepted.

        Raises:
            RequestRefused: it was rejected.
            Unanswered: it was not answered within ``timeout`` seconds.
        """
        for outcome in self.progress(timeout):
            if outcome.state is not OutcomeState.SENT:
                break
        if self.outcome.state is OutcomeState.SENT:
            raise Unanswered(self.id, f"the request about {self._subject} was not answered within {timeout:g} s")
        if self.outcome.state is OutcomeState.REJECTED:
            raise RequestRefused(self.outcome.code, self.outcome.field, self.outcome.message)
        return self.outcome

    def available(self, timeout: float) -> Outcome:
        """Return the outcome once all replicas that are wanted are in the route table.

        Raises:
            RequestRefused: the request was rejected.
            Unanswered: it was not answered within ``timeout`` seconds.
            NotAvailable: the model failed, or is superseded or removed, or is not Available after ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        self.accepted(timeout)
        outcome = self.wait(max(0.0, deadline - time.monotonic()))
        if outcome.state is not OutcomeState.AVAILABLE:
            raise NotAvailable(self._subject, outcome.state, outcome.code, outcome.message)
        return outcome

    def close(self) -> None:
        """Stop following; the outcome stays. Idempotent, and done by itself once it is settled."""
        self._close()

    def _hear(self, record: LogRecord) -> bool:
        """Take up the next entry of the log."""
        entry = record.entry
        if entry.position == BARRIER or entry.position <= self._position:
            return False  # a marker, or a repeat
        if self._position >= 0 and entry.position != self._position + 1:
            raise LogHole(self._position + 1, entry.position, str(record.message_id))
        if self._model is not None:
            self._fold(self._model, entry)
        else:
            for fact in entry.facts:
                if _answers(fact, self._name):
                    self._answered(entry, fact)
        self._position = entry.position
        return True

    def _answered(self, entry: Entry, answer: f.Fact) -> None:
        if isinstance(answer, f.RequestRepeated):
            first: list[f.Fact] = []
            self._model = self._as_of(entry.position, first, answer.position)
            answer = first[0]
        if isinstance(answer, f.RequestRejected):
            self.outcome = Outcome(OutcomeState.REJECTED, code=answer.code, field=answer.field, message=answer.message)
            return
        assert isinstance(answer, f.RequestAccepted)
        self._generation = answer.generation
        if answer.kind in (kind.__name__ for kind in OF_NO_MODEL):
            self.outcome = Outcome(OutcomeState.ACCEPTED)
        elif self._model is not None:
            self._judge(self._model)
        elif _begins(entry, answer):
            self._model = Model(self._subject)
            self._fold(self._model, entry)
        else:
            self._model = self._as_of(entry.position)
            self._judge(self._model)

    def _as_of(self, position: int, answers: list[f.Fact] | None = None, answered: int = BARRIER) -> Model:
        """Replay the log up to a position: return the model there (an empty one if it is gone).

        Args:
            position: the last.
            answers: is given our answer in the entry at ``answered``.
            answered: position of an entry.
        """

        def collect(record: LogRecord) -> None:
            if answers is not None and record.entry.position == answered:
                answers.extend(fact for fact in record.entry.facts if _answers(fact, self._name))

        state = replay(self._bus, until_position(position), collect)
        if state.position < position:
            raise BusUnavailable(f"the log was read up to position {state.position} of {position}")
        return state.models.get(self._subject) or Model(self._subject)

    def _fold(self, model: Model, entry: Entry) -> None:
        """Make an entry's facts so, as far as they concern the model; of older versions nothing need be known."""
        for fact in entry.facts:
            if isinstance(fact, f.ServerLost):
                for replica in model.replicas.values():
                    if replica.server == fact.server:
                        replica.state, replica.code, replica.reason = R.LOST, fact.code, fact.reason
            elif isinstance(fact, f.ServerForgotten):
                for key in [key for key in model.replicas if key[1] == fact.server]:
                    del model.replicas[key]
            elif isinstance(fact, f.ModelRemoved):
                if fact.model == model.key:
                    model.generation, model.deleted = 0, False
            elif getattr(fact, "model", "") == model.key:
                fold_model(model, fact, entry.position, entry.at)
        self._judge(model)

    def _judge(self, model: Model) -> None:
        ours = self._generation
        if model.generation not in (0, ours):
            message = f"version {model.generation} is wanted now"
            self.outcome = Outcome(OutcomeState.SUPERSEDED, ours, message=message)
        elif not model.generation and not model.deleted:
            self.outcome = Outcome(OutcomeState.REMOVED, ours)
        else:
            status = model_status(model)
            state = OutcomeState(status.state.value)
            self.outcome = Outcome(state, ours, status.wanted, status.available, status.code, "", status.reason)


def _answers(fact: f.Fact, name: tuple[str, str]) -> bool:
    """Whether a fact is the answer to the request of this (source, id)."""
    return isinstance(fact, (f.RequestAccepted, f.RequestRejected, f.RequestRepeated)) and name == (
        fact.source,
        fact.request,
    )


def _begins(entry: Entry, answer: f.RequestAccepted) -> bool:
    """Whether all that matters of the model begins with this entry: a version of its own, or the end."""
    beginnings = (fact for fact in entry.facts if isinstance(fact, (f.ModelWanted, f.ModelUndeployed)))
    return any(fact.model == answer.subject and not getattr(fact, "again", False) for fact in beginnings)
