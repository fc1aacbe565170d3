"""What must be so in the end, once nothing goes wrong any more: everybody at rest, and all of one mind."""

from magnetar_common.state import Version
from magnetar_common.status import ModelState, model_status
from magnetar_common.transitions import R
from magnetar_events.models import served_name
from tests.simulation.invariants import Checker, same


def unsettled(checker: Checker) -> str:
    """Return what keeps the world from being at rest; empty once all is as it must be in the end."""
    state, cluster = checker.state, checker.cluster
    leader = checker.leader()
    if leader is None or leader.term != state.term or leader._dispatch.behind:
        return "nobody leads, or the leader is behind"
    if leader.state.position != state.position:
        return f"the leader is at {leader.state.position}, the log at {state.position}"
    for user in cluster.users:
        if not user.idle:
            return f"{user.name} still asks"
        for request in user.acknowledged:
            if checker.requests[request] != 1:
                return f"request {request} was acknowledged and handled {checker.requests[request]} times"
    wanted = {key for key, model in state.models.items() if not model.deleted}
    if wanted != checker.wanted:
        return f"wanted are {sorted(checker.wanted)}, and there are {sorted(wanted)}"
    for key, model in sorted(state.models.items()):
        status = model_status(model)
        if model.deleted or status.state is ModelState.PROGRESSING:
            return f"{key} is {status.state}: {status.reason}"
        if status.state is not ModelState.AVAILABLE and not (status.code and status.reason):
            return f"{key} is {status.state} without a reason"
        target = model.target
        waits = target.refused is not None or target.failed is not None or model.frozen
        for replica in model.replicas.values():
            # A new version of which not all replicas fit does not take over from one that serves.
            held_back = replica.state is R.LOADED and waits and replica.generation == model.generation
            if replica.state is not R.AVAILABLE and not held_back and not state.servers[replica.server].lost:
                return f"{replica.key} is {replica.state}"
            if replica.draining and replica.state is R.AVAILABLE and not _held(model.versions[replica.generation]):
                return f"{replica.key} is on a server that drains, and nothing says why"
    return _servers(checker) or _routes(checker) or _projector(checker)


def _held(version: Version) -> bool:
    return version.refused is not None or version.failed is not None


def _servers(checker: Checker) -> str:
    for agent in checker.cluster.agents:
        server = checker.cluster.server_of(agent)
        known = checker.state.servers.get(f"local/{server.name}/0")
        if not agent.wanted:
            if known is not None and not known.lost:
                return f"{server.name} is gone and not known as lost"
            continue
        if known is None or known.lost or not known.inventory or known.record.status != "UP":
            return f"{server.name} is there and not known as such"
        if known.incarnation not in agent.process.tokens:
            return f"{server.name} has another life than the state says"
        if known.awaited:
            return f"{server.name} is still to give back {list(known.awaited)}"
        expected = sorted(served_name(*place) for place in known.replicas)
        if server.ready() != expected:
            return f"{server.name} holds {server.ready()}, and the state says {expected}"
    for host in checker.cluster.hosts:
        for device, used in host.used.items():
            if used > host.totals[device]:
                return f"{host.name}/{device} has {host.totals[device]} and {used} are used"
    return ""


def _routes(checker: Checker) -> str:
    for key in sorted({*checker.routes, *checker.state.models}):
        expected = checker.expected(key)
        if not same(checker.routes.get(key), expected):
            return f"the route of {key} is {checker.routes.get(key)}, and the state says {expected}"
    return ""


def _projector(checker: Checker) -> str:
    for process, projector in checker.projectors.items():
        if process.alive and (projector.halted or projector.state.position != checker.state.position):
            return f"the projector is at {projector.state.position} of {checker.state.position} {projector.halted}"
    return ""
