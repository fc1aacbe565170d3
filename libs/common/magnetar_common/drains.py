"""How a drain goes: what is left on a server, and why. Computed from the state alone, for the log and for people."""

from magnetar_common.quotas import code_of
from magnetar_common.state import CORDONED, DRAINING, Replica, Server, State
from magnetar_common.status import frozen_because
from magnetar_common.transitions import LEAVING, R
from magnetar_events.facts import LeftBehind

DRAIN_METADATA = "drainMs"
"""In the metadata of an agent's record that says DRAINING: it ends after so many ms, whatever is left."""

EXAMPLES = 100
"""Models left behind that an entry names, at most."""

_REASON = 512
_ON_THEIR_WAY_OUT = LEAVING | {R.UNROUTE_REQUESTED, R.UNLOAD_FAILED}

DRAINED, STUCK = "DRAINED", "STUCK"
"""Nothing is left; the time is over, and something is."""


def phase(server: Server) -> str:
    """Return CORDONED, DRAINING, DRAINED or STUCK; empty for a server that things may be placed on as far as that goes."""
    if not server.draining:
        return CORDONED if server.cordon else ""
    if not server.replicas:
        return DRAINED
    said = server.drains or server.cordon == DRAINING  # an order without a deadline that is still to come
    return STUCK if said and not server.drain_due else DRAINING


def left_on(state: State, server: Server) -> list[LeftBehind]:
    """Return what is left on a server, and why; first what fits nowhere else."""
    found = [(_why(state, replica), replica) for replica in server.replicas.values()]
    found.sort(key=lambda each: (not each[0][0], each[1].model, each[1].generation))
    return [LeftBehind(replica.model, replica.generation, reason[:_REASON]) for (_, reason), replica in found]


def stuck_on(state: State, server: Server) -> list[LeftBehind]:
    """Return what cannot leave a server as things stand, and why."""
    held = sum(_why(state, replica)[0] for replica in server.replicas.values())
    return left_on(state, server)[:held]


def _why(state: State, replica: Replica) -> tuple[bool, str]:
    """Return whether a replica is held on its server until something changes elsewhere, and why it is still there."""
    if replica.state in _ON_THEIR_WAY_OUT:
        return False, f"on its way out: {replica.state}"
    model = state.models[replica.model]
    version = model.versions.get(replica.generation)
    if version is None:
        return False, f"on its way out: {replica.state}"
    if model.frozen:
        return True, f"FROZEN: {frozen_because(model).removeprefix('frozen ')}"
    if version.failed is not None:
        return True, f"{version.failed.code}: {version.failed.message}"
    if version.refused is not None:
        return True, f"{code_of(version.refused)}: {version.refused.message}"
    coming = sorted(r.server for r in model.of(replica.generation) if r.live and r.state is not R.AVAILABLE)
    return False, f"being loaded on {', '.join(coming)[:200]}" if coming else "waits for its turn"
