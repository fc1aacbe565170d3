"""The leader is killed at every step of its loop, one run each: nothing is lost, and nothing is done twice."""

import pytest

from magnetar_events import ModelEvent
from magnetar_events.policy import Policy
from magnetar_events.requests import DeployModel, RequestKind, ScaleModel, SetPolicy, UndeployModel
from tests.simulation.adversary import POLICY
from tests.simulation.runtime import Process
from tests.simulation.simulation import Simulation, simulation
from tests.support.world import spec

STEPS = 120
"""Switches of the leader's threads from the first request until it is idle again."""

EVERY = 2
"""Every so many of them; each of two tests begins at another, so that all are had."""

WISHES: tuple[RequestKind, ...] = (
    DeployModel(model=spec("iris", replicas=2)),
    DeployModel(model=spec("wine")),
    ScaleModel(name="iris", replicas=1),
    UndeployModel(name="wine"),
)


def leading(running: Simulation) -> Process | None:
    leader = running.checker.leader()
    return next((process for process, known in running.checker.leaders.items() if known is leader), None)


def run(crash_at: int) -> int:
    """Kill the leader at a step after the first request; return the steps that it had taken when it was idle again."""
    with simulation("every step", schedulers=2, servers=2, projector=False, registry=False) as running:
        user = running.cluster.users[0]
        user.ask(ModelEvent(id="policy", source=user.name, time=0, event=SetPolicy(policy=Policy(**POLICY))))  # type: ignore[arg-type]
        running.settle()
        process = leading(running)
        assert process is not None
        before = process.steps
        process.crash_at = before + crash_at if crash_at else 0
        for number, wish in enumerate(WISHES):
            user.ask(ModelEvent(id=f"r{number}", source=user.name, time=0, event=wish))
        running.settle()
        assert process.alive == (not crash_at)
        assert sorted(running.checker.state.models) == ["default/iris"]
        return process.steps - before


def test_the_steps_cover_the_whole_story() -> None:
    """Without a crash the leader needs at least as many steps as are tried."""
    assert run(0) >= STEPS


@pytest.mark.parametrize("offset", range(1, 1 + EVERY))
def test_l14_a_crash_at_any_step_loses_nothing_and_repeats_nothing(offset: int) -> None:
    """A standby takes over; each request is handled once, each command arrives, no agent acts on one twice."""
    for step in range(offset, STEPS, EVERY):
        run(step)
