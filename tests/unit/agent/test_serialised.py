"""Work in order per key, and how it ends."""

import threading
from collections.abc import Iterator

import pytest

from magnetar_agent.serialised import Serialised
from tests.support.leading import eventually


@pytest.fixture
def failures() -> list[BaseException]:
    return []


@pytest.fixture
def work(failures: list[BaseException]) -> Iterator[Serialised[str]]:
    made: Serialised[str] = Serialised(2, failures.append)
    yield made
    assert made.close(5)


def test_jobs_of_one_key_run_in_order_one_at_a_time(work: Serialised[str], failures: list[BaseException]) -> None:
    """Though a thread is free, the second waits for the first; and all come in the order in which they were given."""
    gate, other = threading.Event(), threading.Event()
    done: list[int] = []
    work.submit("a", lambda: (gate.wait(10), done.append(0)))
    for number in range(1, 100):
        work.submit("a", lambda number=number: done.append(number))
    work.submit("b", other.set)
    assert other.wait(10)
    assert (done, work.begun) == ([], 2)
    gate.set()
    eventually(lambda: len(done) == 100)
    assert done == list(range(100))
    assert failures == []


def test_keys_run_at_the_same_time_up_to_the_limit(work: Serialised[str]) -> None:
    """A third job waits until one of two has ended."""
    gate = threading.Event()
    begun: list[str] = []
    for key in "abc":
        work.submit(key, lambda key=key: (begun.append(key), gate.wait(10)))
    eventually(lambda: len(begun) == 2)
    assert (sorted(begun), work.running, work.begun) == (["a", "b"], 2, 2)
    gate.set()
    eventually(lambda: len(begun) == 3 and work.running == 0)
    assert work.begun == 3


def test_one_key_does_not_starve_another(work: Serialised[str]) -> None:
    """A key's next job queues behind the keys that wait."""
    gate = threading.Event()
    order: list[str] = []
    work.submit("x", lambda: gate.wait(10))
    eventually(lambda: work.running == 1)
    blocker = threading.Event()
    work.submit("a", lambda: blocker.wait(10))
    for _ in range(3):
        work.submit("a", lambda: order.append("a"))
    work.submit("b", lambda: order.append("b"))
    blocker.set()
    eventually(lambda: len(order) == 4)
    assert order[0] == "b"
    gate.set()


def test_close_drops_what_waits_and_joins_what_runs(failures: list[BaseException]) -> None:
    """No thread is left, and nothing begins any more."""
    before = set(threading.enumerate())
    work: Serialised[str] = Serialised(1, failures.append)
    gate, done = threading.Event(), list[str]()
    work.submit("a", lambda: (gate.wait(10), done.append("a")))
    eventually(lambda: work.running)
    work.submit("a", lambda: done.append("again"))
    work.submit("b", lambda: done.append("b"))
    assert not work.close(0.01)
    gate.set()
    assert work.close(5)
    work.submit("c", lambda: done.append("c"))
    assert done == ["a"]
    assert set(threading.enumerate()) <= before


def test_job_that_raises_is_heard_of(work: Serialised[str], failures: list[BaseException]) -> None:
    """It is a defect, and whoever can end the process is told."""
    work.submit("a", lambda: 1 / 0)  # type: ignore[arg-type,return-value]
    eventually(lambda: failures)
    assert isinstance(failures[0], ZeroDivisionError)
