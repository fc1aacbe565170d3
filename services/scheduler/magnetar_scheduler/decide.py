"""``decide``: the only place with an opinion. Pure: no clock, no I/O, no randomness; it sees its three arguments."""

from collections.abc import Callable
from typing import Any

from magnetar_common.state import State
from magnetar_events import facts as f
from magnetar_scheduler import inputs as i
from magnetar_scheduler.dependants import revive_dependants
from magnetar_scheduler.draft import Draft
from magnetar_scheduler.drains import say_what_is_drained
from magnetar_scheduler.pending import on_continue, on_timer
from magnetar_scheduler.reports import on_report
from magnetar_scheduler.requests import on_rejected, on_request
from magnetar_scheduler.servers import on_lease_lapsed, on_reading_changed, on_reading_stale, on_registry_changed


def decide(state: State, source: i.Decidable, at: int) -> list[f.Fact]:
    """Return what an input leads to; empty = nothing, and then it leaves no entry unless it was a request.

    Args:
        state: only read.
        source: what happened.
        at: log time (ms).
    """
    draft = Draft(state, at)
    _ON[type(source)](draft, source)
    say_what_is_drained(draft)
    revive_dependants(draft)
    return draft.facts


def _on_elected(draft: Draft, source: i.Elected) -> None:
    draft.emit(source.fact)


def _on_alive(draft: Draft, source: i.Alive) -> None:
    draft.emit(f.LeaderAlive(source.term))


_ON: dict[type, Callable[[Draft, Any], None]] = {
    i.Request: on_request,
    i.Report: on_report,
    i.Rejected: on_rejected,
    i.RegistryChanged: on_registry_changed,
    i.ReadingChanged: on_reading_changed,
    i.LeaseLapsed: on_lease_lapsed,
    i.ReadingStale: on_reading_stale,
    i.TimerDue: on_timer,
    i.Continue: on_continue,
    i.Elected: _on_elected,
    i.Alive: _on_alive,
}
