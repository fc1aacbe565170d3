"""Manifests: YAML (or JSON) files that say what is wanted, read whole and checked before anything is sent."""

import difflib
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml
from pydantic import BaseModel, Field, ValidationError
from pydantic.fields import FieldInfo

from magnetar_cli.exit_codes import Misused
from magnetar_events.base import Labels, Name, OptionalName, Wire
from magnetar_events.models import ModelSpec
from magnetar_events.policy import Policy
from magnetar_events.requests import DeployModel, SetPolicy, SetTenant
from magnetar_events.tenants import Tenant

API_VERSION = "magnetar/v1"
"""What a manifest names as ``apiVersion``."""

KINDS = ("Model", "Policy", "Tenant")
"""What a manifest names as ``kind``."""

M = TypeVar("M", bound=BaseModel)

_SUFFIXES = (".yaml", ".yml", ".json")


class BadManifest(Misused):
    """A manifest is wrong. The message names the file, the document in it, and the field."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """One document, checked.

    Attributes:
        source: ``file, document N``.
        request: what it asks for.
    """

    source: str
    request: DeployModel | SetPolicy | SetTenant


class _Metadata(Wire):
    name: Name
    tenant: Name = "default"
    labels: Labels = Field(default_factory=dict)


class _PolicyMetadata(Wire):
    name: OptionalName = ""


class _TenantMetadata(Wire):
    name: Name


class _Unambiguous(yaml.SafeLoader):
    """Refuses a key that is written twice: YAML would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value]  # pyright: ignore[reportUnknownMemberType]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is written twice", node.start_mark)
        return super().construct_mapping(node, deep)


def read(path: Path) -> list[Manifest]:
    """Return every manifest in a file, or in the ``.yaml``, ``.yml`` and ``.json`` files of a folder, in order of name.

    Raises:
        BadManifest: one of them is wrong.
    """
    found = [manifest for file in _files(path) for manifest in _of_file(file)]
    if not found:
        raise BadManifest(f"{path} holds no manifest")
    _refuse_twice(found)
    return found


def parse(document: object, source: str) -> Manifest:
    """Check one document.

    Args:
        document: as YAML or JSON has it.
        source: where it is from, for the error.

    Raises:
        BadManifest: it is wrong.
    """
    if not isinstance(document, dict):
        raise BadManifest(f"{source}: a manifest is a mapping with apiVersion, kind, metadata and spec")
    fields = cast("dict[object, object]", document)
    _refuse_unknown(fields, ("apiVersion", "kind", "metadata", "spec"), source)
    if fields.get("apiVersion") != API_VERSION:
        raise BadManifest(f"{source}: apiVersion: {fields.get('apiVersion')!r} must be {API_VERSION}")
    metadata, spec = _mapping(fields, "metadata", source), _mapping(fields, "spec", source)
    match fields.get("kind"):
        case "Model":
            return Manifest(source, DeployModel(model=_model(metadata, spec, source)))
        case "Policy":
            _checked(_PolicyMetadata, metadata, "metadata", source)
            return Manifest(source, SetPolicy(policy=_checked(Policy, spec, "spec", source)))
        case "Tenant":
            return Manifest(source, SetTenant(tenant=_tenant(metadata, spec, source)))
        case other:
            raise BadManifest(f"{source}: kind: {other!r} is not known{_meant(other, KINDS)}")


def _model(metadata: dict[object, object], spec: dict[object, object], source: str) -> ModelSpec:
    who = _checked(_Metadata, metadata, "metadata", source)
    for given in ("name", "tenant"):
        if given in spec:
            raise BadManifest(f"{source}: spec.{given}: unknown field; it belongs in metadata")
    return _checked(ModelSpec, {"labels": who.labels, **spec, "name": who.name, "tenant": who.tenant}, "spec", source)


def _tenant(metadata: dict[object, object], spec: dict[object, object], source: str) -> Tenant:
    who = _checked(_TenantMetadata, metadata, "metadata", source)
    if "name" in spec:
        raise BadManifest(f"{source}: spec.name: unknown field; it belongs in metadata")
    return _checked(Tenant, {**spec, "name": who.name}, "spec", source)


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(each for each in path.iterdir() if each.suffix in _SUFFIXES and each.is_file())
        if not found:
            raise BadManifest(f"{path} holds no {', '.join(_SUFFIXES)} file")
        return found
    if not path.exists():
        raise BadManifest(f"there is no {path}")
    return [path]


def _of_file(path: Path) -> Iterator[Manifest]:
    try:
        # A subclass of the safe loader.
        documents = list(yaml.load_all(path.read_text(), _Unambiguous))
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise BadManifest(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise BadManifest(f"{path} cannot be read: it is nested too deeply") from error
    for number, document in enumerate(documents, 1):
        if document is not None:  # what lies between two --- with nothing in it
            yield parse(document, f"{path}, document {number}")


def _refuse_twice(manifests: Iterable[Manifest]) -> None:
    seen: dict[str, str] = {}
    for manifest in manifests:
        subject = manifest.request.subject
        if subject in seen:
            raise BadManifest(f"{manifest.source}: {subject} is already in {seen[subject]}")
        seen[subject] = manifest.source


def _mapping(fields: dict[object, object], name: str, source: str) -> dict[object, object]:
    value = fields.get(name, {})
    if not isinstance(value, dict):
        raise BadManifest(f"{source}: {name}: must be a mapping")
    return cast("dict[object, object]", value)


def _refuse_unknown(fields: dict[object, object], known: tuple[str, ...], source: str) -> None:
    for name in fields:
        if name not in known:
            raise BadManifest(f"{source}: {name}: unknown field{_meant(name, known)}")


def _checked(cls: type[M], fields: dict[Any, Any], where: str, source: str) -> M:
    try:
        return cls.model_validate(fields, by_alias=True, by_name=False)
    except ValidationError as error:
        raise BadManifest(f"{source}: {_told(error, cls, where)}") from error


def _told(error: ValidationError, cls: type[BaseModel], where: str) -> str:
    errors = error.errors(include_url=False, include_input=False)
    # A misspelt field is why another is missing.
    first = next((each for each in errors if each["type"] == "extra_forbidden"), errors[0])
    place = [str(part) for part in first["loc"]]
    name = ".".join([where, *place])
    if first["type"] == "extra_forbidden":
        return f"{name}: unknown field{_meant(place[-1], _wire_names(cls, place[:-1]))}"
    if first["type"] == "missing":
        return f"{name}: is missing"
    return f"{name}: {first['msg'].removeprefix('Value error, ')}"


def _wire_names(cls: type[BaseModel], place: list[str]) -> tuple[str, ...]:
    """Return the names of the fields at a place within a record, as they are written in a manifest."""
    for part in place:
        info = next((i for n, i in cls.model_fields.items() if _wire(n, i) == part), None)
        if info is None or not (isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel)):
            return ()
        cls = info.annotation
    return tuple(_wire(name, info) for name, info in cls.model_fields.items() if name not in ("name", "tenant"))


def _wire(name: str, info: FieldInfo) -> str:
    return info.alias or name


def _meant(name: object, known: Iterable[str]) -> str:
    names = list(known)
    close = difflib.get_close_matches(str(name), names, 1)
    if close:
        return f" (did you mean {close[0]}?)"
    return f" (known: {', '.join(names)})" if names else ""
