"""Decide on cordons and drains: who is asked for, when one is over, and what is left then.

The cool-down comes first, by itself: the entry that begins a drain places nothing, and every later one sees that the
server takes nothing more. So two servers that drain at once never choose each other. What is there then moves in pieces,
as after the loss of a server, but that it serves until others do.
"""

from magnetar_common.drains import DRAIN_METADATA, EXAMPLES, left_on
from magnetar_common.since import DRAINS
from magnetar_common.state import CORDONED, DRAINING, Server
from magnetar_events import facts as f
from magnetar_events.records import ServiceRecord
from magnetar_events.requests import LONGEST_DRAIN_MS, CordonServer, DrainServer, ResumeServer
from magnetar_scheduler.draft import Draft
from magnetar_scheduler.refusal import Refusal

AGENT_DRAIN_MS = 60_000
"""An agent that is about to end and does not say when is given this long (ms)."""


def of_request(draft: Draft, wish: CordonServer | DrainServer | ResumeServer, reason: str) -> list[f.Fact]:
    """Return what a request about a server leads to; nothing if it is so already.

    Raises:
        Refusal: there is no such server, or it is not for an operator to say, or there are too many orders.
    """
    state = draft.state
    key = wish.server if wish.server.count("/") == 2 else f"{state.cluster}/{wish.server}"
    server, order = state.servers.get(key), state.cordons.get(key)
    if server is None and order is None:
        raise Refusal("NOT_FOUND", "event.server", f"there is no server {key}")
    if isinstance(wish, ResumeServer):
        if order is None and server is not None and server.draining:
            message = f"the agent of {key} is about to end, and takes nothing more in this life"
            raise Refusal("AGENT_DRAINS", "event.server", message)
        return [f.ServerResumed(key, reason)] if order is not None else []
    if server is None:
        raise Refusal("NOT_FOUND", "event.server", f"{key} is gone, and only the order for it is left: resume it")
    if order is None and len(state.cordons) >= draft.policy.max_servers:
        limit = f"{len(state.cordons)} servers are cordoned or drained, as many as may be (maxServers): resume some"
        raise Refusal("TOO_MANY_CORDONS", "event.server", limit)
    if isinstance(wish, CordonServer):
        return [] if server.cordon == CORDONED else [f.ServerCordoned(key, reason)]
    facts: list[f.Fact] = [f.ServerDraining(key, draft.at + wish.deadline_ms, "", reason)]
    return facts if server.replicas else [*facts, f.ServerDrained(key, 0, ())]


def on_agent_draining(draft: Draft, server: Server, record: ServiceRecord) -> None:
    """An agent says that it is about to end. What an operator ordered for its server goes on; else this is a drain."""
    if draft.state.version < DRAINS or server.cordon == DRAINING or not server.replicas:
        return
    said = record.metadata.get(DRAIN_METADATA, "")
    wait = (
        min(int(said), LONGEST_DRAIN_MS) if said.isascii() and said.isdecimal() and len(said) < 12 else AGENT_DRAIN_MS
    )
    draft.emit(f.ServerDraining(server.key, draft.at + wait, server.incarnation, "its agent is about to end"))


def say_what_is_left(draft: Draft, server: Server) -> None:
    """Say that the time of a drain is over, and what could not leave."""
    left = left_on(draft.state, server)
    draft.emit(f.ServerDrained(server.key, len(left), tuple(left[:EXAMPLES])))


def say_what_is_drained(draft: Draft) -> None:
    """Say of servers on which this decision leaves nothing that their drain is over."""
    for key, number in draft.placed.items():
        server = draft.state.servers[key]
        if number < 0 and server.drains and len(server.replicas) + number <= 0:
            draft.emit(f.ServerDrained(key, 0, ()))
