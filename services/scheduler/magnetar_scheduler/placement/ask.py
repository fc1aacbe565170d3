"""What is asked for: one more replica of a version, as things stand after a draft's facts."""

from collections.abc import Iterator

from magnetar_common.fleet import Zone
from magnetar_common.state import Model, Version
from magnetar_common.transitions import LIVE
from magnetar_scheduler.draft import Draft
from magnetar_scheduler.kept import Kept, kept_from

SPREAD = 2
"""Fold version since which replicas keep apart by host and zone; a log of version 1 is decided as it was."""


class Ask:
    """One more replica.

    Args:
        draft: what is decided already.
        model: the draft's copy of it.
        version: of it.

    Attributes:
        spec: what is wanted.
        size: bytes that it is known to need on each device.
        count: devices that it spans; host memory is one.
        hosts: host → replicas of the version there that count.
        zones: zone → the same.
        apart: no host of these may be taken.
        cached: servers that have the artifact, as far as is known: those that hold another version of it, and the few
            that the model remembers.
        kept: what is kept from it for others.
        told: what a filter that turns every server down says instead of its rule's sentence.
    """

    __slots__ = (
        "apart",
        "cached",
        "count",
        "draft",
        "hosts",
        "kept",
        "model",
        "policy",
        "size",
        "spec",
        "told",
        "version",
        "zones",
    )

    def __init__(self, draft: Draft, model: Model, version: Version) -> None:
        self.draft = draft
        self.model = model
        self.version = version
        self.policy = draft.policy
        self.spec = version.spec
        self.size = version.size
        self.count = version.spec.devices or 1
        self.hosts: dict[str, int] = {}
        self.zones: dict[Zone, int] = {}
        if model.replicas and draft.state.version >= SPREAD:
            self._keep_apart()
        self.apart = bool(self.hosts) and self.policy.anti_affinity != "server"
        self.kept: Kept = kept_from(draft, model, version)
        self.told = ""
        self.cached = dict.fromkeys(self._holders()) if version.digest else {}

    def _keep_apart(self) -> None:
        """Count the replicas that are to stay, by host and by zone."""
        servers, generation, hosts, zones = self.draft.state.servers, self.version.generation, self.hosts, self.zones
        for replica in self.model.replicas.values():
            if replica.generation == generation and replica.state in LIVE and not replica.draining:
                info = servers[replica.server].info
                hosts[info.host] = hosts.get(info.host, 0) + 1
                zone = info.region, info.zone
                zones[zone] = zones.get(zone, 0) + 1

    def _holders(self) -> Iterator[str]:
        digest = self.version.digest
        for replica in self.model.replicas.values():
            if replica.digest == digest and replica.generation != self.version.generation:
                yield replica.server
        for server, held in self.model.held.items():
            if held == digest and server in self.draft.state.servers:
                yield server

    @property
    def alone(self) -> bool:
        """Whether nothing of the model's own and nothing of this draft's can stand in its way."""
        draft, version = self.draft, self.version
        return not (draft.placed or draft.loading or version.places or any(self.model.of(version.generation)))
