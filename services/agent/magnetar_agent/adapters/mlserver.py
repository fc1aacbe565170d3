"""MLServer: a folder with a `model-settings.json` for each model."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx

from magnetar_agent.adapters.base import Code, Limits, LoadFailed, ModelSpec
from magnetar_agent.adapters.repository import RepositoryAdapter, link_or_copy

SETTINGS = "model-settings.json"


@dataclass(frozen=True, slots=True)
class Runtime:
    """An MLServer runtime: its class, the package that holds it, and the files it reads, most telling first.

    With no files the model's folder itself is the model (MLflow).
    """

    implementation: str
    package: str
    files: tuple[str, ...]


RUNTIMES: Mapping[str, Runtime] = {
    "sklearn": Runtime(
        "mlserver_sklearn.SKLearnModel",
        "mlserver_sklearn",
        ("model.joblib", "model.pickle", "model.pkl", "*.joblib", "*.pickle", "*.pkl"),
    ),
    "xgboost": Runtime(
        "mlserver_xgboost.XGBoostModel",
        "mlserver_xgboost",
        ("model.bst", "model.json", "model.ubj", "*.bst", "*.json", "*.ubj"),
    ),
    "lightgbm": Runtime("mlserver_lightgbm.LightGBMModel", "mlserver_lightgbm", ("model.bst", "*.bst")),
    "catboost": Runtime("mlserver_catboost.CatboostModel", "mlserver_catboost", ("model.cbm", "*.cbm")),
    "mlflow": Runtime("mlserver_mlflow.MLflowRuntime", "mlserver_mlflow", ()),
}
"""Requirement to runtime; file names as in MLServer's documentation and each runtime's WELLKNOWN_MODEL_FILENAMES."""


def installed_runtimes(python: Path) -> tuple[str, ...]:
    """Return the requirements that the MLServer of this interpreter's environment can serve, sorted."""
    packages = list(python.absolute().parent.parent.glob("lib/python3.*/site-packages"))
    return tuple(
        sorted(name for name, runtime in RUNTIMES.items() if any((p / runtime.package).is_dir() for p in packages))
    )


class MLServerAdapter(RepositoryAdapter):
    """MLServer 1.x.

    Args:
        base_url: See `RepositoryAdapter`.
        repository: See `RepositoryAdapter`.
        runtimes: Requirements it serves; `installed_runtimes(...)` for a server of ours, the operator's list for one
            that runs already.
        limits: See `RepositoryAdapter`.
        diagnose: See `RepositoryAdapter`.
        transport: See `RepositoryAdapter`.
    """

    kind = "mlserver"

    def __init__(
        self,
        base_url: str,
        repository: Path,
        *,
        runtimes: tuple[str, ...] = tuple(RUNTIMES),
        limits: Limits | None = None,
        diagnose: Callable[[], str] | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        super().__init__(base_url, repository, limits=limits, diagnose=diagnose, transport=transport)
        self._runtimes = runtimes

    def capabilities(self) -> tuple[str, ...]:
        """See `Adapter.capabilities`."""
        return tuple(sorted({"mlserver", *self._runtimes}))

    def materialise(self, spec: ModelSpec, folder: Path) -> None:
        """See `RepositoryAdapter.materialise`: the artifact's own settings with another name, or settings we make."""
        if spec.artifact.is_dir():
            shutil.copytree(spec.artifact, folder, copy_function=link_or_copy, dirs_exist_ok=True)
        else:
            link_or_copy(str(spec.artifact), str(folder / spec.artifact.name))
        # MLServer finds settings at any depth, so a second file would register a second model, under any name it likes.
        found = sorted(folder.rglob(SETTINGS))
        if len(found) > 1:
            raise LoadFailed(
                Code.ARTIFACT_INVALID,
                f"{spec.name}: the artifact holds {len(found)} {SETTINGS}; it must hold one or none",
            )
        path = found[0] if found else folder / SETTINGS
        settings = _given(spec, path) if found else self._made(spec, folder)
        settings["name"] = spec.name
        # Not written through: the file may be a hard link into the artifact cache.
        fresh = path.with_suffix(".fresh")
        fresh.write_text(json.dumps(settings, indent=2))
        fresh.replace(path)

    def _made(self, spec: ModelSpec, folder: Path) -> dict[str, Any]:
        runtime = next((RUNTIMES[r] for r in spec.requirements if r in self._runtimes and r in RUNTIMES), None)
        if runtime is None:
            raise LoadFailed(
                Code.UNSUPPORTED,
                f"{spec.name}: none of {list(spec.requirements)} is a runtime of this MLServer "
                f"({', '.join(self._runtimes)}); name one, or put a {SETTINGS} into the artifact",
            )
        parameters: dict[str, Any] = {"uri": _model_file(spec, runtime, folder)}
        if spec.parameters:
            parameters["extra"] = dict(spec.parameters)
        return {"implementation": runtime.implementation, "parameters": parameters}


def _model_file(spec: ModelSpec, runtime: Runtime, folder: Path) -> str:
    if not runtime.files:
        return "."
    for pattern in runtime.files:
        hits = sorted(folder.rglob(pattern), key=lambda p: (len(p.parts), p))
        if len(hits) > 1 and "*" in pattern:
            names = ", ".join(str(p.relative_to(folder)) for p in hits[:5])
            raise LoadFailed(
                Code.ARTIFACT_INVALID, f"{spec.name}: which file is the model? {names}; name it {runtime.files[0]}"
            )
        if hits:
            return "./" + hits[0].relative_to(folder).as_posix()
    raise LoadFailed(Code.ARTIFACT_INVALID, f"{spec.name}: the artifact holds none of {', '.join(runtime.files)}")


def _given(spec: ModelSpec, path: Path) -> dict[str, Any]:
    try:
        settings: object = json.loads(path.read_bytes())
    except ValueError as error:
        raise LoadFailed(Code.ARTIFACT_INVALID, f"{spec.name}: its {SETTINGS} is not JSON: {error}") from error
    if not isinstance(settings, dict):
        raise LoadFailed(Code.ARTIFACT_INVALID, f"{spec.name}: its {SETTINGS} is not a JSON object")
    given = cast("dict[str, Any]", settings)
    parameters = given.get("parameters")
    uri = cast("dict[str, Any]", parameters).get("uri", "") if isinstance(parameters, dict) else ""
    # A remote URI or a hub id is the runtime's business; a path must stay inside the artifact whose digest is pinned.
    if isinstance(uri, str) and "://" not in uri and (Path(uri).is_absolute() or ".." in Path(uri).parts):
        raise LoadFailed(
            Code.ARTIFACT_INVALID, f"{spec.name}: parameters.uri {uri!r} in its {SETTINGS} points out of the artifact"
        )
    return given
