"""Acting on the log: what the stored entries make outstanding is sent when it arises, and again until it is answered.

Effects are a level, not a stream. Nothing is sent for an entry that is not stored yet, even though the state is ahead.
"""

import time
from collections import deque
from collections.abc import Iterable

from magnetar_common.state import ReplicaKey, State
from magnetar_common.topics import COMMANDS
from magnetar_common.transitions import LEAVING
from magnetar_events import COMMAND, Command
from magnetar_events import facts as f
from magnetar_events.versions import REPORTS_PROPERTY, reports_schema
from magnetar_scheduler.effects import command_topic, inventory_command, replica_command
from magnetar_scheduler.outbox import Outbox
from magnetar_scheduler.routes import Routes

_OF_ROUTES = (
    f.ModelWanted,
    f.ModelUndeployed,
    f.ModelRemoved,
    f.TrafficChanged,
    # What the route of a model without replicas says.
    f.PlacementRefused,
    f.PlacementSettled,
    f.VersionFailed,
)
_NEVER = (-1, 0.0)
LOOK_S = 0.05
"""Unloads that wait for their route to be stored are looked at this often (seconds)."""

_OF_SERVERS = (f.ServerJoined, f.ServerReturned, f.ServerUpdated, f.ServerLost, f.InventoryRequested)


class Dispatch:
    """Sends commands and routes. For the leader's thread.

    Args:
        state: the leader's; only read.
        term: of this leadership.
        outbox: sends.
        routes: publishes routes.
    """

    def __init__(self, state: State, term: int, outbox: Outbox, routes: Routes) -> None:
        self._state = state
        self._term = term
        self._outbox = outbox
        self._routes = routes
        self._due: deque[tuple[int, Iterable[ReplicaKey], Iterable[str], Iterable[str]]] = deque()
        self._sent: dict[ReplicaKey | str, tuple[int, float]] = {}
        self._touched: dict[str, int] = {}
        self._unrouted: dict[str, None] = {}
        self._held: dict[ReplicaKey, None] = {}
        """Whose unload waits until nobody is sent there any more."""
        self._next_look = 0.0

    @property
    def behind(self) -> bool:
        """Whether entries are folded that are not known to be stored."""
        return bool(self._due)

    @property
    def waiting(self) -> bool:
        """Whether anything is to be sent, now or once it is stored."""
        return bool(self._due or self._unrouted or self._held)

    def note(self, position: int, facts: Iterable[f.Fact]) -> None:
        """Take note of whose commands and routes an entry may change."""
        replicas: dict[ReplicaKey, None] = {}  # each once: an inventory loses a replica and asks for it in one entry
        models: dict[str, None] = {}
        servers: dict[str, None] = {}
        for fact in facts:
            if isinstance(fact, (f.ReplicaPlaced, f.ReplicaChanged, f.ReplicaMeasured)):
                replicas[ReplicaKey(fact.model, fact.generation, fact.server)] = None
                models[fact.model] = None
            elif isinstance(fact, _OF_ROUTES):
                models[fact.model] = None
            elif isinstance(fact, _OF_SERVERS):
                servers[fact.server] = None
                known = self._state.servers.get(fact.server)
                for replica in known.replicas.values() if known else ():
                    models[replica.model] = None
                    replicas[replica.key] = None
                    self._sent.pop(replica.key, None)  # to another life of the server than this, perhaps
        for model in models:
            self._touched[model] = position
            self._unrouted.pop(model, None)
        self._due.append((position, replicas, servers, models))

    def act(self, stored: int) -> None:
        """Send the commands that the entries up to position ``stored`` have made outstanding."""
        if self._held and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + LOOK_S
            for key in list(self._held):
                self._command(key, stored)
        while self._due and self._due[0][0] <= stored:
            position, replicas, servers, models = self._due.popleft()
            for key in replicas:
                self._command(key, stored)
            for server in servers:
                self._ask(server, stored)
            for model in models:
                if self._touched.get(model) == position:  # else a later entry, not stored yet, has changed it again
                    del self._touched[model]
                    self._unrouted[model] = None

    def publish(self) -> None:
        """Publish the routes that stored entries have changed: however often since the last time, once."""
        for model in self._unrouted:
            self._routes.publish(model)
        self._unrouted.clear()

    def compare_routes(self, now: float) -> None:
        """See that the routes topic says what the state says."""
        self._routes.compare(now, self._touched)

    def overdue(self, since: float) -> list[ReplicaKey | str]:
        """Return the replicas and servers whose command is outstanding and was sent before ``since``, or never.

        Args:
            since: monotonic seconds.
        """
        outstanding: list[ReplicaKey | str] = [*self._state.outstanding, *self._state.asked]
        if len(self._sent) > 2 * len(outstanding) + 100:
            self._sent = {key: self._sent[key] for key in outstanding if key in self._sent}
        return [key for key in outstanding if self._sent.get(key, _NEVER)[1] <= since]

    def send_again(self, keys: list[ReplicaKey | str], stored: int) -> None:
        """Send these commands again; not those that still wait for their topic to be opened."""
        for key in keys:
            server = self._state.servers.get(key.server if isinstance(key, ReplicaKey) else key)
            if server is None or self._outbox.opening(command_topic(server)):
                continue
            self._sent.pop(key, None)
            if isinstance(key, ReplicaKey):
                self._command(key, stored)
            else:
                self._ask(key, stored)

    def _command(self, key: ReplicaKey, stored: int) -> None:
        self._held.pop(key, None)
        replica = self._state.outstanding.get(key)
        if replica is None or replica.position > stored or self._sent.get(key, _NEVER)[0] == replica.position:
            return
        if replica.state in LEAVING and not self._routes.left(replica):
            self._held[key] = None
            return
        command = replica_command(self._state, self._term, replica)
        if command is not None:
            self._send(key.server, command, key.model)
            self._sent[key] = (replica.position, time.monotonic())

    def _ask(self, server: str, stored: int) -> None:
        command = inventory_command(self._state, self._term, server)
        if command is not None and command.position <= stored:
            self._send(server, command, "")
            self._sent[server] = (command.position, time.monotonic())

    def _send(self, server: str, command: Command, key: str) -> None:
        topic = command_topic(self._state.servers[server])
        properties = {**COMMAND.properties, REPORTS_PROPERTY: reports_schema(self._state.version)}
        self._outbox.send(topic, COMMANDS.schema, COMMAND.encode(command), key=key, properties=properties)
