"""Whose a request is: decided from what the leader verified, never from what the message claims."""

from typing import Any

import pytest
from pydantic import ValidationError

from magnetar_common.evolve import fold
from magnetar_common.state import State
from magnetar_events import ENTRY, ModelEvent
from magnetar_events import facts as f
from magnetar_events.policy import Policy, Publisher
from magnetar_events.requests import Actor, CordonServer, DeployModel, DrainServer, ResumeServer, SetPolicy
from magnetar_scheduler.decide import decide
from magnetar_scheduler.inputs import understand
from tests.support.world import World, spec

KEY, OTHER = "A" * 43 + "=", "B" * 42 + "A="
OPS, WEB, CI = Publisher(key=KEY, policy=True), Publisher(key=KEY, gateway=True), Publisher(key=KEY)
PUBLISHERS = {"ops": OPS, "web": WEB, "ci": CI}


def policy(**fields: Any) -> ModelEvent:
    return ModelEvent(cluster="local", event=SetPolicy(policy=Policy(**fields)))


def wish(actor: str = "", *, claims: str = "none", cluster: str = "local", **envelope: Any) -> ModelEvent:
    who = Actor(authtype="user", authid=actor, authverified=claims)  # type: ignore[arg-type]
    return ModelEvent(cluster=cluster, actor=who, event=DeployModel(model=spec()), **envelope)


def signed(world: World, event: ModelEvent, publisher: str = "ops") -> list[f.Fact]:
    return world.request(event, "signature", publisher)


@pytest.fixture
def world() -> World:
    """Publishers are known; signatures are not required."""
    world = World()
    world.request(policy(publishers=PUBLISHERS))
    return world


@pytest.fixture
def strict(world: World) -> World:
    """Signatures are required."""
    assert isinstance(signed(world, policy(publishers=PUBLISHERS, require_signature=True))[0], f.RequestAccepted)
    return world


def author(facts: list[f.Fact]) -> tuple[str, str, str]:
    assert isinstance(facts[0], f.RequestAccepted), facts
    return facts[0].actor, facts[0].authverified, facts[0].publisher


def refusal(facts: list[f.Fact]) -> tuple[str, str]:
    (fact,) = facts
    assert isinstance(fact, f.RequestRejected)
    return fact.code, fact.field


def test_a_claim_is_never_believed(world: World) -> None:
    """Whatever a client writes into ``authverified``, an unsigned request is not verified."""
    for claims in ("none", "signature", "gateway"):
        assert author(world.request(wish("ops", claims=claims))) == ("ops", "none", "")


def test_a_publisher_speaks_for_itself_and_a_gateway_for_others(world: World) -> None:
    """A signer is the actor; a gateway may name another; anybody else who does is refused."""
    assert author(signed(world, wish("", claims="gateway"), "ci")) == ("ci", "signature", "ci")
    assert author(signed(world, wish("ci"), "ci")) == ("ci", "signature", "ci")
    assert author(signed(world, wish("alice"), "web")) == ("alice", "gateway", "web")
    assert author(signed(world, wish(""), "web")) == ("web", "signature", "web")
    assert refusal(signed(world, wish("alice", claims="gateway"), "ci")) == ("ACTOR_MISMATCH", "actor.authid")


@pytest.mark.parametrize("code", ["SIGNATURE_INVALID", "SIGNATURE_EXPIRED", "UNKNOWN_PUBLISHER"])
def test_a_wrong_signature_is_refused_even_if_none_is_required(world: World, code: str) -> None:
    """It is recorded, and changes nothing."""
    assert refusal(world.request(wish("ops"), code)) == (code, "")
    assert not world.state.models


def test_a_signed_request_names_its_cluster(world: World) -> None:
    """Else the signature would hold in every cluster that knows the key."""
    assert refusal(signed(world, wish(cluster=""))) == ("SIGNATURE_INVALID", "cluster")


def test_what_is_not_signed_is_refused_once_signatures_are_required(strict: World) -> None:
    """A request, and a policy."""
    assert refusal(strict.request(wish())) == ("SIGNATURE_REQUIRED", "")
    assert refusal(strict.request(policy())) == ("SIGNATURE_REQUIRED", "")
    assert author(signed(strict, wish(), "ci")) == ("ci", "signature", "ci")


