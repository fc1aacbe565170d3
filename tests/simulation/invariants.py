"""What must hold after each step, and what must hold in the end; each has a name, by which a failing seed reports it.

The checker folds the log by itself, as it is stored, and compares with it whatever it hears: commands when they are sent
and obeyed, routes when they are stored, loads when the agents begin them.
"""

import re
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from typing import Any, ClassVar

from magnetar_agent.agent import Agent
from magnetar_agent.ledger import Verdict
from magnetar_agent.operations import Operations
from magnetar_common.bus.base import Message, MessageId
from magnetar_common.evolve import fold
from magnetar_common.lifecycle import Lifecycle
from magnetar_common.registrar import Registrar
from magnetar_common.routing import content, route_of
from magnetar_common.state import State
from magnetar_common.topics import COMMANDS, MODEL_EVENTS, ROUTES, SERVICE_REGISTRY, STATE_CHANGES
from magnetar_common.transitions import R
from magnetar_events import AGENT_EVENT, COMMAND, ENTRY, ROUTE, SERVICE_RECORD, Command, Route
from magnetar_events import facts as f
from magnetar_events.codec import FINGERPRINT
from magnetar_events.commands import UnloadModel
from magnetar_events.entry import BARRIER, Entry
from magnetar_events.models import served_name
from magnetar_events.requests import DeployModel, RollbackModel, UndeployModel
from magnetar_projector.projector import Projector
from magnetar_scheduler.leader import Leader
from tests.simulation.cluster import Cluster
from tests.simulation.endpoints import Sending, SimProducer
from tests.simulation.runtime import Process

MARGIN_S = 20.0
"""How long after a trouble of its own an agent may still be silent without anybody being wrong (seconds): a send that
timed out (10), a wait before the next try (4), and reconnecting (6)."""

_CHANGES = (
    f.ModelWanted,
    f.ModelScaled,
    f.ModelUndeployed,
    f.ModelRemoved,
    f.TrafficChanged,
    f.VersionKept,
    f.VersionRetired,
    f.ReplicaPlaced,
)
"""What nobody decides of a frozen model."""

DELAY_S = 40.0
"""A heartbeat is under way for less than this (seconds), whatever the adversary does."""

UNHEARD_S = 6.0
"""Whoever declares a server lost has heard all that was stored up to so long before (seconds): two probes' patience."""


DRAINS = "its server is draining"
"""Why a replica leaves a server that drains."""


class Violated(Exception):
    """An invariant does not hold.

    Attributes:
        name: of the invariant.
    """

    def __init__(self, name: str, message: str) -> None:
        super().__init__(name, message)  # both, or another process could not pass it on
        self.name = name

    def __str__(self) -> str:
        return ": ".join(self.args)


