"""The servers' environments: made once, whole or not at all."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from magnetar_agent import environments
from magnetar_agent.environments import EnvironmentUnavailable, ensure, unavailable


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """Builds of MLServer's environment, which are empty folders here."""
    builds: list[Path] = []
    monkeypatch.setenv("MAGNETAR_CACHE", str(tmp_path))
    monkeypatch.setattr(environments, "unavailable", lambda _: None)
    monkeypatch.setattr(environments, "_make_mlserver", lambda root, _: builds.append(root))
    return builds


def test_callers_at_once_make_one(made: list[Path]) -> None:
    """One makes it, the others wait and find it."""
    with ThreadPoolExecutor(8) as pool:
        roots = {environment.root for environment in pool.map(ensure, ["mlserver"] * 8)}
    assert list(roots) == made


def test_what_was_not_finished_is_made_again(made: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted build has no stamp; nothing of it is used."""

    def interrupted(root: Path, pins: str) -> None:
        (root / "half").touch()
        raise EnvironmentUnavailable("cannot install MLServer: no route to the index")

    whole = environments._make_mlserver
    monkeypatch.setattr(environments, "_make_mlserver", interrupted)
    with pytest.raises(EnvironmentUnavailable, match="no route"):
        ensure("mlserver")
    monkeypatch.setattr(environments, "_make_mlserver", whole)
    assert not (ensure("mlserver").root / "half").exists()


def test_an_unknown_kind_is_refused_in_one_line() -> None:
    """With the kinds there are."""
    assert unavailable("frobnicate") == "there is no environment 'frobnicate'; there are mlserver, triton"
    with pytest.raises(EnvironmentUnavailable):
        ensure("frobnicate")
