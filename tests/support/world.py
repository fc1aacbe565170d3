"""The core without a broker: feed inputs to ``decide``, append entries to a list, fold them, and answer like agents."""

import copy
from itertools import count
from typing import Any

from magnetar_common.evolve import fold
from magnetar_common.state import ReplicaKey, State
from magnetar_common.transitions import R
from magnetar_events import AGENT_EVENT, ENTRY, MODEL_EVENT, AgentEvent, ModelEvent, ServiceRecord, versions
from magnetar_events import facts as f
from magnetar_events import reports as r
from magnetar_events.entry import FOLD_VERSION, Entry, Input
from magnetar_events.models import ModelSpec, index_digest, served_name
from magnetar_events.policy import Policy
from magnetar_events.records import Address, Device, RuntimeInfo, ServerInfo
from magnetar_events.requests import (
    CordonServer,
    DeleteTenant,
    DeployModel,
    DrainServer,
    FinalizeUpgrade,
    FreezeModel,
    ResumeServer,
    RollbackModel,
    ScaleModel,
    SetPolicy,
    SetTenant,
    UndeployModel,
    UnfreezeModel,
)
from magnetar_events.tenants import Tenant
from magnetar_scheduler import inputs as i
from magnetar_scheduler.decide import decide
from magnetar_scheduler.journal import from_record, make_entry

MIB = 2**20


def spec(name: str = "iris", **fields: object) -> ModelSpec:
    values: dict[str, object] = {
        "storage_uri": "file:///models/iris",
        "requirements": ("sklearn",),
        "memory": 100 * MIB,
    }
    return ModelSpec(name=name, **{**values, **fields})  # type: ignore[arg-type]


def record(
    server: str = "a",
    *,
    incarnation: str = "one",
    replica: int = 0,
    memory: int = 1000 * MIB,
    host: str = "",
    status: str = "UP",
    cluster: str = "local",
    capabilities: tuple[str, ...] = ("sklearn",),
    runtime: str = "mlserver",
    devices: tuple[Device, ...] | None = None,
    digest: str = "",
    http_port: int = 8080,
    **info: object,
) -> ServiceRecord:
    if devices is None:
        devices = (Device(uuid="cpu", kind="cpu", total=memory, free=memory, largest_free=memory),)
    return ServiceRecord(
        service_name="agent",
        instance_id=f"{server}/{replica}/{incarnation}",
        address=Address(host="127.0.0.1", port=9000),
        status=status,  # type: ignore[arg-type]
        timestamp=0,
        server=ServerInfo(
            cluster=cluster,
            host=host or f"host-{server}-{replica}",
            server=server,
            replica=replica,
            incarnation=incarnation,
            http_port=http_port,
            capabilities=capabilities,
            runtime=RuntimeInfo(kind=runtime),
            devices=devices,
            digest=digest or index_digest([]),
            **info,  # type: ignore[arg-type]
        ),
    )


