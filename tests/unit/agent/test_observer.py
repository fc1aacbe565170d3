"""What models hold later: told when it grew, and only where it can be told apart."""

import os
from pathlib import Path

from magnetar_agent.devices import Devices
from magnetar_agent.observer import Observer
from magnetar_events.reports import LoadObserved, ModelLoaded, ModelMemory
from tests.support.stage import IRIS, SERVED, staged
from tests.support.world import record
from tests.unit.agent.test_devices import GIB, FakeDevice, FakeNvml

KEY = (IRIS, 1)
TOTALS = {"GPU-1": 16 * GIB}


def test_growth_is_told_when_it_is_worth_it() -> None:
    """Once when it is first seen, then for a tenth of the size; the same again, a little more, and less are no news."""
    held = {"GPU-1": 4 * GIB}
    observer = Observer(lambda _: held)
    (told,) = observer.look([KEY], TOTALS)
    assert told == ModelMemory(model=IRIS, generation=1, device="GPU-1", observed=4 * GIB)
    for size, news in ((4 * GIB, 0), (4 * GIB + GIB // 4, 0), (3 * GIB, 0), (5 * GIB, 1), (5 * GIB, 0)):
        held["GPU-1"] = size
        assert len(observer.look([KEY], TOTALS)) == news


def test_a_large_model_is_told_of_for_a_twentieth_of_the_device() -> None:
    held = {"GPU-1": 14 * GIB}
    observer = Observer(lambda _: held)
    observer.look([KEY], TOTALS)
    held["GPU-1"] += GIB
    assert len(observer.look([KEY], TOTALS)) == 1


def test_what_is_loaded_again_is_told_again() -> None:
    observer = Observer(lambda _: {"GPU-1": GIB})
    assert observer.look([KEY], TOTALS)
    assert observer.look([], TOTALS) == ()
    assert observer.look([KEY], TOTALS)


def test_an_agent_reports_what_a_model_with_a_process_of_its_own_holds(tmp_path: Path) -> None:
    """With its heartbeats; of a server whose models share a process it reports nothing."""
    gpu = FakeDevice("GPU-1", processes={os.getpid(): 2 * GIB, 1: GIB})
    with staged(tmp_path, devices=Devices(FakeNvml(gpu), own_cgroup=tmp_path / "none")) as stage:
        stage.load(1, devices=("GPU-1",))
        stage.hears(ModelLoaded, 1)
        stage.agent.refresh(record("a"))
        assert stage.said(LoadObserved) == []
        stage.agent._pids_of = lambda name: (os.getpid(),) if name == SERVED else ()
        stage.agent.refresh(record("a"))
        memory = {each.device: each.observed for each in stage.hears(LoadObserved).memory}
    assert memory["GPU-1"] == 2 * GIB
    assert memory["cpu"] > 0
