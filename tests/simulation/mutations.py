"""Ways to break Magnetar, each a small patch of production code. The simulation is worth what it makes of them.

Apply one inside a simulation; each names the invariants that may tell.
"""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from magnetar_agent.ledger import Ledger
from magnetar_common import fleet
from magnetar_common.bus.base import MessageId
from magnetar_common.leases import Leases
from magnetar_common.state import Server, State
from magnetar_events import facts as f
from magnetar_events.records import Device
from magnetar_events.requests import DeployModel
from magnetar_scheduler import decide, inputs, reconcile, requests, servers, tenants, watch
from magnetar_scheduler.dispatch import Dispatch
from magnetar_scheduler.draft import Draft
from magnetar_scheduler.journal import short
from magnetar_scheduler.leader import Leader
from magnetar_scheduler.leadership import Challenger
from magnetar_scheduler.placement import site
from magnetar_scheduler.routes import Routes
from tests.simulation.runtime import Hub


@contextmanager
def _instead(owner: Any, name: Any, make: Callable[[Any], Any]) -> Generator[None]:
    """Put something in place of an attribute, or of an item, for a while."""
    if isinstance(owner, dict):
        original = owner[name]
        owner[name] = make(original)
    else:
        original = getattr(owner, name)
        setattr(owner, name, make(original))
    try:
        yield
    finally:
        if isinstance(owner, dict):
            owner[name] = original
        else:
            setattr(owner, name, original)


@contextmanager
def acknowledge_before_the_append() -> Generator[None]:
    """``handled`` moves when an input is queued, not when it is decided."""

    def make(original: Any) -> Any:
        def take(leader: Leader, message: Any) -> None:
            original(leader, message)
            leader._handled = {**leader._handled, short(message.topic): str(message.id)}

        return take

    with _instead(Leader, "_take", make):
        yield


@contextmanager
def act_before_the_acknowledgement() -> Generator[None]:
    """Commands and routes are sent as soon as they are decided."""

    def make(original: Any) -> Any:
        def note(dispatch: Dispatch, position: int, facts: list[f.Fact]) -> None:
            original(dispatch, position, facts)
            dispatch.act(position)

        return note

    with _instead(Dispatch, "note", make):
        yield


@contextmanager
def unload_before_the_route_is_stored() -> Generator[None]:
    """A replica that left the routes in the log is unloaded, whether or not anybody was told."""
    with _instead(Routes, "left", lambda _: lambda routes, replica: True):
        yield


@contextmanager
def no_barrier() -> Generator[None]:
    """A new leader takes what it has read for the whole log."""
    with _instead(Challenger, "_read_to_barrier", lambda _: lambda challenger, reader, producer: True):
        yield


@contextmanager
def no_term_check() -> Generator[None]:
    """An agent obeys a leader that has been replaced."""

    def make(original: Any) -> Any:
        def judge(ledger: Ledger, command: Any) -> Any:
            ledger.term = min(ledger.term, command.term)
            return original(ledger, command)

        return judge

    with _instead(Ledger, "judge", make):
        yield


@contextmanager
def no_position_check() -> Generator[None]:
    """A report counts, whichever command it answers."""

    def make(original: Any) -> Any:
        def on_report(draft: Draft, source: inputs.Report) -> None:
            event, report = source.event, source.event.report
            model = draft.model(getattr(report, "model", ""))
            replica = model.replicas.get((report.generation, event.server_key)) if model else None  # type: ignore[union-attr]
            if replica is not None:
                report = report.model_copy(update={"position": replica.position})
                source = inputs.Report(event.model_copy(update={"report": report}))
            original(draft, source)

        return on_report

    with _instead(decide._ON, inputs.Report, make):
        yield


@contextmanager
def no_reservation_while_loading() -> Generator[None]:
    """Memory counts as taken once a model is loaded, and not from when it was promised."""

    def room_on(state: State, server: Server, device: Device, free: int | None = None) -> int:
        key = (server.info.host, device.uuid)
        loaded = state.booked.get(key, 0) - state.arriving.get(key, 0)
        return min(device.total - loaded, device.free)

    with _instead(site, "room_on", lambda _: room_on), _instead(fleet, "room_on", lambda _: room_on):
        yield


@contextmanager
def goodbyes_of_old_lives() -> Generator[None]:
    """The goodbye of an agent's earlier life takes its server away."""

    def is_old_goodbye(state: Any, record: Any) -> bool:
        info = record.server if record is not None else None
        server = state.servers.get(info.key) if info is not None else None
        return (
            server is not None
            and record.status == "DOWN"
            and not record.declared_by
            and not server.lost
            and info.incarnation != server.incarnation
        )

    def make_news(original: Any) -> Any:
        return lambda state, record: "registry" if is_old_goodbye(state, record) else original(state, record)

    def make_decision(original: Any) -> Any:
        def on_registry_changed(draft: Draft, source: inputs.RegistryChanged) -> None:
            if is_old_goodbye(draft.state, source.record):
                assert source.record is not None
                assert source.record.server is not None
                servers._lose(draft, draft.state.servers[source.record.server.key], "DOWN", "its agent said goodbye")
            else:
                original(draft, source)

        return on_registry_changed

    with _instead(watch, "news", make_news), _instead(decide._ON, inputs.RegistryChanged, make_decision):
        yield


