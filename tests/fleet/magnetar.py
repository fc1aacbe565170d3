"""Magnetar as the policy: the real ``decide`` and ``evolve``, driven as the leader's loop drives them."""

from collections.abc import Iterable

from magnetar_common.evolve import fold
from magnetar_common.state import ReplicaKey, State
from magnetar_events import AgentEvent, ModelEvent, ServiceRecord
from magnetar_events import facts as f
from magnetar_events import reports as r
from magnetar_events.entry import Entry, Input
from magnetar_events.models import ModelSpec, index_digest, served_name
from magnetar_events.records import Address, Device, RuntimeInfo, ServerInfo
from magnetar_events.requests import DeployModel, UndeployModel
from magnetar_scheduler import inputs as i
from magnetar_scheduler.decide import decide
from magnetar_scheduler.pending import more_to_try, tries
from magnetar_scheduler.servers import news
from tests.fleet.stream import MINUTE, Kind, Wish
from tests.fleet.world import Machine, World

_INPUT = Input("fleet")

RETRY_MS = MINUTE
"""What waits for room is tried again at most so often. The leader does so at each change of room; here it would take most of
the time, as each try of a model that fits nowhere looks at every server."""

SUM = "sum"


class Magnetar:
    """The core under a stream.

    Args:
        world: whom it commands.
        sums: it is told of each server only the sum over its devices, as one device, and of each model the sum of what it
            needs: the same core in every other respect. For comparison.
    """

    def __init__(self, world: World, *, sums: bool = False) -> None:
        self.state = State()
        self.decisions = 0
        self._world = world
        self._sums = sums
        self._records: dict[str, ServiceRecord] = {}
        self._machines = {f"local/{machine.name}/0": machine for machine in world.machines}
        self._number = 0
        self._asked: list[str] = []
        self._tried_room = self._trying_room = -1
        self._skip = 0
        self._stuck_at = -2
        self._next_try = 0
        self._decide(i.Elected(f.LeaderElected(1, "fleet", "local", "none", "0")))

    # --- what the world says ------------------------------------------------------------------------------------------

    def want(self, wish: Wish, generation: int) -> None:
        event = DeployModel(model=self._spec(wish, generation))
        self._feed(i.Request(ModelEvent(id=f"{wish.name}/{generation}", source="fleet", time=0, event=event)))

    def withdraw(self, wish: Wish) -> None:
        event = UndeployModel(name=wish.name)
        self._feed(i.Request(ModelEvent(id=f"{wish.name}/gone", source="fleet", time=0, event=event)))

    def joined(self, machine: Machine) -> None:
        record = self._records[machine.name] = self._record(machine)
        self._feed(i.RegistryChanged(record.instance_id, record))

    def lost(self, machine: Machine) -> None:
        self._feed(i.LeaseLapsed(f"local/{machine.name}/0", str(machine.life)))

    def heard(self, machine: Machine) -> None:
        record = self._records[machine.name]
        assert record.server is not None
        read = {"devices": self._devices(machine), "digest": self._digest(machine), "loads": len(machine.doing)}
        record = record.model_copy(update={"server": record.server.model_copy(update=read)})
        self._records[machine.name] = record
        kind = news(self.state, record)
        if kind:
            source = i.ReadingChanged(record) if kind == "reading" else i.RegistryChanged(record.instance_id, record)
            self._feed(source)

    def loaded(self, machine: Machine, wish: Wish, generation: int) -> None:
        on = machine.held[wish.name, generation]
        uuids = [SUM] if self._sums else [str(n) for n in on]
        used = wish.used * (wish.devices if self._sums else 1)
        memory = tuple(r.DeviceMemory(device=uuid, measured=used) for uuid in uuids)
        self._answer(machine, r.ModelLoaded(**self._of(machine, wish, generation), memory=memory))

    def load_failed(self, machine: Machine, wish: Wish, generation: int, *, memory: bool) -> None:
        code = "LOAD_FAIL_MEMORY" if memory else "LOAD_FAILED"
        of = self._of(machine, wish, generation)
        self._answer(machine, r.ModelLoadFailed(**of, code=code, retriable=True, message="out of memory" * memory))

    def unloaded(self, machine: Machine, wish: Wish, generation: int) -> None:
        free = tuple(
            r.DeviceFree(device=device.uuid, free=device.free) for device in self._devices(machine, machine.before)
        )
        self._answer(machine, r.ModelUnloaded(**self._of(machine, wish, generation), free=free))

    def next_due(self) -> int:
        return self.state.next_due()

    def due(self) -> None:
        if not self._feed(i.TimerDue()):
            raise AssertionError(f"a timer is due at {self.state.next_due()} and nothing follows from it")

    # --- the leader's loop --------------------------------------------------------------------------------------------

    def _feed(self, source: i.Decidable) -> bool:
        """Decide one input, and all that is pending after it, as the leader does before it is idle."""
        decided = self._decide(source)
        while self._has_work():
            self._continue()
        while self._asked:
            self._inventory(self._machines[self._asked.pop(0)])
        return decided

    def _has_work(self) -> bool:
        state = self.state
        if state.position == self._stuck_at:
            return False
        if state.unsettled or state.revivable():
            return True
        return bool(state.waiting) and state.room != self._tried_room and self._world.at >= self._next_try

    def _continue(self) -> None:
        room = self.state.room
        if room != self._trying_room:
            self._trying_room, self._skip = room, 0
        if self._decide(i.Continue(self._skip)):
            return
        self._skip += tries(self.state)
        if not more_to_try(self.state, self._skip):
            self._tried_room, self._skip, self._stuck_at = room, 0, self.state.position
            self._next_try = self._world.at + RETRY_MS

    def _decide(self, source: i.Decidable) -> bool:
        state, at = self.state, self._world.at
        self.decisions += 1
        facts = decide(state, source, at)
        if not facts:
            return False
        position = state.position + 1
        fold(state, Entry(str(position), position, 1, at, at, state.version, _INPUT, state.handled, tuple(facts)))
        touched: dict[ReplicaKey, None] = {}
        for fact in facts:
            if isinstance(fact, (f.ReplicaPlaced, f.ReplicaChanged)):
                touched[ReplicaKey(fact.model, fact.generation, fact.server)] = None
            elif isinstance(fact, (f.InventoryRequested, f.ServerJoined, f.ServerReturned)):
                self._asked.append(fact.server)
        for key in touched:
            self._command(key)
        return True

    def _command(self, key: ReplicaKey) -> None:
        replica = self.state.outstanding.get(key)
        if replica is None or replica.position != self.state.position:
            return
        machine, wish = self._machines[key.server], self._world.wishes[key.model.partition("/")[2]]
        if self.state.command_of(replica) == "UnloadModel":
            self._world.unload(machine, wish, key.generation)
        else:
            devices = None if self._sums else tuple(int(booking.device) for booking in replica.bookings)
            self._world.load(machine, wish, key.generation, devices)

    # --- what agents say ----------------------------------------------------------------------------------------------

    def _of(self, machine: Machine, wish: Wish, generation: int) -> dict[str, object]:
        model = self.state.models.get(f"default/{wish.name}")
        replica = model.replicas.get((generation, f"local/{machine.name}/0")) if model else None
        position = replica.position if replica else 0
        return {"model": f"default/{wish.name}", "generation": generation, "position": position}

    def _answer(self, machine: Machine, report: r.ReportKind) -> None:
        self._number += 1
        event = AgentEvent(
            server=machine.name, incarnation=str(machine.life), number=self._number, time=0, report=report
        )
        self._feed(i.Report(event))

    def _inventory(self, machine: Machine) -> None:
        if not machine.alive:
            return
        versions = {**machine.ready, **machine.doing}
        models = tuple(
            r.InventoryModel(
                model=f"default/{n}", generation=g, ready=(n, g) in machine.ready, busy=(n, g) in machine.doing
            )
            for n, g in versions
        )
        self._answer(machine, r.InventoryReported(models=models, digest=self._digest(machine)))

    def _digest(self, machine: Machine) -> str:
        return index_digest(served_name(f"default/{n}", g) for n, g in machine.ready if (n, g) not in machine.doing)

    # --- records and specifications -----------------------------------------------------------------------------------

    def _record(self, machine: Machine) -> ServiceRecord:
        return ServiceRecord(
            service_name="agent",
            instance_id=f"{machine.name}/0/{machine.life}",
            address=Address(host="127.0.0.1", port=1),
            status="UP",
            timestamp=0,
            server=ServerInfo(
                host=machine.name,
                server=machine.name,
                incarnation=str(machine.life),
                http_port=1,
                runtime=RuntimeInfo(kind="vllm"),
                capabilities=_capabilities(machine.kind),
                devices=self._devices(machine),
                digest=self._digest(machine),
            ),
        )

    def _devices(self, machine: Machine, free: Iterable[int] = ()) -> tuple[Device, ...]:
        total, free = machine.kind.memory, free or machine.free
        if self._sums:
            return (_device(SUM, machine.kind.gpu_type, machine.kind.devices * total, sum(free)),)
        return tuple(_device(str(n), machine.kind.gpu_type, total, each) for n, each in enumerate(free))

    def _spec(self, wish: Wish, generation: int) -> ModelSpec:
        needs = {"devices": wish.devices, "memory": wish.memory, "gpu_types": wish.gpu_types}
        if self._sums:
            # Nor is it sent where it could not run even alone: whoever places so says by labels what a model needs.
            could = {kind.gpu_type for kind in self._world.stream.servers if kind.memory >= wish.memory}
            needs = {
                "devices": 1,
                "memory": wish.devices * wish.memory,
                "gpu_types": wish.gpu_types or tuple(sorted(could)),
                "requirements": (f"gpus-{wish.devices}",),
            }
        uri = f"file:///models/{wish.name}/{generation}"
        return ModelSpec(name=wish.name, storage_uri=uri, replicas=wish.replicas, **needs)  # type: ignore[arg-type]


def _capabilities(kind: Kind) -> tuple[str, ...]:
    return tuple(f"gpus-{n}" for n in (1, 2, 4, 8) if n <= kind.devices)


def _device(uuid: str, gpu_type: str, total: int, free: int) -> Device:
    return Device.model_construct(
        uuid=uuid, kind="gpu", gpu_type=gpu_type, parent="", total=total, free=free, largest_free=free,
        utilisation=0.3, error="",
    )  # fmt: skip
