"""Artifacts: their digest, their cache, and what must never come in with them."""

import hashlib
import io
import os
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from magnetar_agent import artifacts
from magnetar_agent.adapters.base import Code
from magnetar_agent.artifacts import ArtifactError, digest, fetch, forget, redacted

GOLDEN = "eae6ea07f36ecf9bee9cabc680835c383817f02e3cd4579d933ce56b41315efb"


@pytest.fixture
def iris(tmp_path: Path) -> Path:
    root = tmp_path / "source" / "iris"
    (root / "data").mkdir(parents=True)
    (root / "a.txt").write_bytes(b"hello")
    (root / "data" / "b.bin").write_bytes(b"\x00\x01")
    return root


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]
    yield fs
    fs.store.clear()


def refusal(uri: str, into: Path, **options: object) -> ArtifactError:
    with pytest.raises(ArtifactError) as caught:
        fetch(uri, options, into)
    assert not [p for p in into.rglob("*") if p.is_file()], "a refused artifact left files behind"
    return caught.value


def test_the_digest_is_what_the_documentation_says(iris: Path) -> None:
    """The digest is recomputed here from its definition alone, and pinned as a number."""
    expected = hashlib.sha256(
        b"magnetar-tree-1\n"
        + (5).to_bytes(8, "big") + b"a.txt" + (5).to_bytes(8, "big") + b"hello"
        + (10).to_bytes(8, "big") + b"data/b.bin" + (2).to_bytes(8, "big") + b"\x00\x01"
    ).hexdigest()  # fmt: skip
    assert digest(iris) == (expected, 7)
    assert expected == GOLDEN


def test_the_digest_ignores_modes_times_and_empty_folders(iris: Path) -> None:
    """Two copies of one model have one digest, whatever brought them here."""
    before = digest(iris)
    (iris / "a.txt").chmod(0o600)
    os.utime(iris / "a.txt", (1, 1))
    (iris / "empty").mkdir()
    assert digest(iris) == before