@contextmanager
def generations_from_memory() -> Generator[None]:
    """A process counts the generations that it has seen itself."""
    memories: dict[object, dict[str, int]] = {}

    def make(original: Any) -> Any:
        def deploy(draft: Draft, *arguments: Any) -> None:
            task = Hub.current.task
            memory = memories.setdefault(task.process if task is not None else None, {})
            state, truth = draft.state, draft.state.generations
            state.generations = memory
            try:
                original(draft, *arguments)
            finally:
                state.generations = truth
            memory.update({fact.model: fact.generation for fact in draft.facts if isinstance(fact, f.ModelWanted)})

        return deploy

    with _instead(requests._ON, DeployModel, make):
        yield


@contextmanager
def handled_of_one_topic() -> Generator[None]:
    """An entry says up to where its own input's topic was handled, and forgets the others."""

    def make(original: Any) -> Any:
        def handle(leader: Leader, message: Any) -> None:
            leader._handled = {}
            original(leader, message)

        return handle

    with _instead(Leader, "_handle", make):
        yield


@contextmanager
def a_reread_renews_leases() -> Generator[None]:
    """A heartbeat that is read again counts as a new one."""

    def make(original: Any) -> Any:
        def observe(leases: Leases, instance: str, message_id: MessageId, *arguments: Any) -> bool:
            known = leases._leases.get(instance)
            if known is not None:
                known.last = MessageId(-2, -2)
            return original(leases, instance, message_id, *arguments)

        return observe

    with _instead(Leases, "observe", make):
        yield


@contextmanager
def quota_counted_before_the_decision() -> Generator[None]:
    """A cap is compared with what was there before the decision, not with what the decision has placed already."""

    def make(original: Any) -> Any:
        def over_cap(draft: Draft, *arguments: Any) -> str:
            added, draft.used = draft.used, {}
            try:
                return original(draft, *arguments)
            finally:
                draft.used = added

        return over_cap

    with _instead(tenants, "over_cap", make):
        yield


@contextmanager
def a_cordon_is_forgotten() -> Generator[None]:
    """Whether a server is cordoned or drains does not matter to a placement."""
    with _instead(
        Server,
        "schedulable",
        lambda _: property(lambda s: s.record.status == "UP" and s.inventory and not (s.lost or s.stale)),
    ):
        yield


@contextmanager
def a_drain_in_a_hurry() -> Generator[None]:
    """What is on a draining server leaves at once, and not when it is Available elsewhere."""

    def make(original: Any) -> Any:
        def relieve(draft: Draft, model: Any, generation: int) -> None:
            original(draft, model, generation)
            for replica in list(model.of(generation)):
                if replica.draining and replica.state == "Available":
                    reconcile.let_go(draft, replica, "its server is draining")

        return relieve

    with _instead(reconcile, "_relieve", make):
        yield


MUTATIONS: dict[str, tuple[Callable[[], AbstractContextManager[None]], frozenset[str]]] = {
    "acknowledge before the append": (
        acknowledge_before_the_append,
        frozenset({"handled is what was decided", "each input is handled once"}),
    ),
    "act before the append is acknowledged": (
        act_before_the_acknowledgement,
        frozenset({"a command is of a stored decision"}),
    ),
    "unload before the route is stored": (
        unload_before_the_route_is_stored,
        frozenset({"no route to what is unloaded"}),
    ),
    "no barrier": (
        no_barrier,
        frozenset(
            {
                "the log never forks",
                "the log has no hole",
                "terms never go back",
                "the leader's state is the folded log",
            }
        ),
    ),
    "no term check": (no_term_check, frozenset({"a command of an older term is refused"})),
    "no position check in reports": (no_position_check, frozenset({"a report answers the newest command"})),
    "no reservation while loading": (no_reservation_while_loading, frozenset({"memory is never over-booked"})),
    "a goodbye of an old incarnation accepted": (goodbyes_of_old_lives, frozenset({"down is only who said goodbye"})),
    "generation from memory": (generations_from_memory, frozenset({"generations only grow"})),
    "handled of one topic only": (
        handled_of_one_topic,
        frozenset({"handled is what was decided", "each input is handled once"}),
    ),
    "quota counted before the decision": (quota_counted_before_the_decision, frozenset({"no placement passes a cap"})),
    "a cordon is forgotten": (a_cordon_is_forgotten, frozenset({"nothing is placed on a closed server"})),
    "a drain in a hurry": (a_drain_in_a_hurry, frozenset({"a drain takes nothing away before it is elsewhere"})),
    "a re-read renews leases": (a_reread_renews_leases, frozenset({"the dead do not return"})),
}
"""Mutation → (its patch, the invariants that may tell)."""
