"""What cordons, drains and their end do to the state: ``evolve`` uses these.

An operator's order is about a name, and outlives whoever bears it: the next life of an agent finds it in force. The drain
of an agent that is about to end is over with that life.
"""

from magnetar_common.quotas import count_staying, stays
from magnetar_common.state import CORDONED, DRAIN_TIMER, DRAINING, Cordon, Server, State
from magnetar_events import facts as f


def mark_draining(state: State, server: Server) -> None:
    """Bring the replicas of a server in line with whether it drains."""
    draining = server.draining
    if not draining:
        server.drains, server.drain_due = False, 0
    for replica in server.replicas.values():
        if replica.draining != draining:
            stayed = stays(replica)
            replica.draining = draining
            count_staying(state, replica.model, stayed, stays(replica))
            state.touched[replica.model] = None


def cordon_of(state: State, server: str) -> str:
    """Return what an operator ordered for a server: CORDONED, DRAINING, or an empty string."""
    order = state.cordons.get(server)
    if order is None:
        return ""
    return DRAINING if order.drain else CORDONED


def server_cordoned(state: State, fact: f.ServerCordoned) -> None:
    """Nothing more is placed there."""
    _order(state, Cordon(fact.server, drain=False, reason=fact.reason, position=state.position))


def server_draining(state: State, fact: f.ServerDraining) -> None:
    """Nothing more is placed there, and what is there is to leave."""
    server = state.servers.get(fact.server)
    if fact.incarnation and (server is None or server.incarnation != fact.incarnation):
        state.illegal += 1
        return
    if not fact.incarnation:
        _order(state, Cordon(fact.server, drain=True, reason=fact.reason, position=state.position))
    if server is not None:
        server.drains, server.drain_due = True, fact.due
        state.set_timer(fact.due, generation=DRAIN_TIMER, server=fact.server)
    state.room += 1  # what waits for room has more to wait for, and says so


def server_drained(state: State, fact: f.ServerDrained) -> None:
    """It was said what is left; with nothing left, the drain has come to its end."""
    server = state.servers.get(fact.server)
    if server is None:
        state.illegal += 1
        return
    server.drain_due, server.drains = 0, bool(fact.models)


def server_resumed(state: State, fact: f.ServerResumed) -> None:
    """Things may be placed there again."""
    state.cordons.pop(fact.server, None)
    _take_over(state, fact.server)
    server = state.servers.get(fact.server)
    if server is not None and server.schedulable:
        state.newest = state.position
    state.room += 1


def _order(state: State, order: Cordon) -> None:
    state.cordons[order.server] = order
    _take_over(state, order.server)


def _take_over(state: State, key: str) -> None:
    server = state.servers.get(key)
    if server is not None:
        server.cordon = cordon_of(state, key)
        mark_draining(state, server)
        state.fleet.touch(server)