def test_the_digest_tells_where_a_name_ends_and_a_content_begins(tmp_path: Path) -> None:
    """Moving a byte from content to name changes the digest: lengths are part of it."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    (tmp_path / "one" / "ab").write_bytes(b"c")
    (tmp_path / "two" / "a").write_bytes(b"bc")
    assert digest(tmp_path / "one") != digest(tmp_path / "two")


def test_a_tree_is_fetched_and_kept_under_its_digest(iris: Path, tmp_path: Path) -> None:
    """What is fetched is a copy: a change of the source reaches nobody who uses it."""
    artifact = fetch(iris.as_uri(), {}, tmp_path / "cache")
    (iris / "a.txt").write_bytes(b"changed")
    assert (artifact.path / "a.txt").read_bytes() == b"hello"
    assert (artifact.path.name, artifact.bytes, artifact.cached) == (artifact.sha256, 7, False)


def test_one_file_is_a_tree_of_that_file(iris: Path, tmp_path: Path) -> None:
    """A storage URI may name the model file itself."""
    artifact = fetch((iris / "a.txt").as_uri(), {}, tmp_path / "cache")
    assert [p.name for p in artifact.path.iterdir()] == ["a.txt"]
    assert artifact.sha256 == digest(iris / "a.txt")[0]


def test_an_expected_artifact_comes_from_the_cache_without_its_source(iris: Path, tmp_path: Path) -> None:
    """A pinned artifact that is here needs no network."""
    first = fetch(iris.as_uri(), {}, tmp_path / "cache")
    iris.rename(iris.with_name("moved"))
    again = fetch(iris.as_uri(), {}, tmp_path / "cache", expected=first.sha256)
    assert again.cached
    assert again.path == first.path


def test_a_damaged_cache_is_fetched_again(iris: Path, tmp_path: Path) -> None:
    """The cache is hashed before it is used."""
    first = fetch(iris.as_uri(), {}, tmp_path / "cache")
    (first.path / "a.txt").write_bytes(b"rotten")
    again = fetch(iris.as_uri(), {}, tmp_path / "cache", expected=first.sha256)
    assert (again.path / "a.txt").read_bytes() == b"hello"


def test_a_changed_source_has_another_digest_beside_the_old(iris: Path, tmp_path: Path) -> None:
    """A URI is a place, so without a pinned digest it is read again; the tree in use stays."""
    first = fetch(iris.as_uri(), {}, tmp_path / "cache")
    (iris / "a.txt").write_bytes(b"other")
    second = fetch(iris.as_uri(), {}, tmp_path / "cache")
    assert first.sha256 != second.sha256
    assert (first.path / "a.txt").read_bytes() == b"hello"
    assert forget(iris.as_uri(), tmp_path / "cache", keep=second.sha256) == 7
    assert not first.path.exists()
    assert second.path.exists()


def test_any_protocol_of_fsspec_serves(memory: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    """A tree in an object store has the digest of the same tree on disk."""
    memory.pipe({"/bucket/iris/a.txt": b"hello", "/bucket/iris/data/b.bin": b"\x00\x01"})
    assert fetch("memory://bucket/iris", {}, tmp_path).sha256 == GOLDEN
    assert fetch("memory://bucket/iris/", {}, tmp_path).sha256 == GOLDEN


def test_a_replaced_object_is_seen(
    memory: fsspec.AbstractFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing that the driver remembers, as S3's does, is not believed."""
    remembered: dict[str, Any] = {}
    find = type(memory).find

    def remembering(fs: fsspec.AbstractFileSystem, root: str, **options: Any) -> Any:
        if root not in remembered:
            remembered[root] = find(fs, root, **options)
        return remembered[root]

    monkeypatch.setattr(type(memory), "find", remembering)
    monkeypatch.setattr(type(memory), "invalidate_cache", lambda *_: remembered.clear())
    memory.pipe({"/bucket/iris/a.txt": b"one"})
    first = fetch("memory://bucket/iris", {}, tmp_path)
    memory.pipe({"/bucket/iris/b.txt": b"two"})
    assert fetch("memory://bucket/iris", {}, tmp_path).sha256 != first.sha256


def test_the_members_of_an_archive_are_a_tree(iris: Path, tmp_path: Path) -> None:
    """`zip::` reads into an archive, and the digest is that of its content."""
    with zipfile.ZipFile(tmp_path / "iris.zip", "w") as archive:
        archive.write(iris / "a.txt", "a.txt")
        archive.write(iris / "data" / "b.bin", "data/b.bin")
    assert fetch(f"zip://::file://{tmp_path}/iris.zip", {}, tmp_path / "cache").sha256 == GOLDEN


@pytest.mark.parametrize("member", ["../../escaped", "data/../../escaped", "a\\..\\escaped", "line\nbreak"])
def test_an_archive_member_never_escapes(member: str, tmp_path: Path) -> None:
    """A member whose name climbs out is refused, and nothing of the archive stays."""
    with zipfile.ZipFile(tmp_path / "evil.zip", "w") as archive:
        archive.writestr("model.joblib", b"x")
        archive.writestr(member, b"evil")
    assert refusal(f"zip://::file://{tmp_path}/evil.zip", tmp_path / "deep" / "cache").code == Code.ARTIFACT_INVALID
    assert not list(tmp_path.rglob("escaped"))


def _tar(path: Path, *members: tarfile.TarInfo) -> str:
    """An archive whose members are whatever they claim to be; each regular one holds two bytes."""
    with tarfile.open(path, "w") as archive:
        for member in members:
            member.size = 2 if member.isreg() else 0
            archive.addfile(member, io.BytesIO(b"ok") if member.isreg() else None)
    return f"tar://::file://{path}"


def _member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode = kind, target, mode
    return member


