"""Triton in explicit mode: a folder with a `config.pbtxt` and a version folder for each model."""

import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx

from magnetar_agent.adapters.base import Code, Limits, LoadFailed, ModelSpec
from magnetar_agent.adapters.repository import RepositoryAdapter, link_or_copy

CONFIG = "config.pbtxt"

# Requirement, the backend's folder name, and the file that a model of it must hold (Triton's documented default names).
_BACKENDS = (
    ("python", "python", "model.py"),
    ("onnx", "onnxruntime", "model.onnx"),
    ("pytorch", "pytorch", "model.pt"),
    ("tensorrt", "tensorrt", "model.plan"),
    ("openvino", "openvino", "model.xml"),
    ("tensorflow", "tensorflow", "model.savedmodel"),
)

BACKENDS = tuple(requirement for requirement, _, _ in _BACKENDS)
"""Requirements that Triton can serve with the right backend."""


def installed_backends(folder: Path) -> tuple[str, ...]:
    """Return the requirements that the backends in this `--backend-directory` can serve, sorted."""
    return tuple(sorted(requirement for requirement, backend, _ in _BACKENDS if (folder / backend).is_dir()))


class TritonAdapter(RepositoryAdapter):
    """Triton 2.x started with `--model-control-mode=explicit`.

    Args:
        base_url: See `RepositoryAdapter`.
        repository: See `RepositoryAdapter`.
        backends: Requirements it serves; `installed_backends(...)` for a server of ours.
        gpus: Device uuids in the order in which the server numbers them; needed to place a generated config on a GPU.
        limits: See `RepositoryAdapter`.
        diagnose: See `RepositoryAdapter`.
        transport: See `RepositoryAdapter`.
    """

    kind = "triton"

    def __init__(
        self,
        base_url: str,
        repository: Path,
        *,
        backends: tuple[str, ...] = BACKENDS,
        gpus: Sequence[str] = (),
        limits: Limits | None = None,
        diagnose: Callable[[], str] | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        super().__init__(base_url, repository, limits=limits, diagnose=diagnose, transport=transport)
        self._backends = backends
        self._gpus = tuple(gpus)

    def capabilities(self) -> tuple[str, ...]:
        """See `Adapter.capabilities`."""
        return tuple(sorted({"triton", *self._backends}))

    def materialise(self, spec: ModelSpec, folder: Path) -> None:
        """See `RepositoryAdapter.materialise`: the artifact's own config with another name, or one we make.

        An artifact without a version folder becomes version 1. Inputs and outputs of a made config are left to Triton's
        auto-completion (ONNX) or to the model's `auto_complete_config` (Python).
        """
        versioned = spec.artifact.is_dir() and any(p.is_dir() and p.name.isdigit() for p in spec.artifact.iterdir())
        content = folder if versioned else folder / "1"
        if spec.artifact.is_dir():
            shutil.copytree(spec.artifact, content, copy_function=link_or_copy, dirs_exist_ok=True)
        else:
            content.mkdir()
            link_or_copy(str(spec.artifact), str(content / spec.artifact.name))
        given = content / CONFIG
        text = renamed(given.read_text(), spec.name) if given.is_file() else self._made(spec, folder)
        given.unlink(missing_ok=True)
        (folder / CONFIG).write_text(text)

    def _made(self, spec: ModelSpec, folder: Path) -> str:
        for requirement, backend, file in _BACKENDS:
            if requirement in spec.requirements and requirement in self._backends:
                if not any(folder.glob(f"*/{file}")):
                    raise LoadFailed(Code.ARTIFACT_INVALID, f"{spec.name}: the artifact holds no {file}")
                return f'name: "{spec.name}"\nbackend: "{backend}"\nmax_batch_size: 0\n{self._instances(spec)}\n'
        raise LoadFailed(
            Code.UNSUPPORTED,
            f"{spec.name}: none of {list(spec.requirements)} is a backend of this Triton "
            f"({', '.join(self._backends)}); name one, or put a {CONFIG} into the artifact",
        )

    def _instances(self, spec: ModelSpec) -> str:
        gpus = [d for d in spec.devices if d != "cpu"]
        unknown = [d for d in gpus if d not in self._gpus]
        if unknown:
            raise LoadFailed(
                Code.UNSUPPORTED, f"{spec.name}: this Triton does not have the devices {', '.join(unknown)}"
            )
        if not gpus:
            return "instance_group [{ kind: KIND_CPU, count: 1 }]"
        return f"instance_group [{{ kind: KIND_GPU, count: 1, gpus: {[self._gpus.index(d) for d in gpus]} }}]"


_TOKENS = re.compile(
    r'(?P<skip>"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|#[^\n]*)|(?P<open>[{\[<])|(?P<close>[}\]>])|\bname\s*:\s*(?P<name>"[^"]*"|\'[^\']*\')'
)


def renamed(config: str, name: str) -> str:
    """Return the text-format protobuf with its top-level `name` replaced or added; names of inputs and outputs stay."""
    depth = 0
    for token in _TOKENS.finditer(config):
        if token["open"]:
            depth += 1
        elif token["close"]:
            depth -= 1
        elif token["name"] and depth == 0:
            return f'{config[: token.start("name")]}"{name}"{config[token.end("name") :]}'
    return f'name: "{name}"\n{config}'