class World:
    """One leader's state and log, and servers that obey when asked to."""

    def __init__(self, fold_version: int = 0, broker: str = "broker") -> None:
        self.state = State(fold_version=fold_version)  # 0: as a new log begins
        self.log: list[Entry] = []
        self.payloads: list[bytes] = []
        self.schemas: list[str] = []
        self.at = 0
        self._ids = count(1)
        self._numbers = count(1)
        self.feed(i.Elected(f.LeaderElected(1, "test", "local", broker, "0")), Input("leader"))

    # --- the leader's loop, in five lines -----------------------------------------------------------------------------

    def feed(self, source: i.Decidable, raw: Input | None = None, *, settle: bool = True) -> list[f.Fact]:
        """Decide one input, append and fold its entry; then everything that is pending, unless told not to."""
        facts = decide(self.state, source, self.at)
        if facts:
            entry, payload = make_entry(
                self.state,
                raw or Input(type(source).__name__),
                facts,
                id=f"e{next(self._ids)}",
                term=1,
                at=self.at,
                wall=self.at,
                handled={},
            )
            self.log.append(entry)
            self.payloads.append(payload)
            schema = versions.schema_of(entry.fold_version)
            self.schemas.append(schema)
            assert fold(self.state, ENTRY.decode_trusted(payload, schema))
        if settle and not isinstance(source, i.Continue):
            while self.feed(i.Continue(), Input("continue")):
                pass
        return facts

    def pass_time(self, milliseconds: int) -> None:
        """Let log time pass, timer by timer."""
        end = self.at + milliseconds
        while 0 < (due := self.state.next_due()) <= end:
            self.at = max(self.at, due)
            self.feed(i.TimerDue(), Input("timer"))
        self.at = end

    # --- users ----------------------------------------------------------------------------------------------------------

    def request(self, event: ModelEvent, verified: str = "", publisher: str = "") -> list[f.Fact]:
        data = MODEL_EVENT.encode(event)
        found = {"verified": verified, "publisher": publisher}
        key, schema = event.event.subject, MODEL_EVENT.fingerprint
        raw = Input("request", "model-events", "", key, schema, data, len(data), **found)
        return self.feed(i.Request(event, **found), raw)

    def deploy(self, model: ModelSpec | None = None, **envelope: object) -> list[f.Fact]:
        return self.request(ModelEvent(event=DeployModel(model=model or spec()), **envelope))  # type: ignore[arg-type]

    def undeploy(self, name: str = "iris", tenant: str = "default") -> list[f.Fact]:
        return self.request(ModelEvent(event=UndeployModel(name=name, tenant=tenant)))

    def scale(self, replicas: int, name: str = "iris", tenant: str = "default", *, now: bool = False) -> list[f.Fact]:
        return self.request(ModelEvent(event=ScaleModel(name=name, tenant=tenant, replicas=replicas, now=now)))

    def rollback(
        self, to: int, name: str = "iris", *, model: ModelSpec | None = None, tenant: str = "default"
    ) -> list[f.Fact]:
        return self.request(ModelEvent(event=RollbackModel(name=name, tenant=tenant, to=to, model=model)))

    def freeze(self, name: str = "iris", tenant: str = "default", **envelope: object) -> list[f.Fact]:
        return self.request(ModelEvent(event=FreezeModel(name=name, tenant=tenant), **envelope))  # type: ignore[arg-type]

    def unfreeze(self, name: str = "iris", tenant: str = "default") -> list[f.Fact]:
        return self.request(ModelEvent(event=UnfreezeModel(name=name, tenant=tenant)))

    def set_policy(self, **rules: object) -> list[f.Fact]:
        return self.request(ModelEvent(event=SetPolicy(policy=Policy(**rules))))  # type: ignore[arg-type]

    def set_tenant(self, name: str, **limits: object) -> list[f.Fact]:
        return self.request(ModelEvent(event=SetTenant(tenant=Tenant(name=name, **limits))))  # type: ignore[arg-type]

    def delete_tenant(self, name: str) -> list[f.Fact]:
        return self.request(ModelEvent(event=DeleteTenant(name=name)))

    def finalize(self, fold_version: int = FOLD_VERSION) -> list[f.Fact]:
        return self.request(ModelEvent(event=FinalizeUpgrade(fold_version=fold_version)))

    def drain(self, server: str = "a", **fields: object) -> list[f.Fact]:
        return self.request(ModelEvent(event=DrainServer(server=f"{server}/0", **fields), reason="maintenance"))  # type: ignore[arg-type]

    def cordon(self, server: str = "a") -> list[f.Fact]:
        return self.request(ModelEvent(event=CordonServer(server=f"{server}/0")))

    def resume(self, server: str = "a") -> list[f.Fact]:
        return self.request(ModelEvent(event=ResumeServer(server=f"{server}/0")))

    # --- servers ----------------------------------------------------------------------------------------------------------

    def registry(self, rec: ServiceRecord | None, instance: str = "") -> list[f.Fact]:
        instance = instance or (rec.instance_id if rec else "")
        return self.feed(i.RegistryChanged(instance, rec), from_record("registry", instance, rec))

    def join(self, server: str = "a", *, holds: tuple[tuple[str, int], ...] = (), **fields: object) -> ServiceRecord:
        """Register a server and report what it holds."""
        rec = record(server, **fields)  # type: ignore[arg-type]
        self.registry(rec)
        self.inventory(rec, holds)
        return rec

    def inventory(self, rec: ServiceRecord, holds: tuple[tuple[str, int], ...] = ()) -> list[f.Fact]:
        models = tuple(r.InventoryModel(model=m, generation=g, ready=True) for m, g in holds)
        names = [served_name(m, g) for m, g in holds]
        return self.report(rec, r.InventoryReported(models=models, digest=index_digest(names)))

    def report(self, rec: ServiceRecord, report: r.ReportKind) -> list[f.Fact]:
        assert rec.server is not None
        event = AgentEvent(
            cluster=rec.server.cluster,
            server=rec.server.server,
            replica=rec.server.replica,
            incarnation=rec.server.incarnation,
            number=next(self._numbers),
            time=0,
            report=report,
        )
        data = AGENT_EVENT.encode(event)
        raw = Input("report", "agent-events", "", event.server_key, AGENT_EVENT.fingerprint, data, len(data))
        return self.feed(i.Report(event), raw)

    def lapse(self, server: str = "a", replica: int = 0) -> list[f.Fact]:
        key = f"local/{server}/{replica}"
        incarnation = self.state.servers[key].incarnation
        return self.feed(i.LeaseLapsed(key, incarnation), Input("lease", subject=f"{key}@{incarnation}"))

    def of(self, server: str) -> ServiceRecord:
        return self.state.servers[f"local/{server}/0"].record

    def answer(self, *, digest: str = "", limit: int = 10_000) -> int:
        """Obey outstanding commands, those that follow from them too; return how many."""
        answered = 0
        while self.state.outstanding and answered < limit:
            key = next(iter(self.state.outstanding))
            self.answer_one(key, digest=digest)
            answered += 1
        return answered

    def answer_one(self, key: ReplicaKey, *, digest: str = "", measured: int = 0) -> list[f.Fact]:
        replica = self.state.outstanding[key]
        rec = self.state.servers[key.server].record
        fields = {"model": key.model, "generation": key.generation, "position": replica.position}
        if self.state.command_of(replica) == "LoadModel":
            memory = tuple(r.DeviceMemory(device=b.device, measured=measured) for b in replica.bookings if measured)
            return self.report(rec, r.ModelLoaded(**fields, digest=digest, memory=memory))
        return self.report(rec, r.ModelUnloaded(**fields))

    def fail_load(self, key: ReplicaKey, code: str = "LOAD_FAILED", *, retriable: bool = True) -> list[f.Fact]:
        replica = self.state.outstanding[key]
        rec = self.state.servers[key.server].record
        return self.report(
            rec,
            r.ModelLoadFailed(
                model=key.model,
                generation=key.generation,
                position=replica.position,
                code=code,
                retriable=retriable,
                message="boom",
            ),
        )

    # --- looking ----------------------------------------------------------------------------------------------------------

    def states(self, model: str = "default/iris") -> dict[tuple[int, str], R]:
        """(generation, server) → state."""
        found = self.state.models.get(model)
        return {key: rep.state for key, rep in sorted(found.replicas.items())} if found else {}

    def of_kind(self, *kinds: type) -> list[Any]:
        """Return the facts of these kinds, in order."""
        return [fact for entry in self.log for fact in entry.facts if isinstance(fact, kinds)]

    def replayed(self, position: int | None = None) -> State:
        """Fold the log from the start, from its bytes."""
        state = State()
        for payload, schema in list(zip(self.payloads, self.schemas, strict=True))[
            : None if position is None else position + 1
        ]:
            fold(state, ENTRY.decode_trusted(payload, schema))
        return state

    def snapshot(self) -> State:
        return copy.deepcopy(self.state)