def test_only_who_may_sets_the_policy_once_signatures_are_required(strict: World) -> None:
    """Others are refused; who may, may also end it."""
    assert refusal(signed(strict, policy(), "ci")) == ("NOT_PERMITTED", "event")
    assert isinstance(signed(strict, policy(publishers=PUBLISHERS))[0], f.RequestAccepted)
    assert author(strict.request(wish())) == ("", "none", "")


@pytest.mark.parametrize("order", [CordonServer, DrainServer, ResumeServer])
def test_only_who_may_set_the_policy_orders_about_servers_once_signatures_are_required(
    strict: World, order: type[CordonServer | DrainServer | ResumeServer]
) -> None:
    strict.join("a")
    asked = ModelEvent(cluster="local", event=order(server="a/0"))
    assert refusal(signed(strict, asked, "ci")) == ("NOT_PERMITTED", "event")
    assert isinstance(signed(strict, asked)[0], f.RequestAccepted)


def test_nobody_is_locked_out(world: World) -> None:
    """Whoever requires signatures shows by one that a key works which can still change the policy afterwards."""
    required = {"require_signature": True}
    for by, publishers in (
        ("", PUBLISHERS),
        ("ci", PUBLISHERS),
        ("ops", {"web": WEB.model_copy(update={"policy": True})}),
        ("ops", {**PUBLISHERS, "ops": Publisher(key=OTHER, policy=True)}),
    ):
        event = policy(publishers=publishers, **required)
        facts = signed(world, event, by) if by else world.request(event)
        assert refusal(facts) == ("WOULD_LOCK_OUT", "event.policy.requireSignature"), by
    with pytest.raises(ValidationError, match="nobody could set it again"):
        Policy(publishers={"ci": CI}, require_signature=True)
    with pytest.raises(ValidationError, match="replayed"):
        Policy(publishers={"ci": CI}, request_memory_ms=1_000)


def test_a_key_is_replaced_in_two_steps(strict: World) -> None:
    """The old key lets the new one in, and the new one the old one out."""
    new = Publisher(key=OTHER, policy=True)
    both = {"publishers": {"ops": OPS, "ops2": new}, "require_signature": True}
    assert isinstance(signed(strict, policy(**both), "ops")[0], f.RequestAccepted)
    only = {"publishers": {"ops2": new}, "require_signature": True}
    assert refusal(signed(strict, policy(**only), "ops"))[0] == "WOULD_LOCK_OUT"
    assert isinstance(signed(strict, policy(**only), "ops2")[0], f.RequestAccepted)


def test_nobody_can_take_a_signed_request_s_name_first(strict: World) -> None:
    """(source, id) of a publisher's requests are its own; what is not authentic is not remembered at all."""
    strict.request(wish(id="deploy-7", source="ci"))
    strict.request(wish(id="deploy-7", source="ci"), "SIGNATURE_INVALID")
    assert author(signed(strict, wish(id="deploy-7", source="ci"), "web")) == ("web", "signature", "web")
    assert author(signed(strict, wish(id="deploy-7", source="ci"), "ci")) == ("ci", "signature", "ci")
    (again,) = signed(strict, wish(id="deploy-7", source="ci"), "ci")
    assert isinstance(again, f.RequestRepeated)
    assert len(strict.state.requests) == 4  # the two policies', and one for each publisher


@pytest.mark.parametrize("key", ["", "A", "A" * 44, KEY + "\n", "ü", "A" * 88])
def test_a_public_key_is_checked_when_the_policy_is_set(key: str) -> None:
    """One that could never verify anything does not get in."""
    with pytest.raises(ValidationError, match=r"Ed25519|at most"):
        Publisher(key=key)


def test_the_log_alone_is_decided_again(strict: World) -> None:
    """Neither signatures nor keys are needed for it: the entry says what the leader found."""
    signed(strict, wish("alice"), "web")
    strict.request(wish(), "SIGNATURE_EXPIRED", "web")
    signed(strict, wish("alice"), "ci")
    state = State()
    for payload in strict.payloads:
        entry = ENTRY.decode_trusted(payload, "")
        if entry.input.data is not None:
            assert tuple(decide(state, understand(entry.input), entry.at)) == entry.facts
        fold(state, entry)
    assert state == strict.state
