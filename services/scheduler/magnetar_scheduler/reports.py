"""Decide on agents' reports about replicas. A report to an older command than the replica's newest changes nothing."""

from collections.abc import Callable
from typing import Any

from magnetar_common.amounts import counted
from magnetar_common.since import BOUNDED
from magnetar_common.state import Replica
from magnetar_common.transitions import ARRIVING, LEAVING, R
from magnetar_events import facts as f
from magnetar_events import reports as r
from magnetar_scheduler.draft import Draft
from magnetar_scheduler.failures import fail
from magnetar_scheduler.inputs import Report
from magnetar_scheduler.inventory import on_inventory, on_resync
from magnetar_scheduler.leaving import let_go
from magnetar_scheduler.reconcile import reconcile
from magnetar_scheduler.returns import await_return
from magnetar_scheduler.sizes import LOAD_FAIL_MEMORY, not_enough, observed
from magnetar_scheduler.sizes import measured as take_measure

ARTIFACT_MISMATCH = "ARTIFACT_MISMATCH"
"""The artifact is not the one that was pinned to this version. Final."""

CODE_LENGTH = 64
"""Characters of an agent's code that are kept."""

MAX_DOUBLINGS = 16
"""The wait between attempts is doubled so often, at most."""

_ELSEWHERE = frozenset({LOAD_FAIL_MEMORY, "LOAD_FAIL_DISK"})
"""Codes for which another attempt on the same server is no use."""


def on_report(draft: Draft, source: Report) -> None:
    """Take up what an agent says, if it is the current life of its server."""
    event = source.event
    if event.cluster != draft.state.cluster:
        return
    key, report = event.server_key, event.report
    server = draft.server(key)
    if server is None or server.incarnation != event.incarnation:
        superseded = server is not None and event.incarnation in server.superseded
        code = "SUPERSEDED_AGENT" if superseded else "UNKNOWN_AGENT"
        draft.emit(f.ReportIgnored(key, _subject(report), code, f"{type(report).__name__} of life {event.incarnation}"))
        return
    if server.lost:  # what it holds is asked anew when it returns; until then what it says may be of before
        message = f"{type(report).__name__} of a server that is lost"
        draft.emit(f.ReportIgnored(key, _subject(report), "SERVER_LOST", message))
        return
    if isinstance(report, r.InventoryReported):
        on_inventory(draft, server, report, event.number)
        return
    if isinstance(report, r.ResyncRequested):
        on_resync(draft, server, report)
        return
    if isinstance(report, r.LoadObserved):
        observed(draft, server, report.memory)
        return
    if isinstance(report, (r.ArtifactRemoved, r.ArtifactRemoveFailed, r.CommandSuperseded)):
        return  # for people and for later: they change nothing
    model = draft.model(report.model)
    replica = model.replicas.get((report.generation, key)) if model else None
    if replica is None or replica.position != report.position:
        newest = f"the newest command is at {replica.position}" if replica else "there is no such replica"
        message = f"{type(report).__name__} answers position {report.position}; {newest}"
        draft.emit(f.ReportIgnored(key, _subject(report), "OLD_POSITION", message))
        return
    if not _ON[type(report)](draft, replica, report):
        message = f"{type(report).__name__} while {replica.state}"
        draft.emit(f.ReportIgnored(key, _subject(report), "UNEXPECTED", message))


def _subject(report: Any) -> str:
    return getattr(report, "model", "")


def _loading(draft: Draft, replica: Replica, report: r.ModelLoading) -> bool:
    if replica.state is R.LOAD_REQUESTED:
        draft.change(replica, R.LOADING, due=replica.due)
    return replica.state in ARRIVING


