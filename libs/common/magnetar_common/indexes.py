"""What only indexes a state: kept in step by ``evolve``, and built anew for a state that comes without.

Books of memory per device, outstanding commands, timers, the pending sets and the fleet all follow from the models and
the servers. What does not follow from them is an order of arrival, where decisions depend on one.
"""

from magnetar_common.memory import Awaited
from magnetar_common.quotas import NOTHING, count, count_staying, held, stays
from magnetar_common.state import DRAIN_TIMER, RETURN_TIMER, Replica, ReplicaKey, Server, State
from magnetar_common.transitions import ARRIVING, LEAVING
from magnetar_events.facts import Booking


def reindex(state: State) -> None:
    """Build every index of a state that has models and servers and nothing else.

    A key that stands in an ordered index already (``server.replicas``, ``outstanding``, ``unsettled``, ``waiting``,
    ``failed``) keeps its place there, whatever it stands for.
    """
    room = state.room
    for server in state.servers.values():
        state.fleet.touch(server)
        state.set_timer(server.due, server=server.key)
        state.set_timer(server.drain_due, generation=DRAIN_TIMER, server=server.key)
        state.set_timer(server.return_due, generation=RETURN_TIMER, server=server.key)
        for awaited in (*server.awaited.values(), *server.leaked.values()):
            book_held(state, server, awaited, +1)
    for model in state.models.values():
        state.set_timer(model.due, model.key)
        for version in model.versions.values():
            if version.claim:
                state.set_timer(version.claimed_until, model.key, version.generation)
        for replica in model.replicas.values():
            server = state.servers[replica.server]
            book(state, server, replica, +1)
            count(state, model.key, NOTHING, held(replica))
            count_staying(state, model.key, NOTHING, stays(replica))
            if replica.state in ARRIVING:
                book_arriving(state, server, replica, +1)
            index_replica(state, replica.key, replica)
        state.touched[model.key] = None
    index_models(state)
    state.room = room  # nothing has happened


def index_replica(state: State, key: ReplicaKey, replica: Replica | None) -> None:
    """Keep the outstanding commands and the timers in step with a replica."""
    if replica is not None and (replica.state in ARRIVING or replica.state in LEAVING):
        state.outstanding[key] = replica
    else:
        state.outstanding.pop(key, None)
    if replica is not None:
        state.set_timer(replica.due, *key)


def index_models(state: State) -> None:
    """Keep the pending sets in step with the models that were touched; once an entry, however many facts it has."""
    for key in state.touched:
        model = state.models.get(key)
        unsettled, waits, failed = model.pending() if model is not None else (False, False, False)
        for pending, is_in in ((state.unsettled, unsettled), (state.waiting, waits), (state.failed, failed)):
            if is_in:
                pending[key] = None
            elif pending:
                pending.pop(key, None)
        if state.quotas.note(key, model, pending=unsettled or waits):
            state.room += 1
    state.touched.clear()


def book(state: State, server: Server, replica: Replica, sign: int) -> None:
    """Add (+1) a replica to its server and what it reserves to the books, or take (-1) them out."""
    place = (replica.model, replica.generation)
    if sign > 0:
        server.replicas[place] = replica
    else:
        server.replicas.pop(place, None)
    host = server.info.host
    for booking in replica.bookings:
        server.booked += sign * booking.bytes
        _add(state.booked, (host, booking.device), sign * booking.bytes)
    state.fleet.touch(server)
    state.fleet.touch_host(host)


def rebook(state: State, server: Server, replica: Replica, bookings: tuple[Booking, ...]) -> None:
    """Put what a replica is to reserve from here on into the books, in place of what it reserves."""
    for sign, booked in ((-1, replica.bookings), (+1, bookings)):
        for booking in booked:
            server.booked += sign * booking.bytes
            for books in (state.booked, state.arriving) if replica.state in ARRIVING else (state.booked,):
                _add(books, (server.info.host, booking.device), sign * booking.bytes)
    state.fleet.touch(server)
    state.fleet.touch_host(server.info.host)


def book_held(state: State, server: Server, held: Awaited, sign: int) -> None:
    """Add (+1) to, or take (-1) from, the books what an unloaded replica has not given back."""
    for booking in held.bookings:
        server.booked += sign * booking.bytes
        _add(state.booked, (server.info.host, booking.device), sign * booking.bytes)
    state.fleet.touch(server)
    state.fleet.touch_host(server.info.host)


def book_arriving(state: State, server: Server, replica: Replica | None, sign: int) -> None:
    """Add (+1) to, or take (-1) from, the books a load in progress, and what it reserves that no reading shows yet."""
    state.loading[server.key] += sign
    if not state.loading[server.key]:
        del state.loading[server.key]
    for booking in replica.bookings if replica else ():
        _add(state.arriving, (server.info.host, booking.device), sign * booking.bytes)
    state.fleet.touch_host(server.info.host)


def load_ended(state: State) -> None:
    """Take note that there may be room for another load, where their number has a limit."""
    if state.policy.loads_per_server or state.policy.loads_in_cluster:
        state.room += 1


def move_host(state: State, server: Server, host: str) -> None:
    """Take the bookings along when a server comes back on another machine."""
    if server.info.host == host:
        return
    for replica in server.replicas.values():
        for booking in replica.bookings:
            for books in (state.booked, state.arriving) if replica.state in ARRIVING else (state.booked,):
                _add(books, (server.info.host, booking.device), -booking.bytes)
                _add(books, (host, booking.device), booking.bytes)
    state.fleet.touch_host(server.info.host)
    state.fleet.touch_host(host)


def _add(books: dict[tuple[str, str], int], device: tuple[str, str], amount: int) -> None:
    total = books.get(device, 0) + amount
    if total:
        books[device] = total
    else:
        books.pop(device, None)