class Checker:
    """Checks one run.

    Attributes:
        state: the log as stored so far, folded.
        leaders: process → its leader.
        projectors: process → its projector.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.hub = cluster.hub
        self.state = State()
        self.leaders: dict[Process, Leader] = {}
        self.projectors: dict[Process, Projector] = {}
        self.routes: dict[str, Route] = {}
        self._ids: list[str] = []
        self._terms: list[int] = []
        self._writers: dict[int, str] = {}
        self.requests: Counter[tuple[str, str]] = Counter()
        self.wanted: set[str] = set()
        self._next_request = 0
        self._last_report = MessageId(-1, -1)
        self._seen_terms: dict[int, int] = {}
        self._begun: set[tuple[int, str, int, int, str]] = set()
        self._changed: dict[str, int] = {}
        self._lost_at: dict[str, float] = {}
        self._heard: dict[str, float] = {}
        cluster.broker.on_stored.append(self._stored)
        cluster.broker.on_sent.append(self._sent)

    def fail(self, name: str, message: str) -> None:
        """Take note that an invariant is broken; the first one ends the run."""
        self.hub.failure = self.hub.failure or Violated(name, message)

    # --- where it listens -----------------------------------------------------------------------------------------------

    def spies(self) -> dict[tuple[Any, str], Callable[[Any], Any]]:
        """Return what is to be put around production methods."""
        return {
            (Lifecycle, "__init__"): self._on_lifecycle,
            (Leader, "start"): self._on_lead,
            (Projector, "run"): self._on_project,
            (Registrar, "leave"): self._on_leave,
            (Agent, "obey"): self._on_obey,
            (Operations, "load"): self._on_operation,
            (Operations, "unload"): self._on_operation,
        }

    def _here(self) -> Process:
        assert self.hub.task is not None
        return self.hub.task.process

    def _on_lifecycle(self, original: Any) -> Any:
        def init(life: Lifecycle) -> None:
            original(life)
            service = self.cluster.service_of(self._here())
            if service is not None:
                service.life = life

        return init

    def _on_lead(self, original: Any) -> Any:
        def start(leader: Leader) -> None:
            self.leaders[self._here()] = leader
            original(leader)

        return start

    def _on_project(self, original: Any) -> Any:
        def run(projector: Projector, stopping: Any) -> None:
            self.projectors[self._here()] = projector
            original(projector, stopping)

        return run

    def _on_leave(self, original: Any) -> Any:
        def leave(registrar: Registrar, timeout: float = 5.0) -> bool:
            self._here().said_goodbye = True
            return original(registrar, timeout)

        return leave

    def _on_obey(self, original: Any) -> Any:
        def obey(agent: Agent, command: Any) -> Verdict:
            newest = self._seen_terms.get(id(agent), 0)
            verdict = original(agent, command)
            mine = command.incarnation == agent._info.incarnation
            if mine:
                self._seen_terms[id(agent)] = max(newest, command.term)
            if mine and command.term < newest and verdict is not Verdict.OLD_TERM:
                self.fail(
                    "a command of an older term is refused",
                    f"{self._here().name}: {verdict.name} to {command.command} of term {command.term}, having seen {newest}",
                )
            if verdict is Verdict.OBEY and isinstance(command.command, UnloadModel):
                self._unload(command)
            if verdict is Verdict.OBEY and not mine:
                self.fail("no command for another life is obeyed", f"{self._here().name} obeys {command}")
            return verdict

        return obey

    def _on_operation(self, original: Any) -> Any:
        def operate(operations: Operations, wanted: Any, position: int, **more: Any) -> Any:
            act = (id(operations), wanted.model, wanted.generation, position, type(wanted).__name__)
            if act in self._begun:
                self.fail("an agent acts once on a command", f"{self._here().name} acts again on {act[1:]}")
            self._begun.add(act)
            answer = original(operations, wanted, position, **more)
            if re.search(r"Error at \w+\.py:\d+$", getattr(answer, "message", "")):
                self.fail("an operation fails for a reason of its own", f"{self._here().name}: {answer.message}")
            return answer

        return operate

    def _sent(self, producer: SimProducer, sending: Sending) -> None:
        if producer.topic.startswith(COMMANDS.name):
            command = COMMAND.decode(sending.payload, sending.properties.get(FINGERPRINT, ""))
            if command.position > self.state.position:
                self.fail(
                    "a command is of a stored decision",
                    f"{type(command.command).__name__} of position {command.position} is sent by "
                    f"{producer.bus.process.name}, and the log is stored up to {self.state.position}",
                )

    def _stored(self, message: Message, producer: SimProducer) -> None:
        if message.topic == STATE_CHANGES.name:
            entry = ENTRY.decode_trusted(message.payload, message.properties.get(FINGERPRINT, ""))
            if entry.position != BARRIER:
                self._entry(entry, producer.bus.process.name)
        elif message.topic == ROUTES.name:
            self._route(message)
        elif message.topic == SERVICE_REGISTRY.name and message.payload:
            self._heard[_digest(message.payload)] = self.hub.now

    # --- the log --------------------------------------------------------------------------------------------------------

    def _entry(self, entry: Entry, writer: str) -> None:
        state = self.state
        where = f"position {entry.position} of term {entry.term} by {writer}"
        if entry.position <= state.position:
            if self._ids[entry.position] != entry.id:
                self.fail("the log never forks", f"{where}: it was {self._ids[entry.position]}, and now {entry.id}")
            return
        if entry.position != state.position + 1:
            self.fail("the log has no hole", f"{where}, after {state.position}")
            return
        if entry.term < state.term:
            self.fail("terms never go back", f"{where}, after term {state.term}")
        if self._writers.setdefault(entry.term, writer) != writer:
            self.fail("one writer a term", f"{where}: {self._writers[entry.term]} wrote it before")
        if entry.at < state.at or entry.wall < state.wall:
            self.fail(
                "time never goes back", f"{where}: at {entry.at} after {state.at}, {entry.wall} after {state.wall}"
            )
        self._input(entry, where)
        self._frozen(entry, where)
        for fact in entry.facts:
            check = self._FACTS.get(type(fact))
            if check is not None:
                check(self, fact, where)
        self._placed(entry, where)
        fold(state, entry)
        self._relieved(entry, where)
        self._ids.append(entry.id)
        self._terms.append(entry.term)
        if state.illegal:
            self.fail("no fact is illegal", f"{where}: {entry.facts}")
        for fact in entry.facts:
            if isinstance(fact, f.ReplicaPlaced):
                self._booked(fact, where)
                self._within_quota(fact, where)
            for model in self._touches(fact):
                self._changed[model] = entry.position
            if isinstance(fact, (f.ReplicaChanged, f.ReplicaAdopted)):
                self._alive(fact, where)
        self.folded()

    def _alive(self, fact: f.ReplicaChanged | f.ReplicaAdopted, where: str) -> None:
        server, model = self.state.servers.get(fact.server), self.state.models.get(fact.model)
        replica = model.replicas.get((fact.generation, fact.server)) if model else None
        if server is not None and server.lost and replica is not None and replica.state in (R.LOADED, R.AVAILABLE):
            self.fail("what a lost server holds is lost", f"{where}: {fact}")

    def _placed(self, entry: Entry, where: str) -> None:
        closed = {fact.server for fact in entry.facts if isinstance(fact, (f.ServerCordoned, f.ServerDraining))}
        for fact in entry.facts:
            if isinstance(fact, f.ReplicaPlaced) or (isinstance(fact, f.ReplicaChanged) and _again(fact)):
                server = self.state.servers.get(fact.server)
                if fact.server in closed or (server is not None and server.closed):
                    self.fail("nothing is placed on a closed server", f"{where}: {fact}")

    def _relieved(self, entry: Entry, where: str) -> None:
        for fact in entry.facts:
            if isinstance(fact, f.ReplicaChanged) and fact.before == R.AVAILABLE and fact.reason == DRAINS:
                model = self.state.models.get(fact.model)
                version = model.versions.get(fact.generation) if model else None
                serving = sum(r.state is R.AVAILABLE for r in model.of(fact.generation)) if model else 0
                if version is not None and serving < version.wanted:
                    self.fail(
                        "a drain takes nothing away before it is elsewhere",
                        f"{where}: {fact.model} v{fact.generation} leaves {fact.server}; {serving} of {version.wanted}",
                    )

    def _frozen(self, entry: Entry, where: str) -> None:
        thawed = {fact.model for fact in entry.facts if isinstance(fact, f.ModelUnfrozen)}
        for fact in entry.facts:
            model = self.state.models.get(fact.model) if isinstance(fact, _CHANGES) else None
            if model is not None and model.frozen and model.key not in thawed:
                self.fail("a frozen model is left alone", f"{where}: {fact}")

    def _touches(self, fact: f.Fact) -> list[str]:
        if isinstance(fact, (f.ServerJoined, f.ServerReturned, f.ServerUpdated, f.ServerLost)):
            server = self.state.servers.get(fact.server)
            return [model for model, _ in server.replicas] if server else []
        model = getattr(fact, "model", "")
        return [model] if model else []

    def _input(self, entry: Entry, where: str) -> None:
        source, topics = entry.input, self.cluster.broker.topics
        if source.topic == "model-events":
            messages = topics[MODEL_EVENTS.name].messages
            expected = str(messages[self._next_request].id) if self._next_request < len(messages) else "none"
            if source.message_id != expected:
                self.fail("each input is handled once", f"{where}: handles {source.message_id}, next is {expected}")
                return
            self._next_request += 1
        handled = entry.handled.get("model-events", "")
        last = str(topics[MODEL_EVENTS.name].messages[self._next_request - 1].id) if self._next_request else ""
        if handled != last:
            self.fail("handled is what was decided", f"{where}: says {handled}, decided up to {last}")
        report = entry.handled.get("agent-events", "")
        place = MessageId.parse(report) if report else MessageId(-1, -1)
        if place < self._last_report or (source.topic == "agent-events" and source.message_id != report):
            self.fail("each input is handled once", f"{where}: report {source.message_id}, handled {report}")
        if source.topic == "agent-events":
            if place == self._last_report:
                self.fail("each input is handled once", f"{where}: report {place} again")
            if source.data is not None:
                self._report(entry, source.data, source.schema, where)
        self._last_report = place

    def _report(self, entry: Entry, data: bytes, schema: str, where: str) -> None:
        if all(isinstance(fact, f.ReportIgnored) for fact in entry.facts):
            return
        event = AGENT_EVENT.decode(data, schema)
        report: Any = event.report
        server = self.state.servers.get(event.server_key)
        if server is None or server.incarnation != event.incarnation:
            self.fail("only the current life of an agent is heard", f"{where}: {event.server_key} {event.incarnation}")
        elif hasattr(report, "generation"):
            model = self.state.models.get(report.model)
            replica = model.replicas.get((report.generation, event.server_key)) if model else None
            if replica is None or replica.position != report.position:
                newest = replica.position if replica else "none"
                self.fail("a report answers the newest command", f"{where}: answers {report.position}, newest {newest}")

    # --- facts ----------------------------------------------------------------------------------------------------------

    def _booked(self, fact: f.ReplicaPlaced, where: str) -> None:
        server = self.state.servers[fact.server]
        for booking in fact.bookings:
            device = server.devices.get(booking.device)
            total = device.total if device else 0
            promised = total * (100 + server.info.over_commit_percent) // 100
            booked = self.state.booked.get((server.info.host, booking.device), 0)
            if booked > promised:
                self.fail(
                    "memory is never over-booked",
                    f"{where}: {booked} of {promised} on {server.info.host}/{booking.device}",
                )

    def _within_quota(self, fact: f.ReplicaPlaced, where: str) -> None:
        """Count anew what a tenant has that something was placed for; in the entry of a placement nothing is lowered."""
        name = fact.model.partition("/")[0]
        tenant = self.state.tenants.get(name)
        mine = (model for key, model in self.state.models.items() if key.partition("/")[0] == name)
        there = [r for model in mine for r in model.replicas.values() if r.state is not R.LOST]
        size = sum(booking.bytes for replica in there for booking in replica.bookings)
        if (len(there), size) != self.state.quotas.use(name):
            self.fail("the books of the tenants are right", f"{where}: {len(there)}, {size} of {name}")
        if tenant is not None and (0 < tenant.cap_replicas < len(there) or 0 < tenant.cap_bytes < size):
            self.fail("no placement passes a cap", f"{where}: {len(there)} replicas, {size} bytes; {tenant}")

    def _request(self, fact: f.RequestAccepted | f.RequestRejected, where: str) -> None:
        if isinstance(fact, f.RequestRejected) and fact.code == "DEFECT":
            self.fail("decide never fails", f"{where}: {fact.message}")
        if fact.request:
            self.requests[fact.source, fact.request] += 1
            if self.requests[fact.source, fact.request] > 1:
                self.fail("each request is handled once", f"{where}: {fact.kind} {fact.request} of {fact.source}")
        if isinstance(fact, f.RequestAccepted):
            if fact.kind in (DeployModel.__name__, RollbackModel.__name__):
                self.wanted.add(fact.subject)
            elif fact.kind == UndeployModel.__name__:
                self.wanted.discard(fact.subject)

    def _model_wanted(self, fact: f.ModelWanted, where: str) -> None:
        before, model = self.state.generations.get(fact.model, 0), self.state.models.get(fact.model)
        if fact.again:
            if model is None or model.deleted or fact.generation not in model.versions:
                self.fail("what is wanted again is still known", f"{where}: {fact.model} {fact.generation}")
        elif fact.generation <= before:
            self.fail("generations only grow", f"{where}: {fact.model} {fact.generation} after {before}")

    def _life(self, server: str, incarnation: str) -> Process | None:
        service = self.cluster.services[f"agent-{server.split('/')[1]}"]
        lives = [p for p in self.hub.processes if p.name.startswith(f"{service.name}.") and incarnation in p.tokens]
        return lives[0] if lives else None

    def _server_lost(self, fact: f.ServerLost, where: str) -> None:
        life, now = self._life(fact.server, fact.incarnation), self.hub.now
        self._lost_at[fact.server] = now
        if life is None:
            self.fail("only what lived is lost", f"{where}: {fact.server} {fact.incarnation}")
        elif fact.code == "DOWN" and not life.said_goodbye:
            self.fail("down is only who said goodbye", f"{where}: {life.name} ({fact.incarnation}) is declared down")
        elif fact.code == "LEASE_LAPSED" and life.alive and not life.frozen:
            lease = self.state.policy.lease_ms / 1000
            cut = any(bus.cut for bus in life.connections)
            if not cut and now - life.troubled > lease + MARGIN_S:
                self.fail(
                    "who lives and can be heard is not lost",
                    f"{where}: {life.name} has run freely for {now - life.troubled:.1f} s",
                )

    def _server_returned(self, fact: f.ServerReturned, where: str) -> None:
        self._server_there(fact, where)
        heard, lost = (
            self._heard.get(_digest(SERVICE_RECORD.encode(fact.record)), 0.0),
            self._lost_at.get(fact.server, 0.0),
        )
        if heard < lost - UNHEARD_S:
            self.fail(
                "the dead do not return",
                f"{where}: {fact.server} on a heartbeat stored {lost - heard:.1f} s before it was lost",
            )

    def _server_there(self, fact: f.ServerJoined | f.ServerReturned, where: str) -> None:
        incarnation = fact.incarnation if isinstance(fact, f.ServerReturned) else fact.record.server.incarnation
        life = self._life(fact.server, incarnation)
        if life is None or (life.died_at is not None and self.hub.now - life.died_at > DELAY_S):
            since = f"died {self.hub.now - (life.died_at or 0):.1f} s ago" if life else "never was"
            self.fail(
                "the dead do not return",
                f"{where}: {type(fact).__name__} of {fact.server} {incarnation}, which {since}",
            )

    _FACTS: ClassVar[dict[type, Callable[["Checker", Any, str], None]]] = {
        f.RequestAccepted: _request,
        f.RequestRejected: _request,
        f.ModelWanted: _model_wanted,
        f.ServerLost: _server_lost,
        f.ServerJoined: _server_there,
        f.ServerReturned: _server_returned,
    }

    # --- routes ---------------------------------------------------------------------------------------------------------

    def _route(self, message: Message) -> None:
        key, state = message.key, self.state
        if not message.payload:
            self.routes.pop(key, None)
            if key in state.models and not state.models[key].deleted and self._changed.get(key, -1) < 0:
                self.fail("no route is taken away without a decision", f"{key}: {message.id}")
            return
        route = ROUTE.decode(message.payload, message.properties.get(FINGERPRINT, ""))
        self.routes[key] = route
        for target in route.targets:
            for endpoint in target.endpoints:
                server = self.cluster.servers[endpoint.server.split("/")[1]]
                if endpoint.served_name not in server.ever:
                    self.fail(
                        "no route to what was never loaded", f"{key}: {endpoint.served_name} on {endpoint.server}"
                    )
        known = self._changed.get(key, -1)
        comparable = known <= route.position <= state.position and self._terms[route.position] == route.term
        if comparable:
            expected = self.expected(key)
            if not same(route, expected):
                self.fail("a route is the state's at its position", f"{key}: {route.targets}, state: {expected}")

    def _unload(self, command: Command) -> None:
        """Look at the route that stands when an agent begins to unload."""
        wanted = command.command
        assert isinstance(wanted, UnloadModel)
        route = self.routes.get(wanted.model)
        key = f"{command.cluster}/{command.server}/{command.replica}"
        place = (key, served_name(wanted.model, wanted.generation))
        for target in route.targets if route else ():
            if place in ((endpoint.server, endpoint.served_name) for endpoint in target.endpoints):
                self.fail("no route to what is unloaded", f"{place} is unloaded, and {wanted.model} is routed there")

    def expected(self, key: str) -> Route | None:
        """Return the route that the stored log stands for; None = the model has none."""
        model = self.state.models.get(key)
        return None if model is None or (model.deleted and not model.traffic) else route_of(self.state, model)

    # --- in the end -----------------------------------------------------------------------------------------------------

    def leader(self) -> Leader | None:
        """Return the leader that writes now."""
        alive = [leader for process, leader in self.leaders.items() if process.alive]
        return max(alive, key=lambda leader: leader.term, default=None)

    def folded(self) -> str:
        """Compare the log with the states of the leader and the projector, where they are at the same position."""
        leader = self.leader()
        same_place = leader is not None and (leader.term, leader.state.position) == (
            self.state.term,
            self.state.position,
        )
        if leader is not None and same_place and leader.state != self.state:
            self.fail("the leader's state is the folded log", _difference(leader.state, self.state))
        for process, projector in self.projectors.items():
            if process.alive and projector.state.position == self.state.position and projector.state != self.state:
                self.fail("the projector's state is the folded log", _difference(projector.state, self.state))
        return ""


def same(one: Route | None, other: Route | None) -> bool:
    """Whether two routes send requests to the same places."""
    return one is other if one is None or other is None else content(one) == content(other)


def _again(fact: f.ReplicaChanged) -> bool:
    return fact.before == R.LOAD_FAILED and fact.after == R.LOAD_REQUESTED


def _digest(payload: bytes) -> str:
    return sha256(payload).hexdigest()[:16]


def _difference(one: State, other: State) -> str:
    for name in State.__dataclass_fields__:
        a, b = getattr(one, name), getattr(other, name)
        if State.__dataclass_fields__[name].compare and a != b:
            if isinstance(a, dict):
                keys = [key for key in {*a, *b} if a.get(key) != b.get(key)]
                return f"{name} differs at {keys}: {[(a.get(k), b.get(k)) for k in keys[:2]]}"
            return f"{name}: {a} and {b}"
    return "no field differs"