def _loaded(draft: Draft, replica: Replica, report: r.ModelLoaded) -> bool:
    if replica.state not in ARRIVING:
        return replica.state in (R.LOADED, R.AVAILABLE)  # a repeat of what is known
    model = draft.model(replica.model)
    version = model.versions.get(replica.generation) if model else None
    if version is not None and report.digest:
        if version.digest and version.digest != report.digest:
            message = f"the artifact's sha256 is {report.digest}, and {version.digest} was pinned"
            load_failed(draft, replica, ARTIFACT_MISMATCH, message, retriable=False)
            return True
        if not version.digest:
            draft.emit(f.ArtifactPinned(replica.model, replica.generation, report.digest))
    draft.change(replica, R.LOADED)
    measured = tuple(f.Booking(m.device, m.measured) for m in report.memory)
    times = report.times
    draft.emit(
        f.ReplicaMeasured(
            *replica.key,
            report.digest,
            measured,
            report.parallel,
            report.http_port,
            times.fetch_ms,
            times.load_ms,
            times.verify_ms,
        )
    )
    take_measure(draft, replica, report.memory)
    reconcile(draft, replica.model)
    return True


def _load_failed(draft: Draft, replica: Replica, report: r.ModelLoadFailed) -> bool:
    if replica.state not in ARRIVING:
        return False
    if report.code == LOAD_FAIL_MEMORY:
        not_enough(draft, replica, report.free)
    load_failed(draft, replica, report.code[:CODE_LENGTH], report.message, retriable=report.retriable)
    return True


def load_failed(draft: Draft, replica: Replica, code: str, message: str, *, retriable: bool) -> None:
    """Decide what follows a failed load: again here, then elsewhere, then the version is failed."""
    policy = draft.policy
    here = code not in _ELSEWHERE and not draft.state.servers[replica.server].closed
    again = retriable and here and replica.attempt < policy.load_attempts
    due = draft.at + policy.load_retry_ms * 2 ** min(replica.attempt - 1, MAX_DOUBLINGS) if again else 0
    draft.change(replica, R.LOAD_FAILED, code=code, reason=message[:512], retriable=retriable, due=due)
    if again:
        return
    model = draft.model(replica.model)
    if model is not None and replica.generation in model.kept():
        version = model.versions[replica.generation]
        if not retriable:
            fail(draft, model, version, code, message[:512], retriable=False)
        elif (tried := len(model.given_up(version.generation))) >= policy.load_servers:
            fail(draft, model, version, code, f"failed on {counted(tried, 'server')}", retriable=True)
    let_go(draft, replica, f"{code}: the load failed")
    reconcile(draft, replica.model, "failed elsewhere", retry=True)


def _unloading(draft: Draft, replica: Replica, report: r.ModelUnloading) -> bool:
    if replica.state is R.UNLOAD_REQUESTED:
        draft.change(replica, R.UNLOADING, due=replica.due)
    return replica.state in LEAVING


def _unloaded(draft: Draft, replica: Replica, report: r.ModelUnloaded) -> bool:
    if replica.state not in LEAVING:
        return False
    draft.change(replica, R.UNLOADED)
    await_return(draft, replica, report.free)
    reconcile(draft, replica.model)
    return True


def _unload_failed(draft: Draft, replica: Replica, report: r.ModelUnloadFailed) -> bool:
    if replica.state not in LEAVING:
        return False
    unload_failed(draft, replica, report.code[:CODE_LENGTH], report.message)
    return True


def unload_failed(draft: Draft, replica: Replica, code: str, message: str) -> None:
    """Decide to try an unload again, each time after twice as long as before; never later than after its time-out.

    Its attempts are counted from fold version 2 on; a log of version 1 is decided as it was.
    """
    policy, attempt, wait = draft.policy, replica.attempt, draft.policy.load_retry_ms
    if draft.state.version >= BOUNDED:
        longest = max(wait, policy.unload_timeout_ms)
        wait, attempt = min(longest, wait * 2 ** min(attempt - 1, MAX_DOUBLINGS)), attempt + 1
    due = draft.at + wait
    draft.change(replica, R.UNLOAD_FAILED, code=code, reason=message[:512], retriable=True, attempt=attempt, due=due)


_ON: dict[type, Callable[[Draft, Replica, Any], bool]] = {
    r.ModelLoading: _loading,
    r.ModelLoaded: _loaded,
    r.ModelLoadFailed: _load_failed,
    r.ModelUnloading: _unloading,
    r.ModelUnloaded: _unloaded,
    r.ModelUnloadFailed: _unload_failed,
}
