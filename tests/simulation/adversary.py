"""The seeded adversary: users who want this and that, and everything that may go wrong, at random moments."""

from collections import Counter
from collections.abc import Callable
from random import Random

from magnetar_common.topics import (
    AGENT_EVENTS,
    COMMANDS,
    MODEL_EVENTS,
    ROUTES,
    SERVICE_REGISTRY,
    STATE_CHANGES,
    commands_topic,
)
from magnetar_events import ModelEvent
from magnetar_events.models import ModelSpec
from magnetar_events.policy import Policy
from magnetar_events.requests import (
    CordonServer,
    DeleteTenant,
    DeployModel,
    DrainServer,
    FreezeModel,
    RequestKind,
    ResumeServer,
    RollbackModel,
    ScaleModel,
    SetPolicy,
    SetTenant,
    UndeployModel,
    UnfreezeModel,
)
from magnetar_events.tenants import Tenant
from tests.simulation.bus import SimBus
from tests.simulation.cluster import Cluster, Service
from tests.simulation.endpoints import SimProducer
from tests.simulation.invariants import Checker
from tests.simulation.runtime import Process
from tests.simulation.servers import MIB

MODELS = 6
"""Models that users fight over."""

POLICY = {
    "heartbeat_ms": 3_000,
    "lease_ms": 9_000,
    "reading_stale_ms": 6_000,
    "hold_ms": 12_000,
    "evictions_per_minute": 10,
    "load_retry_ms": 500,
    "unload_timeout_ms": 8_000,
    "unload_grace_ms": 300,
    "delete_deadline_ms": 25_000,
    "resend_ms": 2_500,
    "forget_server_ms": 60_000,
    "memory_return_ms": 8_000,
}
"""The rules in a run: the shipped ones, in a hurry."""

TENANTS = ("default", "other")
"""Whose models these are, in turn."""

TENANT_WISHES = 4
"""How often a tenant is set or deleted in a run."""

CHOICES: dict[str, tuple[int, ...]] = {
    "piece": (1, 2, 100),
    "load_servers": (2, 3),
    "load_timeout_ms": (5_000, 15_000),
    "rollout_unavailable": (0, 0, 1),
    "reserve_after_ms": (10_000, 20_000, 600_000),
}
"""What differs from run to run."""


