"""The log in plain words."""

import dataclasses
import types
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from magnetar_common.amounts import amount
from magnetar_common.state import State
from magnetar_events import facts as f
from magnetar_events.models import ModelSpec
from magnetar_events.policy import Policy
from magnetar_events.records import Device, ServiceRecord
from magnetar_events.tenants import Tenant
from magnetar_projector.narrative import _LINES, concerns, narrate
from tests.support.logs import busy_world
from tests.support.world import MIB, World, record, spec

KINDS = get_args(f.Fact)
SAMPLES: dict[Any, Any] = {str: "text\nof two lines", int: 3, float: 0.5, bool: True}
SAMPLES |= {
    ModelSpec: spec(),
    Policy: Policy(),
    ServiceRecord: record(),
    Device: Device(uuid="cpu"),
    Tenant: Tenant(name="a"),
}


def sample(annotation: Any) -> Any:
    """A value of any type that a fact has."""
    if annotation in SAMPLES:
        return SAMPLES[annotation]
    if get_origin(annotation) is tuple:
        return (sample(get_args(annotation)[0]),) * 2
    hints = get_type_hints(annotation)
    return annotation(*(sample(hints[field.name]) for field in dataclasses.fields(annotation)))


def test_no_kind_is_missing() -> None:
    """Every kind of fact has its line, and there is none for anything else."""
    assert isinstance(f.Fact, types.UnionType)
    assert set(_LINES) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_fact_is_one_line_that_names_its_subject(kind: type) -> None:
    """Whatever is in a fact, its line is one, and says whom it is about."""
    fact = dataclasses.replace(sample(kind))
    for name in ("model", "server", "subject", "tenant"):
        if get_type_hints(kind).get(name) is str:
            setattr(fact, name, f"the-{name}")
    line = narrate(fact)
    assert line == line.strip()
    assert line.isprintable()
    assert f.subject_of(fact) in line


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_empty_fields_leave_no_holes(kind: type) -> None:
    """A fact without reasons and lists reads as well."""
    optional = {
        name: hint
        for name, hint in get_type_hints(kind).items()
        if get_origin(hint) is tuple or name in ("reason", "field", "actor")
    }
    fact = sample(kind)
    for name, hint in optional.items():
        setattr(fact, name, "" if hint is str else ())
    line = narrate(fact)
    assert not line.endswith((":", "(", ","))
    assert "()" not in line


def test_it_reads_well() -> None:
    """The lines of a real log, as people will see them."""
    lines = [narrate(fact) for entry in busy_world().log for fact in entry.facts]
    for expected in (
        "default/iris v1 placed on local/a/0 (100 MiB on cpu), best of 2 candidates: wanted",
        "traffic of default/iris goes to v2 100 %: the wanted version is ready",
        "default/iris v2 on local/a/0: LoadRequested → LoadFailed, LOAD_FAILED: boom",
        "default/iris v2 on local/a/0: LoadFailed → LoadRequested (attempt 2): tried again",
        "local/b/0 is lost, LEASE_LAPSED: silent for more than 9000 ms",
        "nothing of default/iris is left",
    ):
        assert expected in lines


def test_policy_names_only_what_is_not_usual() -> None:
    """Of twenty rules the line shows those that somebody changed."""
    assert narrate(f.PolicySet(Policy())) == "policy is now as shipped"
    assert (
        narrate(f.PolicySet(Policy(piece=7, lease_ms=7000)))
        == "policy is now leaseMs 7000, piece 7, and all else as shipped"
    )


def test_amounts() -> None:
    """Bytes are written in the unit that fits."""
    assert [amount(n) for n in (0, 1023, 1024, 100 * MIB, 1536 * MIB, 3 * 2**50)] == [
        *("0 B", "1023 B", "1 KiB", "100 MiB", "1.5 GiB", "3072 TiB"),
    ]


def test_a_fact_concerns_its_model_and_its_server() -> None:
    """What happens to a replica is part of two stories; what happens to a server, of its models', too."""
    world = World()
    world.join("a")
    world.deploy()
    lost = f.ServerLost("local/a/0", "one", "DOWN", "", 0)
    placed = f.ReplicaAdopted("default/x", 1, "local/a/0", (), "")
    assert concerns(world.state, placed) == ("default/x", "local/a/0")
    assert concerns(world.state, lost) == ("local/a/0", "default/iris")
    assert concerns(State(), lost) == ("local/a/0",)
    assert concerns(State(), f.LeaderAlive(1)) == ()


def test_a_claimed_name_is_never_shown_as_verified() -> None:
    """Whatever an actor calls itself, the line says that nobody verified it."""
    line = {
        how: narrate(f.RequestAccepted("1", "ci", "DeployModel", "default/x", 1, actor, "user", how, "", publisher))
        for how, actor, publisher in (
            ("none", "ops (signed)", ""),
            ("signature", "ops", "ops"),
            ("gateway", "alice", "portal"),
        )
    }
    assert "from unverified ops (signed) (ci)" in line["none"]
    assert "from ops (signed) (ci)" in line["signature"]
    assert "from alice via portal (signed) (ci)" in line["gateway"]
