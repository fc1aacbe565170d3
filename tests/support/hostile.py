"""What somebody who means harm, or another version's defect, may put on the input topics."""

import io
from collections.abc import Iterator
from typing import Any

import fastavro

from magnetar_events import AGENT_EVENT, MODEL_EVENT, SERVICE_RECORD, AgentEvent, Codec, ModelEvent, schemas
from magnetar_events import reports as r
from magnetar_events.avro import to_wire
from magnetar_events.models import Runtime
from magnetar_events.policy import Policy, Publisher
from magnetar_events.records import Device
from magnetar_events.requests import Actor, DeployModel, ScaleModel, SetPolicy, UndeployModel
from tests.support.world import record, spec

CONTRACTS: dict[str, Codec[Any]] = {
    "model-events": MODEL_EVENT,
    "agent-events": AGENT_EVENT,
    "service-registry": SERVICE_RECORD,
}
KINDS = {"model-events": "request", "agent-events": "report", "service-registry": "registry"}

_LABELS = {"team": "x", "": "empty key"}
_SPEC = spec("m1", labels=_LABELS, runtime=Runtime(kind="mlserver", parameters=_LABELS), gpu_types=("A100",))
_GPU = Device(uuid="g", kind="gpu", gpu_type="A100", parent="p", total=9, free=8, largest_free=7, utilisation=0.5)


def _report(report: r.ReportKind, server: str = "a", number: int = 99) -> AgentEvent:
    return AgentEvent(cluster="local", server=server, incarnation="one", number=number, time=0, report=report)


_OF = {"model": "default/iris", "generation": 1, "position": 3}
SAMPLES: tuple[tuple[str, Any], ...] = (
    ("model-events", ModelEvent(event=DeployModel(model=_SPEC), actor=Actor(authid="x"), expected_generation=0)),
    ("model-events", ModelEvent(event=DeployModel(model=spec()))),
    ("model-events", ModelEvent(event=UndeployModel(name="iris"))),
    ("model-events", ModelEvent(event=ScaleModel(name="iris", replicas=2))),
    ("model-events", ModelEvent(event=SetPolicy(policy=Policy(publishers={"ops": Publisher(key="A" * 43 + "=")})))),
    ("agent-events", _report(r.ModelLoading(**_OF))),
    ("agent-events", _report(r.ModelLoaded(**_OF, digest="a" * 64, memory=(r.DeviceMemory(device="cpu"),)))),
    ("agent-events", _report(r.ModelLoadFailed(**_OF, code="LOAD_FAILED", message="boom"))),
    ("agent-events", _report(r.ModelUnloaded(**_OF))),
    ("agent-events", _report(r.ModelUnloadFailed(**_OF, code="X"))),
    ("agent-events", _report(r.CommandSuperseded(**_OF, newest=4))),
    ("agent-events", _report(r.InventoryReported(models=(r.InventoryModel(model="t/m", generation=1, ready=True),)))),
    ("agent-events", _report(r.InventoryReported(models=(), strangers=("x",)))),
    ("agent-events", _report(r.ResyncRequested(cause="lost"))),
    ("agent-events", _report(r.LoadObserved(in_flight=1, mean_ms=1.5, labels=_LABELS))),
    ("service-registry", record("a", devices=(_GPU, Device(uuid="cpu", total=9)), max_models=3, memory_bytes=5)),
    ("service-registry", record("c")),
    ("service-registry", record("a", status="DOWN")),
    ("service-registry", record("a", incarnation="two").model_copy(update={"declared_by": "me", "metadata": _LABELS})),
)
"""(contract, valid message) of every kind."""

BIG = 2**63 - 1
NUMBERS: tuple[Any, ...] = (0, -1, 1, BIG, -(2**63), 2**53, 10**6, 1.5, float("nan"), float("inf"), 1e308, -0.0, True)
TEXTS: tuple[Any, ...] = (
    "",
    " ",
    "\x00",
    "a\nb",
    "\x1b[31m",
    "\u202egnp.exe",
    "a\u200bb",
    "ü",
    "..",
    "../../etc/passwd",
    "/",
    "a/b",
    "a_b",
    "C:\\x",
    "%2e%2e",
    "x" * 64,
    "x" * 10_000,
    "\U0001f600" * 1_024,
    "default/iris",
    "local",
    "none",
    "{}",
    "'; drop table --",
)
OTHERS: tuple[Any, ...] = (None, [], {}, ["x"] * 1_000, {str(n): "v" * 1_024 for n in range(64)}, {"\n": "\x07"})
HOSTILE = NUMBERS + TEXTS + OTHERS

Path = tuple[Any, ...]


def raw_of(message: Any) -> dict[str, Any]:
    """A message as fastavro writes it."""
    return to_wire(type(message))(message)


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """Every place in a raw message at which something else can be put."""
    if path:
        yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for index in range(len(value)):
            yield from places(value[index], (*path, index))
    elif isinstance(value, tuple) and len(value) == 2:  # a branch of a union
        yield from places(value[1], (*path, 1))


def replaced(value: Any, path: Path, by: Any) -> Any:
    """A copy of a raw message with something else at a place."""
    if not path:
        return by
    head, rest = path[0], path[1:]
    if isinstance(value, dict):
        return {**value, head: replaced(value[head], rest, by)}
    changed = list(value)
    changed[head] = replaced(changed[head], rest, by)
    return tuple(changed) if isinstance(value, tuple) else changed


def encoded(contract: str, raw: dict[str, Any]) -> bytes | None:
    """Its bytes, or None where Avro itself cannot hold such a value."""
    out = io.BytesIO()
    try:
        fastavro.schemaless_writer(out, schemas.parsed(contract), raw)
    except Exception:
        return None
    return out.getvalue()
