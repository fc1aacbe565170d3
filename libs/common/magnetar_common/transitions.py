"""A replica's life: the one transition table. The diagram in the documentation is checked against it."""

from enum import StrEnum


class R(StrEnum):
    """State of a replica."""

    LOAD_REQUESTED = "LoadRequested"
    LOADING = "Loading"
    LOAD_FAILED = "LoadFailed"
    LOADED = "Loaded"
    AVAILABLE = "Available"
    UNROUTE_REQUESTED = "UnrouteRequested"
    UNLOAD_REQUESTED = "UnloadRequested"
    UNLOADING = "Unloading"
    UNLOAD_FAILED = "UnloadFailed"
    UNLOADED = "Unloaded"
    LOST = "Lost"


TRANSITIONS: dict[R, frozenset[R]] = {
    # A report of the end implies the beginning: LoadRequested may go straight to Loaded.
    R.LOAD_REQUESTED: frozenset({R.LOADING, R.LOADED, R.LOAD_FAILED, R.UNLOAD_REQUESTED}),
    R.LOADING: frozenset({R.LOADED, R.LOAD_FAILED, R.UNLOAD_REQUESTED}),
    R.LOAD_FAILED: frozenset({R.LOAD_REQUESTED, R.UNLOAD_REQUESTED}),
    R.LOADED: frozenset({R.AVAILABLE, R.UNLOAD_REQUESTED}),
    R.AVAILABLE: frozenset({R.UNROUTE_REQUESTED}),
    R.UNROUTE_REQUESTED: frozenset({R.UNLOAD_REQUESTED}),
    R.UNLOAD_REQUESTED: frozenset({R.UNLOADING, R.UNLOADED, R.UNLOAD_FAILED}),
    R.UNLOADING: frozenset({R.UNLOADED, R.UNLOAD_FAILED}),
    R.UNLOAD_FAILED: frozenset({R.UNLOAD_REQUESTED}),
    R.UNLOADED: frozenset(),
    R.LOST: frozenset({R.LOADED, R.UNLOADED, R.LOAD_REQUESTED}),
}
"""State → the states that may follow. Besides, any state but Unloaded may become Lost."""

STATES = {state.value: state for state in R}
"""Name → state."""

LIVE = frozenset({R.LOAD_REQUESTED, R.LOADING, R.LOAD_FAILED, R.LOADED, R.AVAILABLE})
"""States that count towards the number of replicas wanted."""

ARRIVING = frozenset({R.LOAD_REQUESTED, R.LOADING})
"""A load command is outstanding."""

ON_ITS_WAY = frozenset({R.LOAD_REQUESTED, R.LOADING, R.LOAD_FAILED})
"""Not in the server yet, and to be: called off when the server drains."""

LEAVING = frozenset({R.UNLOAD_REQUESTED, R.UNLOADING})
"""An unload command is outstanding."""


def is_legal(before: R, after: R) -> bool:
    """Return whether a replica may go from ``before`` to ``after``."""
    return after in TRANSITIONS[before] or (after is R.LOST and before not in (R.LOST, R.UNLOADED))
