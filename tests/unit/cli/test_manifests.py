"""Manifests are read whole, and what is wrong with one is named: file, document, field."""

from pathlib import Path

import pytest
import yaml

from magnetar_cli.exit_codes import ExitCode
from magnetar_cli.manifests import BadManifest, parse, read
from magnetar_events.requests import DeployModel, SetPolicy, SetTenant

IRIS = """
apiVersion: magnetar/v1
kind: Model
metadata: {name: iris}
spec: {storageUri: "file:///models/iris", requirements: [sklearn], memory: 100Mi, replicas: 2}
"""


def written(folder: Path, text: str, name: str = "models.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(BadManifest) as raised:
        read(written(folder, text))
    return str(raised.value)


def test_the_issues_manifest_is_a_deploy_model(tmp_path: Path) -> None:
    (manifest,) = read(written(tmp_path, IRIS))
    assert isinstance(manifest.request, DeployModel)
    model = manifest.request.model
    assert (model.key, model.memory, model.replicas) == ("default/iris", 100 * 2**20, 2)
    assert model.requirements == ("sklearn",)


@pytest.mark.parametrize(
    ("written_as", "size"), [("100Mi", 100 * 2**20), ("2G", 2 * 10**9), ("1.5Gi", 3 * 2**29), (512, 512)]
)
def test_memory_is_written_as_kubernetes_quantities_or_bytes(written_as: object, size: int) -> None:
    document = yaml.safe_load(IRIS)
    document["spec"]["memory"] = written_as
    request = parse(document, "here").request
    assert isinstance(request, DeployModel)
    assert request.model.memory == size


@pytest.mark.parametrize(
    ("field", "wrong", "told"),
    [
        ("memory: 100Mi", "memroy: 100Mi", "spec.memroy: unknown field (did you mean memory?)"),
        ("kind: Model", "kind: Modle", "kind: 'Modle' is not known (did you mean Model?)"),
        ("{name: iris}", "{name: iris, namespace: x}", "metadata.namespace: unknown field"),
        ("spec: {", "status: {}\nspec: {", "status: unknown field"),
        ("memory: 100Mi", "runtime: {kin: triton}", "spec.runtime.kin: unknown field (did you mean kind?)"),
        ("memory: 100Mi", "name: other", "spec.name: unknown field; it belongs in metadata"),
    ],
)
def test_an_unknown_field_is_refused_by_name_with_file_and_document(
    tmp_path: Path, field: str, wrong: str, told: str
) -> None:
    first = IRIS.replace("iris}", "first}")
    said = refusal(tmp_path, f"{first}\n---\n{IRIS.replace(field, wrong)}")
    assert f"models.yaml, document 2: {told}" in said


@pytest.mark.parametrize(
    ("field", "wrong", "told"),
    [
        ("100Mi", "lots", "spec.memory: 'lots' is not an amount of memory"),
        ("replicas: 2", "replicas: 2000", "spec.replicas: "),
        ('storageUri: "file:///models/iris", ', "", "spec.storageUri: is missing"),
        ("replicas: 2", "replicas: 2, replicas: 3", "'replicas' is written twice"),
        ("magnetar/v1", "mlops.seldon.io/v1alpha1", "must be magnetar/v1"),
        ("file:///models", "s3://key:secret@models", "credentials may not be written in a URI"),
    ],
)
def test_a_wrong_value_is_refused_with_the_field(tmp_path: Path, field: str, wrong: str, told: str) -> None:
    assert told in refusal(tmp_path, IRIS.replace(field, wrong))


def test_a_credential_is_refused_without_being_repeated(tmp_path: Path) -> None:
    assert "hush" not in refusal(tmp_path, IRIS.replace("file:///models", "s3://key:hush@models"))


def test_a_folder_is_read_in_order_of_name_and_one_bad_file_refuses_it_all(tmp_path: Path) -> None:
    written(tmp_path, IRIS.replace("iris", "b"), "b.yml")
    written(tmp_path, IRIS.replace("iris", "a"), "a.yaml")
    written(tmp_path, "not a manifest", "README.md")
    assert [manifest.request.subject for manifest in read(tmp_path)] == ["default/a", "default/b"]
    written(tmp_path, "kind: [", "c.yaml")
    with pytest.raises(BadManifest, match=r"c\.yaml cannot be read"):
        read(tmp_path)


def test_the_same_model_twice_is_refused(tmp_path: Path) -> None:
    assert "default/iris is already in" in refusal(tmp_path, f"{IRIS}\n---\n{IRIS}")


def test_a_policy_is_a_set_policy_and_its_fields_are_checked_too(tmp_path: Path) -> None:
    text = "apiVersion: magnetar/v1\nkind: Policy\nspec: {leaseMs: 7000}\n"
    (manifest,) = read(written(tmp_path, text))
    assert isinstance(manifest.request, SetPolicy)
    assert manifest.request.policy.lease_ms == 7000
    assert "spec.leaseMS: unknown field (did you mean leaseMs?)" in refusal(
        tmp_path, text.replace("leaseMs", "leaseMS")
    )


@pytest.mark.parametrize("text", ["", "---\n---\n"])
def test_nothing_is_not_a_manifest(tmp_path: Path, text: str) -> None:
    assert "holds no manifest" in refusal(tmp_path, text)


def test_a_bad_manifest_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(BadManifest) as raised:
        read(tmp_path / "missing.yaml")
    assert raised.value.code is ExitCode.USAGE


def test_fields_are_written_as_on_the_wire(tmp_path: Path) -> None:
    """A Python attribute's name is no manifest field."""
    text = "apiVersion: magnetar/v1\nkind: Model\nmetadata: {name: iris}\nspec: {storage_uri: file:///x}\n"
    assert "spec.storage_uri: unknown field (did you mean storageUri?)" in refusal(tmp_path, text)


@pytest.mark.parametrize("text", ["[" * 20_000, "{a: " * 5_000], ids=["lists", "mappings"])
def test_deep_nesting_is_a_bad_manifest(tmp_path: Path, text: str) -> None:
    """Nobody sees where the parser gave up."""
    (tmp_path / "deep.yaml").write_text(text)
    with pytest.raises(BadManifest, match="cannot be read"):
        read(tmp_path / "deep.yaml")


def test_a_tenant_is_a_set_tenant_and_its_fields_are_checked_too(tmp_path: Path) -> None:
    text = """
apiVersion: magnetar/v1
kind: Tenant
metadata: {name: search}
spec: {floorReplicas: 1, capReplicas: 3, capBytes: 2Gi, overCap: refuse}
"""
    (manifest,) = read(written(tmp_path, text))
    assert isinstance(manifest.request, SetTenant)
    tenant = manifest.request.tenant
    assert (tenant.name, tenant.floor_replicas, tenant.cap_replicas, tenant.cap_bytes) == ("search", 1, 3, 2 * 2**30)
    assert manifest.request.subject == "tenant:search"
    for wrong, told in (
        (("capBytes", "capByte"), "spec.capByte: unknown field (did you mean capBytes?)"),
        (("floorReplicas: 1", "floorReplicas: 4"), "floorReplicas 4 is above capReplicas 3"),
        (("refuse", "panic"), "spec.overCap: "),
        (("spec: {", "spec: {name: x, "), "spec.name: unknown field; it belongs in metadata"),
        (("{name: search}", "{name: search, tenant: x}"), "metadata.tenant: unknown field"),
    ):
        assert told in refusal(tmp_path, text.replace(*wrong))