@pytest.mark.parametrize(
    "member",
    [
        _member("../escaped"),
        _member("link", tarfile.SYMTYPE, "/etc/passwd"),
        _member("link", tarfile.SYMTYPE, "../../../etc/passwd"),
        _member("hard", tarfile.LNKTYPE, "/etc/passwd"),
        _member("hard", tarfile.LNKTYPE, "../outside"),
        _member("null", tarfile.CHRTYPE),
        _member("disk", tarfile.BLKTYPE),
        _member("pipe", tarfile.FIFOTYPE),
    ],
    ids=lambda member: f"{member.name}-{member.linkname}",
)
def test_a_tar_with_links_devices_or_places_outside_is_refused(member: tarfile.TarInfo, tmp_path: Path) -> None:
    """Finally so: it is the same on every attempt; and nothing of it is anywhere."""
    uri = _tar(tmp_path / "evil.tar", _member("model.joblib"), member)
    cache = tmp_path / "deep" / "cache"
    assert refusal(uri, cache).code == Code.ARTIFACT_INVALID
    assert not list(tmp_path.rglob("escaped"))


def test_a_tar_gives_no_file_more_rights_than_a_new_one_has(tmp_path: Path) -> None:
    """Set-uid, sticky and executable bits of an archive are not taken over."""
    artifact = fetch(_tar(tmp_path / "m.tar", _member("model.joblib", mode=0o6777)), {}, tmp_path / "cache")
    assert (artifact.path / "model.joblib").lstat().st_mode & 0o7111 == 0


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the size of what it would become, and by the number of its files."""
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model.joblib", b"\0" * 20_000_000)
    assert (tmp_path / "bomb.zip").stat().st_size < 100_000
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10_000_000))
    assert refusal(f"zip://::file://{tmp_path}/bomb.zip", tmp_path / "cache").code == Code.LOAD_FAIL_DISK
    monkeypatch.undo()
    monkeypatch.setattr(artifacts, "MAX_FILES", 3)
    many = _tar(tmp_path / "many.tar", *[_member(f"{number}") for number in range(4)])
    assert refusal(many, tmp_path / "cache").code == Code.ARTIFACT_INVALID


def test_an_archive_that_lies_about_its_size_gives_no_more_than_it_said(tmp_path: Path) -> None:
    """The sizes that the room was judged by are also the most that is read."""
    path = tmp_path / "liar.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model.joblib", b"\0" * 1_000_000)
    path.write_bytes(path.read_bytes().replace((1_000_000).to_bytes(4, "little"), (10).to_bytes(4, "little")))
    cache = tmp_path / "cache"
    with pytest.raises(ArtifactError):
        fetch(f"zip://::file://{path}", {}, cache)
    assert sum(each.stat().st_size for each in cache.rglob("*") if each.is_file()) <= 10


def test_with_roots_a_file_uri_leads_nowhere_else(iris: Path, tmp_path: Path) -> None:
    """Neither by a path, nor by `..`, nor by a link, nor inside of another protocol."""
    allowed, outside = iris.parent, tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("secret")
    (allowed / "link").symlink_to(outside)
    with zipfile.ZipFile(outside / "a.zip", "w") as archive:
        archive.writestr("x", b"x")
    for uri in (
        outside.as_uri(),
        f"file:///{allowed}/../outside",
        f"file:{allowed}/%2e%2e/outside",
        f"local://{outside}",
        f"{allowed.as_uri()}/link",
        f"zip://::file://{outside}/a.zip",
        "file://~/x",
    ):
        with pytest.raises(ArtifactError) as refused:
            fetch(uri, {}, tmp_path / "cache", roots=(allowed,))
        assert refused.value.code == Code.ARTIFACT_FORBIDDEN, uri
    assert fetch(iris.as_uri(), {}, tmp_path / "cache", roots=(tmp_path / "other", allowed)).sha256 == GOLDEN


@pytest.mark.parametrize("protocol", ["reference", "dir", "generic", "git", "simplecache", "asynclocal"])
def test_a_protocol_that_reads_another_place_is_refused(protocol: str, tmp_path: Path) -> None:
    assert refusal(f"{protocol}:///etc", tmp_path / "cache").code == Code.ARTIFACT_INVALID


def test_an_object_key_never_escapes(memory: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    """Object stores allow `..` in a key; the agent's folder does not."""
    memory.store["/bucket/iris/../../escaped"] = _object(memory, b"evil")
    assert refusal("memory://bucket/iris", tmp_path / "cache").code == Code.ARTIFACT_INVALID