class Adversary:
    """Makes trouble for a while.

    Args:
        cluster: whom to trouble.
        checker: knows who leads.
        seed: of the run.

    Attributes:
        faults: fault → how often it was injected.
    """

    def __init__(self, cluster: Cluster, checker: Checker, seed: str) -> None:
        self.cluster = cluster
        self.checker = checker
        self.hub = cluster.hub
        self.random = Random(f"{seed}/adversary")
        self.governor = Random(f"{seed}/tenants")  # of its own, so that the rest of a seed is what it was
        self.faults: Counter[str] = Counter()
        self._number = 0
        self._until = 0.0
        self._frozen: dict[str, None] = {}

    def begin(self, *, wishes: int, faults: int, seconds: float) -> None:
        """Spread so many wishes and faults over a time (virtual seconds)."""
        self._until = self.hub.now + seconds
        self.ask(SetPolicy(policy=self._policy()), repeat=False)
        for _ in range(wishes):
            self.hub.after(1.0 + self.random.random() ** 1.5 * (seconds - 1.0), self._wish)
        for _ in range(TENANT_WISHES):
            self.hub.after(self.governor.uniform(1.0, seconds), self._govern)
        kinds, weights = zip(*((kind, weight) for kind, (weight, _) in _FAULTS.items()), strict=True)
        # Each seed has its own mixture: some see much of one fault, and nothing of another.
        weights = [weight * self.random.random() ** 2 for weight in weights]
        for kind in self.random.choices(kinds, weights, k=faults):
            self.hub.after(self.random.uniform(3.0, seconds), self._inject, kind)

    def _policy(self) -> Policy:
        choices = {name: self.random.choice(values) for name, values in CHOICES.items()}
        return Policy(**{**POLICY, **choices, "preemption": self.governor.choice(("never", "lower-priority"))})  # type: ignore[arg-type]

    # --- users ----------------------------------------------------------------------------------------------------------

    def ask(self, wish: RequestKind, *, repeat: bool, **fields: object) -> None:
        """Ask for something as one of the users."""
        self._number += 1
        user = self.random.choice(self.cluster.users)
        event = ModelEvent(id=f"r{self._number}", source=user.name, time=0, event=wish, **fields)  # type: ignore[arg-type]
        user.ask(event, repeat=repeat)

    def _govern(self) -> None:
        """Give a tenant other limits, or none."""
        random, name = self.governor, self.governor.choice(TENANTS)
        if random.random() < 0.2:
            self.ask(DeleteTenant(name=name), repeat=False)
            return
        floor, cap = random.choice((0, 1, 2)), random.choice((0, 2, 3, 5))
        tenant = Tenant(
            name=name,
            floor_replicas=min(floor, cap) if cap else floor,
            cap_replicas=cap,
            cap_bytes=random.choice((0, 0, 500, 900)) * MIB,
            over_cap=random.choice(("wait", "wait", "refuse")),
        )
        self.ask(SetTenant(tenant=tenant), repeat=random.random() < 0.15)

    def _wish(self) -> None:
        pick, name = self.random.random(), f"m{self.random.randrange(MODELS)}"
        if pick < 0.56:
            wish: RequestKind = DeployModel(model=self._spec(name))
        elif pick < 0.64:
            old = self._spec(name) if self.random.random() < 0.5 else None
            to = self.random.choice((1, 1, 2, 2, 3, 4))
            wish = RollbackModel(name=name, tenant=_tenant_of(name), to=to, model=old)
        elif pick < 0.68:
            wish = FreezeModel(name=name, tenant=_tenant_of(name))
            self._frozen[name] = None
            self.hub.after(self._seconds(1.0, 40.0), self._unfreeze, name)
        elif pick < 0.8:
            now = self.random.random() < 0.2
            wish = ScaleModel(name=name, tenant=_tenant_of(name), replicas=self.random.choice((0, 1, 1, 2, 3)), now=now)
        elif pick < 0.97:
            wish = UndeployModel(name=name, tenant=_tenant_of(name))
        else:
            wish = SetPolicy(policy=self._policy())
        self.ask(wish, repeat=self.random.random() < 0.15)

    def _unfreeze(self, name: str) -> None:
        self.ask(UnfreezeModel(name=name, tenant=_tenant_of(name)), repeat=False)

    def _spec(self, name: str) -> ModelSpec:
        version = self.random.choice("aaabbc")
        artifact = f"file:///models/{name}-{version}"
        if self.random.random() < 0.04:
            artifact += "-missing"
        return ModelSpec(
            name=name,
            tenant=_tenant_of(name),
            priority=int(name[1:]) % 3,
            storage_uri=artifact,
            requirements=("sklearn",),
            memory=self.random.choice((100, 150, 250, 400, 600)) * MIB,
            devices=self.random.choice((0, 1)),
            replicas=self.random.choice((1, 1, 2, 3)),
        )

    # --- faults ---------------------------------------------------------------------------------------------------------

    def _inject(self, kind: str) -> None:
        self.faults[kind] += 1
        self.hub.note("adversary", kind)
        _FAULTS[kind][1](self)

    def heal(self) -> None:
        """End whatever is wrong: from here on nothing happens that the cluster does not do itself."""
        cluster = self.cluster
        self.hub.note("adversary", "all is well from here on")
        cluster.broker.slow_s = 0.0
        cluster.store.away = False
        for service in cluster.services.values():
            process = service.process
            if process.frozen:
                process.thaw()
            process.crash_at = 0
            for bus in process.connections:
                if bus.cut:
                    self._mend(bus, process)
        for server in cluster.servers.values():
            server.busy, server.trouble, server.slowness = False, 0.0, 1.0
            if not server.up:
                server.boot()
        for name in self._frozen:
            self._unfreeze(name)

    def _seconds(self, low: float, high: float) -> float:
        """Return a duration that ends with the chaos; short ones are more frequent."""
        return max(0.05, min(low + (high - low) * self.random.random() ** 2, self._until - self.hub.now))

    def _leading(self) -> Service | None:
        leader = self.checker.leader()
        for process, known in self.checker.leaders.items():
            if known is leader and process.alive:
                return self.cluster.service_of(process)
        return None

    def _any(self) -> Service:
        return self.random.choice([s for s in self.cluster.services.values() if s.process.alive] or [self._agent()])

    def _agent(self) -> Service:
        return self.random.choice(self.cluster.agents)

    def _crash_leader(self) -> None:
        self._crash(self._leading() or self.cluster.schedulers[0])

    def _crash_any(self) -> None:
        self._crash(self._any())

    def _crash_agent(self) -> None:
        self._crash(self._agent())

    def _crash(self, service: Service) -> None:
        """Kill at one of the next steps: anywhere in its code."""
        service.process.crash_at = service.process.steps + self.random.randint(1, 150)

    def _crash_busy_leader(self) -> None:
        """Kill the leader while the broker stores slowly and users ask a lot: with a full pipeline."""
        self.cluster.broker.slow_s = 2.5
        self.hub.after(self._seconds(2.0, 6.0), self._fast_broker)
        for _ in range(self.random.randint(2, 5)):
            self._wish()
        leader = self._leading()
        if leader is not None:
            self._kill_when_full(leader.process, self.hub.now + 4.0)

    def _kill_when_full(self, process: Process, until: float) -> None:
        if self.cluster.broker.topic(STATE_CHANGES.name).pending:
            self.hub.after(self.random.uniform(0.0, 0.3), process.kill)
        elif self.hub.now < until:
            self.hub.after(0.02, self._kill_when_full, process, until)

    def _freeze_leader(self) -> None:
        """Stop the leader for longer than the keep-alive: another takes over, and then it goes on."""
        leader = self._leading()
        if leader is not None:
            self._freeze(leader, self._seconds(8.0, 20.0))

    def _freeze_any(self) -> None:
        self._freeze(self._any(), self._seconds(0.2, 15.0))

    def _freeze(self, service: Service, seconds: float) -> None:
        process = service.process
        process.freeze()
        self.hub.after(seconds, process.thaw)

    def _cut_leader(self) -> None:
        leader = self._leading()
        if leader is not None:
            self._cut(leader, self._seconds(2.0, 20.0))

    def _trap_leader(self) -> None:
        """Cut the leader off, or stop it, at the very moment when it sends one of its next commands."""
        leader, sent = self._leading(), self.random.randint(1, 6)
        if leader is None:
            return
        process, broker = leader.process, self.cluster.broker
        freeze = self.random.random() < 0.3
        left = [sent]

        def spring(producer: SimProducer, sending: object) -> None:
            if producer.bus.process is not process or not producer.topic.startswith(COMMANDS.name):
                return
            left[0] -= 1
            if left[0] == 0:
                broker.on_sent.remove(spring)
                if freeze:
                    self._freeze(leader, self.random.uniform(6.0, 15.0))
                else:
                    # Long enough for a successor, and not for the client to give up what it has to send.
                    self._cut_off(process, process.connections, self.random.uniform(7.0, 9.7), noticed=False)

        broker.on_sent.append(spring)
        self._wish()

    def _cut_any(self) -> None:
        self._cut(self._any(), self._seconds(0.2, 20.0))

    def _cut(self, service: Service, seconds: float) -> None:
        """Cut a process off the broker: all of its connections, or one."""
        process, noticed = service.process, self.random.random() < 0.4
        buses = [bus for bus in process.connections if not bus.cut]
        if buses and self.random.random() < 0.3:
            buses = [self.random.choice(buses)]
        self._cut_off(process, buses, seconds, noticed=noticed)

    def _cut_off(self, process: Process, buses: list[SimBus], seconds: float, *, noticed: bool) -> None:
        process.troubled = self.hub.now
        for bus in buses:
            bus.sever(noticed=noticed)
            self.hub.after(seconds, self._mend, bus, process)

    def _mend(self, bus: SimBus, process: Process) -> None:
        if bus.cut:
            bus.heal()
            process.troubled = self.hub.now

    def _late_goodbye(self) -> None:
        """An agent ends in order, and its goodbye is heard only after its successor has joined."""
        agent = self._agent()
        process = agent.process
        if process.alive and not process.frozen and agent.life is not None:
            buses = [bus for bus in process.connections if not bus.cut]
            self._cut_off(process, buses, self.random.uniform(5.5, 14.0), noticed=False)
            agent.stop()

    def _restart_agent(self) -> None:
        self._agent().stop()

    def _retire_agent(self) -> None:
        """An agent does not come back for a long time, or never."""
        agent = self._agent()
        if sum(other.wanted for other in self.cluster.agents) <= 2:
            return
        agent.wanted = False
        if self.random.random() < 0.5:
            agent.process.kill()
        else:
            agent.stop()
        if self.random.random() < 0.5:
            self.hub.after(self._seconds(5.0, 60.0), self._hire, agent)

    def _terminate_agent(self) -> None:
        """An agent is told to end, and drains first."""
        self._agent().terminate()

    def _order_for_server(self) -> None:
        """An operator drains or cordons a server; mostly that is taken back later."""
        key = f"{self.random.choice(sorted(self.cluster.servers))}/0"
        deadline = self.random.choice((1_000, 5_000, 20_000))
        drain = self.random.random() < 0.7
        self.ask(DrainServer(server=key, deadline_ms=deadline) if drain else CordonServer(server=key), repeat=False)
        if self.random.random() < 0.7:
            self.hub.after(self._seconds(1.0, 25.0), lambda: self.ask(ResumeServer(server=key), repeat=False))

    def _order_for_two(self) -> None:
        """Two servers drain at once."""
        self._order_for_server()
        self._order_for_server()

    def _hire(self, agent: Service) -> None:
        agent.wanted = True
        if not agent.process.alive:
            agent.start()

    def _outage(self) -> None:
        if self.cluster.broker.reachable:
            self.cluster.broker.outage(self._seconds(3.0, 30.0))

    def _crash_broker(self) -> None:
        if self.cluster.broker.reachable:
            self.cluster.broker.crash(self._seconds(0.5, 8.0))

    def _unload(self) -> None:
        names = [STATE_CHANGES.name, MODEL_EVENTS.name, AGENT_EVENTS.name, SERVICE_REGISTRY.name, ROUTES.name]
        names.append(commands_topic(self.random.choice(sorted(self.cluster.servers)), 0))
        self.cluster.broker.unload(self.random.choice(names))

    def _compact(self) -> None:
        for name in self.random.choice(
            ((SERVICE_REGISTRY.name,), (ROUTES.name,), (SERVICE_REGISTRY.name, ROUTES.name))
        ):
            self.cluster.broker.compact(name)

    def _slow_broker(self) -> None:
        self.cluster.broker.slow_s = self.random.choice((0.05, 0.3, 1.5))
        self.hub.after(self._seconds(0.5, 8.0), self._fast_broker)

    def _fast_broker(self) -> None:
        self.cluster.broker.slow_s = 0.0

    def _stall_reader(self) -> None:
        """Somebody hears nothing of one topic for a while."""
        cursors = [cursor for topic in self.cluster.broker.topics.values() for cursor in topic.cursors]
        if cursors:
            cursor = self.random.choice(cursors)
            cursor.session.bus.process.troubled = self.hub.now
            self.cluster.broker.stall(cursor, self._seconds(0.5, 12.0))

    def _skew(self) -> None:
        service = self._any()
        service.skew = self.random.choice((-3600.0, -60.0, 0.0, 45.0, 3600.0))
        service.process.skew = service.skew

    def _kill_server(self) -> None:
        server = self.random.choice(list(self.cluster.servers.values()))
        if server.up:
            server.die()
            self.hub.after(self._seconds(0.3, 10.0), server.boot)

    def _drop_model(self) -> None:
        server = self.random.choice(list(self.cluster.servers.values()))
        if server.ready():
            server.drop(self.random.choice(server.ready()))

    def _busy_server(self) -> None:
        server = self.random.choice(list(self.cluster.servers.values()))
        server.busy = True
        self.hub.after(self._seconds(1.0, 12.0), lambda: setattr(server, "busy", False))

    def _troubled_server(self) -> None:
        server = self.random.choice(list(self.cluster.servers.values()))
        server.trouble, server.slowness = self.random.choice((0.0, 0.5, 0.9)), self.random.choice((1.0, 4.0, 12.0))
        self.hub.after(
            self._seconds(2.0, 25.0), lambda: (setattr(server, "trouble", 0.0), setattr(server, "slowness", 1.0))
        )

    def _change_artifact(self) -> None:
        uri = f"file:///models/m{self.random.randrange(MODELS)}-a"
        self.cluster.store.versions[uri] = self.cluster.store.versions.get(uri, 0) + 1

    def _store_away(self) -> None:
        store = self.cluster.store
        store.away = True
        self.hub.after(self._seconds(1.0, 10.0), lambda: setattr(store, "away", False))


