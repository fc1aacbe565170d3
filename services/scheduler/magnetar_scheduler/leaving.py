"""How a replica leaves: out of the routes, after a grace out of memory; and who leaves first."""

from magnetar_common.state import Model, Replica
from magnetar_common.transitions import R
from magnetar_scheduler.draft import Draft

_VICTIMS = {R.LOAD_FAILED: 0, R.LOAD_REQUESTED: 1, R.LOADING: 2, R.LOADED: 3, R.AVAILABLE: 4}
"""Whom to let go of first when there are too many: what is least far along."""


def order_of_leaving(replica: Replica) -> tuple[int, str]:
    """Return by what live replicas are sorted when some are to leave."""
    return _VICTIMS[replica.state], replica.server


def let_go(draft: Draft, replica: Replica, reason: str, code: str = "") -> None:
    """Start to take a replica away, from whatever state it is in."""
    policy = draft.policy
    if replica.state is R.AVAILABLE:
        due = draft.at + policy.unload_grace_ms + 1
        draft.change(replica, R.UNROUTE_REQUESTED, code=code, reason=reason, due=due)
    elif replica.state in (R.LOAD_REQUESTED, R.LOADING, R.LOAD_FAILED, R.LOADED):
        draft.change(replica, R.UNLOAD_REQUESTED, code=code, reason=reason, due=draft.at + policy.unload_timeout_ms)
    elif replica.state is R.LOST:
        draft.change(replica, R.UNLOADED, code=code, reason=reason)


def hurry(draft: Draft, model: Model, reason: str) -> None:
    """Unload at once what has left the routes and waits for its grace to end: requests that it works on may fail."""
    for replica in list(model.replicas.values()):
        if replica.state is R.UNROUTE_REQUESTED:
            draft.change(replica, R.UNLOAD_REQUESTED, reason=reason, due=draft.at + draft.policy.unload_timeout_ms)
