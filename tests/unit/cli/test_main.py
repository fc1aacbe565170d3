"""How the command ends: an exit code that means something, one line of error, and nothing on standard output."""

from pathlib import Path

import pytest

from magnetar_cli.exit_codes import CommandError, ExitCode, judge
from magnetar_cli.main import main
from magnetar_cli.waiting import STATES, parse_state
from magnetar_common import errors


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No context, and a broker at whose port nobody listens."""
    monkeypatch.delenv("MAGNETAR_CONTEXT", raising=False)
    monkeypatch.setenv("MAGNETAR_CONFIG", str(tmp_path / "contexts.yaml"))
    monkeypatch.setenv("MAGNETAR_PULSAR_URL", "pulsar://127.0.0.1:1")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["magnetar", *arguments])
    return main()


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "arguments",
    [
        ("model", "list"),
        ("model", "unload", "iris"),
        ("server", "list"),
        ("tenant", "list"),
        ("tenant", "set", "search", "--cap-replicas", "3"),
        ("tenant", "delete", "search"),
        ("service", "list"),
        ("service", "history", "x"),
        ("log",),
        ("replay",),
        ("doctor",),
        ("topics", "check"),
        ("model", "infer", "iris", "{}"),
    ],
)
def test_without_a_broker_every_command_says_so_within_seconds(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert run(monkeypatch, *arguments) == ExitCode.BROKER_UNREACHABLE
    out, err = capfd.readouterr()
    assert not out
    assert err.splitlines()[0] == "error: no broker answers at pulsar://127.0.0.1:1 (Connection refused)"
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("model", "status"),
        ("model", "status", "iris", "-w", "Happy"),
        ("model", "infer", "iris", "not json"),
        ("apply", "-f", "missing.yaml"),
        ("log", "--kind", "Nothing"),
        ("replay", "-o", "xml"),
        ("tenant", "delete", "No Name"),
        ("tenant", "set", "search", "--cap-replicas", "-1"),
        ("agent", "--kind", "nonsense"),
        ("scheduler", "--port", "many"),
    ],
)
def test_a_wrong_word_is_a_usage_error_before_anything_is_sent(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert run(monkeypatch, *arguments) == ExitCode.USAGE
    out, err = capfd.readouterr()
    assert not out
    assert err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.RequestRefused("INVALID", "event.model", "no"), ExitCode.REJECTED),
        (errors.Unanswered("id", "nobody"), ExitCode.TIMED_OUT),
        (TimeoutError("late"), ExitCode.TIMED_OUT),
        (errors.NoRoute("default/iris", 404, "no such model"), ExitCode.NOT_FOUND),
        (errors.NoRoute("default/iris", 503, "nothing is loaded"), ExitCode.FAILED),
        (errors.BusUnavailable("away"), ExitCode.BROKER_UNREACHABLE),
        (errors.SendTimedOut("perhaps"), ExitCode.BROKER_UNREACHABLE),
        (errors.NotThere("no topic"), ExitCode.NOT_FOUND),
        (errors.LogHole(1, 3, "1:2:-1"), ExitCode.FAILED),
        (CommandError("no", ExitCode.USAGE, "try"), ExitCode.USAGE),
    ],
)
def test_every_error_has_its_exit_code(error: Exception, code: ExitCode) -> None:
    assert judge(error)[0] is code


@pytest.mark.parametrize("state", STATES)
def test_states_are_known_by_seldons_names_too_and_in_any_case(state: str) -> None:
    assert parse_state(state) == parse_state(f"Model{state}") == parse_state(state.lower()) == state


def test_the_version_is_a_result(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--version") == ExitCode.OK
    assert capfd.readouterr().out.startswith("magnetar ")


def test_an_unknown_context_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, "--context", "nowhere", "model", "list") == ExitCode.NOT_FOUND
