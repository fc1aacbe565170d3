"""Every metric, defined once. No label names a model or an instance: their number does not grow with the fleet."""

from prometheus_client import Counter, Gauge, Histogram

_FAST = (1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 0.1, 1)
_SLOW = (0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900, 1800)

LEADER = Gauge("magnetar_leader", "1 while this process leads.")
TERM = Gauge("magnetar_term", "Newest term seen.")
LOG_POSITION = Gauge("magnetar_log_position", "Position of the last entry folded.")
LOG_BROKEN = Counter(
    "magnetar_log_broken_total", "Places met at which the log cannot be followed: hole, fork, replaced, …", ["kind"]
)
INPUT_LAG = Gauge("magnetar_input_lag", "Seconds between an input's publish time and its handling.", ["topic"])
DECIDE_SECONDS = Histogram("magnetar_decide_seconds", "Time of decide for one input.", buckets=_FAST)
DECISIONS = Counter("magnetar_decisions_total", "Inputs decided.", ["outcome", "reason"])
REPLICAS = Gauge("magnetar_replicas", "Replicas by state.", ["state"])
UNRETURNED = Gauge(
    "magnetar_unreturned_memory_bytes",
    "Memory of unloaded replicas that no device shows yet, and is reserved.",
    ["state"],
)
ILLEGAL_FACTS = Gauge("magnetar_illegal_facts", "Facts in the log that the transition table forbids.")

READER_REOPENED = Counter("magnetar_reader_reopened_total", "Readers opened anew.", ["topic", "reason"])
READER_PROGRESS = Gauge(
    "magnetar_reader_seconds_since_progress",
    "Seconds since a message came or the broker said that there was none.",
    ["topic"],
)

LEASE_AGE = Gauge("magnetar_lease_age_seconds", "Silence of the instance that was not heard for longest.")
SUSPECTED = Gauge("magnetar_leases_suspected", "Instances silent for longer than their lease and not evicted yet.")
HOLDING = Gauge("magnetar_leases_holding", "1 while something keeps suspicions from being acted on.")
RETIRED = Counter("magnetar_retired_total", "Records that the registry service retired.", ["how"])

LOAD_SECONDS = Histogram("magnetar_load_seconds", "Duration of a load by phase.", ["phase"], buckets=_SLOW)
REPORTS_WAITING = Gauge("magnetar_reports_waiting", "An agent's reports that the broker has not stored yet.")
REPORTS_DROPPED = Counter(
    "magnetar_reports_dropped_total", "An agent's reports dropped at the limit of those that wait."
)
DEVICE_MEMORY = Gauge("magnetar_device_memory_bytes", "Memory of a device by kind.", ["device", "kind"])

SNAPSHOT_POSITION = Gauge("magnetar_snapshot_position", "Position of the last snapshot written.")
SNAPSHOT_TIME = Gauge("magnetar_snapshot_timestamp_seconds", "Unix time at which the last snapshot was written.")
SNAPSHOT_FAILURES = Counter("magnetar_snapshot_failures_total", "Snapshots that could not be written.")
SNAPSHOTS_IGNORED = Counter("magnetar_snapshots_ignored_total", "Snapshots found and not used: damaged, or not ours.")
START_ENTRIES = Gauge("magnetar_start_entries", "Entries of the log that were folded to start.")

PROJECTOR_LAG = Gauge("magnetar_projector_lag", "Seconds the read model is behind the log.")

BEACONS = Counter("magnetar_beacon_publishes_total", "Heartbeats and probes published.", ["outcome"])
CALLBACK_FAILURES = Counter("magnetar_callback_failures_total", "Exceptions of callbacks, logged.", ["where"])
EFFECTS = Counter("magnetar_effects_total", "Commands and routes sent by the leader.", ["outcome"])
