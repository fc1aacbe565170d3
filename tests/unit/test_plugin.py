"""What the last lines of a test run say, and when an absence fails it."""

import pytest

CONFTEST = """
from magnetar_common.brokers import BrokerError
from tests import plugin

def broken(needs):
    raise BrokerError("it does not start")

plugin.PROBES["pulsar"] = {pulsar}
plugin.PROBES["mlserver"] = lambda needs: None
plugin.PROBES["triton"] = lambda needs: "no wheel for\\nthis platform"
"""

TESTS = """
import pytest

@pytest.fixture
def pulsar_broker():
    pass

def test_with_pulsar(pulsar_broker):
    pass

@pytest.mark.pulsar
def test_with_pulsar_too():
    pass

@pytest.mark.mlserver
def test_with_mlserver():
    pass

@pytest.mark.mlserver
def test_that_fails():
    assert False

@pytest.mark.triton
def test_with_triton():
    pass

def test_alone():
    pass
"""

INI = """
[pytest]
addopts = --strict-markers
markers =
    pulsar: p
    mlserver: m
    triton: t
"""


@pytest.fixture
def run(pytester: pytest.Pytester, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch):
    """Run `TESTS` in a process of its own, with a real Pulsar or without; return its output and exit code."""

    def run(*arguments: str, pulsar: str = "lambda needs: None", require: str = "") -> tuple[list[str], int]:
        monkeypatch.setenv("MAGNETAR_REQUIRE", require)
        monkeypatch.syspath_prepend(pytestconfig.rootpath)
        monkeypatch.setenv("PYTHONPATH", str(pytestconfig.rootpath), prepend=":")
        pytester.makefile(".ini", pytest=INI)
        pytester.makeconftest(CONFTEST.replace("{pulsar}", pulsar))
        pytester.makepyfile(test_inner=TESTS)
        result = pytester.runpytest_subprocess("-p", "tests.plugin", *arguments)
        return [line for line in result.outlines if line], int(result.ret)

    return run


ABSENT = "lambda needs: 'no Docker; no Java'"


def test_the_last_line_is_what_became_of_the_tests_on_a_real_pulsar(run) -> None:
    lines, _ = run()
    assert lines[-3:] == [
        "MLServer: 1 passed, 1 failed",
        "Triton: NOT RUN, 1 tests (no wheel for this platform)",
        "real Pulsar: 2 passed",
    ]


def test_without_a_real_pulsar_everything_else_runs_and_the_last_line_says_why(run) -> None:
    lines, code = run("-k", "pulsar or alone", pulsar=ABSENT)
    assert lines[-1] == "real Pulsar: NOT RUN, 2 tests (no Docker; no Java)"
    assert "1 passed, 2 skipped" in lines[-2]
    assert code == pytest.ExitCode.OK


def test_a_required_pulsar_that_is_absent_fails_the_tests_that_need_it(run) -> None:
    lines, code = run("-k", "pulsar or alone", pulsar=ABSENT, require="pulsar,mlserver")
    assert lines[-1] == "real Pulsar: NOT RUN, 2 tests (no Docker; no Java)"
    assert "1 passed" in lines[-2]
    assert "2 errors" in lines[-2]
    assert code == pytest.ExitCode.TESTS_FAILED


def test_a_pulsar_that_is_there_but_does_not_start_is_a_failure_and_no_absence(run) -> None:
    lines, code = run("-k", "pulsar", pulsar="broken")
    assert lines[-1] == "real Pulsar: NOT RUN, 2 tests (it does not start)"
    assert code == pytest.ExitCode.TESTS_FAILED


def test_nothing_is_looked_for_that_no_selected_test_needs(run) -> None:
    lines, code = run("-m", "not pulsar and not mlserver and not triton", pulsar="broken")
    assert "1 passed" in lines[-1]
    assert code == pytest.ExitCode.OK


def test_two_workers_settle_only_what_their_tests_need_and_the_run_closes_once(run, pytester, tmp_path) -> None:
    started = f"lambda needs: open({str(tmp_path / 'started')!r}, 'a').write('once\\n') and None"
    pytester.makepyfile(test_other="def test_without_needs():\n    pass\n")
    lines, code = run("-n", "2", "--dist", "loadfile", pulsar=started)
    assert lines[-3:] == [
        "MLServer: 1 passed, 1 failed",
        "Triton: NOT RUN, 1 tests (no wheel for this platform)",
        "real Pulsar: 2 passed",
    ]
    assert "1 failed, 5 passed, 1 skipped" in lines[-4]
    assert sum("real Pulsar: " in line for line in lines) == 1
    assert (tmp_path / "started").read_text().splitlines() == ["once"]
    assert code == pytest.ExitCode.TESTS_FAILED


def test_what_is_required_and_absent_fails_on_workers_too(run) -> None:
    lines, code = run("-n", "2", "-k", "pulsar or alone", pulsar=ABSENT, require="pulsar")
    assert lines[-1] == "real Pulsar: NOT RUN, 2 tests (no Docker; no Java)"
    assert "1 passed, 2 errors" in lines[-2]
    assert code == pytest.ExitCode.TESTS_FAILED


def test_a_requirement_that_no_test_knows_is_refused(run) -> None:
    _, code = run(require="pulsa")
    assert code == pytest.ExitCode.USAGE_ERROR