def test_a_link_out_of_the_artifact_is_refused(iris: Path, tmp_path: Path) -> None:
    """A link to the host's files would serve them to whoever may deploy a model."""
    (tmp_path / "host-secret").write_text("secret")
    (iris / "weights").symlink_to(tmp_path / "host-secret")
    assert refusal(iris.as_uri(), tmp_path / "cache").code == Code.ARTIFACT_INVALID


def test_a_link_to_a_folder_is_refused(iris: Path, tmp_path: Path) -> None:
    """Otherwise a link to its own parent would be a tree without end."""
    (iris / "loop").symlink_to(iris)
    assert refusal(iris.as_uri(), tmp_path / "cache").code == Code.ARTIFACT_INVALID


def test_a_link_inside_the_artifact_is_the_file_it_leads_to(iris: Path, tmp_path: Path) -> None:
    """Hubs store `model.bin` as a link to a blob beside it."""
    (iris / "model.bin").symlink_to(iris / "data" / "b.bin")
    artifact = fetch(iris.as_uri(), {}, tmp_path / "cache")
    assert not (artifact.path / "model.bin").is_symlink()
    assert (artifact.path / "model.bin").read_bytes() == b"\x00\x01"


def test_a_pipe_in_the_artifact_is_refused(iris: Path, tmp_path: Path) -> None:
    """Reading a pipe would wait for ever."""
    os.mkfifo(iris / "pipe")
    assert refusal(iris.as_uri(), tmp_path / "cache").code == Code.ARTIFACT_INVALID


@pytest.mark.parametrize("uri", ["file:///nowhere/at/all", "memory://nothing/here"])
def test_nothing_at_the_place_is_final(uri: str, tmp_path: Path) -> None:
    """A missing artifact is missing on every attempt until somebody puts it there."""
    error = refusal(uri, tmp_path)
    assert (error.code, error.retriable) == (Code.ARTIFACT_MISSING, False)


@pytest.mark.parametrize(
    "uri", ["models/iris", "/models/iris", "file://models/iris", "nope://x", "simplecache::file:///etc"]
)
def test_a_uri_that_is_no_place_is_invalid(uri: str, tmp_path: Path) -> None:
    """A path without a protocol means something else on every host."""
    assert refusal(uri, tmp_path).code == Code.ARTIFACT_INVALID


def test_a_missing_driver_is_named(tmp_path: Path) -> None:
    """The message says which package to install."""
    error = refusal("gs://bucket/iris", tmp_path)
    assert (error.code, error.retriable) == (Code.DRIVER_MISSING, False)
    assert "gcsfs" in error.message


def test_an_unreachable_store_is_retriable_and_keeps_its_secrets(tmp_path: Path) -> None:
    """User, password, signature and options are in no message."""
    error = refusal("ftp://me:hunter22@127.0.0.1:1/iris?X-Signature=abcdef", tmp_path, username="hunter33")
    assert (error.code, error.retriable) == (Code.ARTIFACT_UNREACHABLE, True)
    for secret in ("hunter22", "abcdef", "hunter33"):
        assert secret not in str(error)
    assert error.__cause__ is None


def test_a_redacted_uri_still_says_where() -> None:
    """Host and path stay."""
    assert redacted("https://me:pw@host:1/a/b?sig=1#f") == "https://host:1/a/b"
    assert redacted("zip://::s3://key:pw@bucket/a.zip") == "zip://::s3://bucket/a.zip"


def _object(fs: fsspec.AbstractFileSystem, content: bytes) -> object:
    fs.pipe("/scratch", content)
    return fs.store.pop("/scratch")