def _tenant_of(name: str) -> str:
    return TENANTS[int(name[1:]) % len(TENANTS)]


_FAULTS: dict[str, tuple[float, Callable[[Adversary], None]]] = {
    "crash the leader": (3.0, Adversary._crash_leader),
    "crash the leader with a full pipeline": (3.0, Adversary._crash_busy_leader),
    "crash an agent": (2.0, Adversary._crash_agent),
    "crash anything": (1.5, Adversary._crash_any),
    "freeze the leader": (2.0, Adversary._freeze_leader),
    "freeze anything": (1.5, Adversary._freeze_any),
    "cut off the leader": (2.0, Adversary._cut_leader),
    "trap the leader in the middle of sending": (2.0, Adversary._trap_leader),
    "cut off anything": (1.5, Adversary._cut_any),
    "late goodbye": (1.5, Adversary._late_goodbye),
    "restart an agent": (1.0, Adversary._restart_agent),
    "retire an agent": (1.6, Adversary._retire_agent),
    "broker out of reach": (1.0, Adversary._outage),
    "crash the broker": (0.8, Adversary._crash_broker),
    "unload a topic": (1.0, Adversary._unload),
    "compact": (1.0, Adversary._compact),
    "slow broker": (1.0, Adversary._slow_broker),
    "stall a reader": (1.5, Adversary._stall_reader),
    "skew a clock": (1.0, Adversary._skew),
    "kill a server": (1.0, Adversary._kill_server),
    "drop a model": (1.0, Adversary._drop_model),
    "busy server": (0.6, Adversary._busy_server),
    "troubled server": (1.0, Adversary._troubled_server),
    "change an artifact": (0.4, Adversary._change_artifact),
    "store away": (0.5, Adversary._store_away),
    "terminate an agent": (1.5, Adversary._terminate_agent),
    "drain or cordon a server": (1.5, Adversary._order_for_server),
    "drain or cordon two servers": (0.8, Adversary._order_for_two),
}
"""Fault → (weight, what it does)."""
