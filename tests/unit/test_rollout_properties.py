"""Rollouts by property, together with all that may happen meanwhile: nobody who serves is taken away before its time."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from magnetar_common.state import Model
from magnetar_common.transitions import R
from magnetar_events import facts as f
from magnetar_scheduler import inputs as i
from tests.support.world import MIB, World, spec

SEEDS = 120
"""Histories. The rarest of what was ever found takes one in forty."""

NAMES = ("m0", "m1")


def serving(model: Model | None) -> int:
    return sum(replica.state is R.AVAILABLE for replica in model.replicas.values()) if model else 0


class Watched(World):
    """Looks at every decision: no model has fewer that serve than it had, and than are wanted."""

    def feed(self, source: i.Decidable, raw: Any = None, *, settle: bool = True) -> list[f.Fact]:
        before = {key: serving(model) for key, model in self.state.models.items()}
        facts = super().feed(source, raw, settle=False)
        for key, count in before.items():
            model = self.state.models[key]
            assert serving(model) >= min(count, model.wanted), f"{key}: {facts}"
        if settle and not isinstance(source, i.Continue):
            while self.feed(i.Continue(), settle=False):
                pass
        return facts


def steps(world: World, random: Random) -> dict[str, tuple[int, Callable[[], object]]]:
    """What may happen, and how often; no server is lost, and no model dropped or undeployed."""

    def server() -> str:
        return random.choice(sorted(world.state.servers)).split("/")[1]

    def deploy() -> None:
        size, number = random.choice((50, 150, 250)), random.randint(1, 3)
        uri = f"file:///{random.randint(0, 9)}"
        world.deploy(spec(random.choice(NAMES), memory=size * MIB, replicas=number, storage_uri=uri))

    def fail() -> None:
        loads = [key for key, each in world.state.outstanding.items() if world.state.command_of(each) == "LoadModel"]
        if loads:
            world.fail_load(random.choice(loads), retriable=random.random() < 0.7)

    def rollback() -> None:
        name = random.choice(NAMES)
        if model := world.state.models.get(f"default/{name}"):
            world.rollback(random.choice(sorted(model.versions)), name)

    return {
        "deploy": (20, deploy),
        "scale": (10, lambda: world.scale(random.randint(1, 4), random.choice(NAMES))),
        "answer": (20, lambda: world.answer(limit=random.randint(1, 4))),
        "fail": (12, fail),
        "time": (13, lambda: world.pass_time(random.choice((1_001, 5_000, 40_000)))),
        "server": (15, lambda: random.choice((world.drain, world.cordon, world.resume, world.resume))(server())),
        "rollback": (5, rollback),
        "freeze": (5, lambda: random.choice((world.freeze, world.unfreeze, world.unfreeze))(random.choice(NAMES))),
    }


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_happens_nobody_serves_less_because_of_it(seed: int) -> None:
    """Deployed, scaled, failed, drained, cordoned, rolled back and frozen, at random, on servers with little room."""
    random, world = Random(seed), Watched()
    for n in range(random.randint(2, 5)):
        world.join(f"s{n}", memory=random.choice((300, 1000)) * MIB, host=f"h{n % 3}")
    if random.random() < 0.3:
        world.set_tenant("default", cap_replicas=random.choice((3, 5)), floor_replicas=random.choice((0, 2)))
    weights, actions = zip(*steps(world, random).values(), strict=True)
    for action in random.choices(actions, weights, k=60):
        action()
    assert world.state.illegal == 0
    assert world.replayed() == world.state


@pytest.mark.parametrize("seed", range(SEEDS, 2 * SEEDS))
def test_in_the_end_one_version_serves(seed: int) -> None:
    """Once every server is open and nothing fails any more, two versions share only what the policy lets neither give up."""
    random, world = Random(seed), World()
    unavailable = random.randint(0, 2)
    world.set_policy(rollout_unavailable=unavailable)
    for n in range(random.randint(2, 4)):
        world.join(f"s{n}", memory=random.choice((300, 1000)) * MIB)
    happens = steps(world, random)
    del happens["fail"]
    weights, actions = zip(*happens.values(), strict=True)
    for action in random.choices(actions, weights, k=50):
        action()
    for name in NAMES:
        world.unfreeze(name)
    for server in sorted(world.state.servers):
        world.resume(server.split("/")[1])
    for _ in range(60):
        world.answer()
        world.pass_time(20_000)
    for model in world.state.models.values():
        ours = sum(replica.state in (R.LOADED, R.AVAILABLE) for replica in model.of(model.generation))
        if model.routed() != frozenset({model.generation}) and ours:
            assert ours < min(serving(model), model.wanted - unavailable), (model.wanted, world.states(model.key))
