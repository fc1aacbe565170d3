r"""Fetching a model's artifact from anywhere fsspec reaches, and its digest.

**The digest** of a tree is a sha256, in hex, over `b"magnetar-tree-1\n"` and then, for each regular file in the order
of the UTF-8 bytes of its path relative to the root (`/` between parts):

    length of the path (8 bytes, big-endian)   the path's UTF-8 bytes   length of the content (8 bytes, big-endian)
    the content

Modes, times, owners and empty folders do not count. An artifact that is one file is a tree of that file under its own
name.

**On disk**: `into/<key of the URI>/<digest>/` holds the tree. A tree is built beside it and renamed when it is whole,
so a half-fetched one is never seen, and one in use is never changed: another content has another digest, and so
another folder.
"""

import errno
import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit, urlunsplit

from magnetar_agent.adapters.base import Code, OperationError

_HEADER = b"magnetar-tree-1\n"
_CHUNK = 1 << 20
_WRAPPERS = frozenset({"zip", "tar"})  # chained protocols that only read; others write caches elsewhere on this host
_LOCAL = frozenset({"file", "local"})
_INDIRECT = frozenset(
    {
        "async_wrapper", "asynclocal", "asyncwrapper", "blockcache", "cached", "dask", "dir", "dvc", "filecache", "generic",
        "git", "libarchive", "reference", "simplecache",
    }
)  # fmt: skip
"""Protocols that read another place than the URI shows, this host's files among them."""

_FORBIDDEN = (401, 403)

MAX_FILES = 100_000
"""Files in one artifact: a small archive may name millions, and a file system has only so many inodes."""


class ArtifactError(OperationError):
    """An artifact cannot be had; ARTIFACT_UNREACHABLE and LOAD_FAIL_DISK are retriable, the other codes final."""


@dataclass(frozen=True, slots=True)
class FetchedArtifact:
    """An artifact on this host.

    Attributes:
        path: Folder of its tree. Not to be changed.
        sha256: Its digest, as the module defines it.
        bytes: Size of its files.
        cached: It was here before the call.
    """

    path: Path
    sha256: str
    bytes: int
    cached: bool


def fetch(
    uri: str,
    storage_options: Mapping[str, object],
    into: Path,
    *,
    expected: str = "",
    roots: Sequence[Path] = (),
) -> FetchedArtifact:
    """Fetch a file or a tree, unless the expected content is here already.

    Without `expected` the source is always read again: a URI is a place, and only a digest says what is in it. Whether
    another digest than the expected one is an error is the caller's decision.

    Args:
        uri: `file:///…`, `s3://…`, `gs://…`, `https://…`, any protocol of fsspec; `zip::` or `tar::` before it reads
            an archive's members.
        storage_options: For fsspec; never shown in a message.
        into: The agent's artifact folder. Nothing is written outside it.
        expected: Digest pinned to the model's generation, if any. What is cached under it is hashed again before it is
            used.
        roots: Folders of this host that a `file:` URI may lead into; none = whatever this process may read.

    Raises:
        ArtifactError: ARTIFACT_MISSING, ARTIFACT_INVALID, ARTIFACT_FORBIDDEN, DRIVER_MISSING, ARTIFACT_UNREACHABLE or
            LOAD_FAIL_DISK.
    """
    home = into / hashlib.sha256(uri.encode()).hexdigest()[:32]
    if re.fullmatch(r"[0-9a-f]{64}", expected) and (home / expected).is_dir():
        sha256, size = digest(home / expected)
        if sha256 == expected:
            return FetchedArtifact(home / expected, sha256, size, cached=True)
        shutil.rmtree(home / expected)  # damaged on disk
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=home) as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        _fetch_into(uri, storage_options, tree, roots)
        sha256, size = digest(tree)
        target = home / sha256
        cached = target.is_dir()
        if not cached:
            try:
                tree.rename(target)
            except OSError as error:
                if not target.is_dir():  # another fetch of the same may have been first
                    raise ArtifactError(Code.LOAD_FAIL_DISK, f"cannot keep {redacted(uri)}: {error}") from error
        return FetchedArtifact(target, sha256, size, cached)


def forget(uri: str, into: Path, *, keep: str = "") -> int:
    """Remove what is cached for a URI, but for the tree of digest `keep`. Returns the bytes freed."""
    freed = 0
    home = into / hashlib.sha256(uri.encode()).hexdigest()[:32]
    for tree in [p for p in home.glob("*") if p.name != keep]:
        freed += sum(p.stat().st_size for p in tree.rglob("*") if p.is_file())
        shutil.rmtree(tree)
    return freed


def digest(tree: Path) -> tuple[str, int]:
    """Return the digest of a folder's tree (see the module), or of one file, and the bytes of its files.

    Raises:
        ArtifactError: ARTIFACT_INVALID, it holds something that is neither a file nor a folder.
    """
    total = 0
    sha = hashlib.sha256(_HEADER)
    files = local_files(tree)
    for relative in sorted(files, key=lambda name: name.encode("utf-8", "surrogateescape")):
        path = files[relative]
        size = path.stat().st_size
        name = relative.encode("utf-8", "surrogateescape")
        sha.update(len(name).to_bytes(8, "big") + name + size.to_bytes(8, "big"))
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                sha.update(chunk)
        total += size
    return sha.hexdigest(), total


def local_files(root: Path) -> dict[str, Path]:
    """Return the regular files of a local tree by relative path.

    A symbolic link counts as the file it leads to, if that is in the tree.

    Raises:
        ArtifactError: ARTIFACT_INVALID, a link leads out of the tree or to a folder, or there is a device, socket or
            pipe.
    """
    if root.is_file():
        return {root.name: root}
    inside = root.resolve()
    found: dict[str, Path] = {}

    def refuse(error: OSError) -> None:
        raise error

    for folder, folders, names in os.walk(root, onerror=refuse):
        for name in [*names, *(f for f in folders if (Path(folder) / f).is_symlink())]:
            path = Path(folder) / name
            relative = path.relative_to(root).as_posix()
            if path.is_symlink() and not path.resolve().is_relative_to(inside):
                raise ArtifactError(Code.ARTIFACT_INVALID, f"{relative} is a link that leads out of the artifact")
            if not path.exists() or not stat.S_ISREG(path.stat().st_mode):
                raise ArtifactError(Code.ARTIFACT_INVALID, f"{relative} is neither a file nor a folder")
            found[relative] = path
    return found


def redacted(uri: str) -> str:
    """Return a URI without user, password, query and fragment: those carry credentials and signatures."""
    head, chain, last = uri.rpartition("::")
    parts = urlsplit(last)
    netloc = parts.netloc.rpartition("@")[2]
    return head + chain + urlunsplit((parts.scheme, netloc, parts.path, "", ""))


def _fetch_into(uri: str, options: Mapping[str, object], tree: Path, roots: Sequence[Path]) -> None:
    *wrappers, source = uri.split("::")
    protocol = source.partition(":")[0]
    if (
        not re.match(r"[a-z][a-z0-9+._-]*:", source)
        or protocol in _INDIRECT
        or not {w.partition("://")[0] for w in wrappers} <= _WRAPPERS
    ):
        raise ArtifactError(
            Code.ARTIFACT_INVALID,
            f"storage URI {redacted(uri)!r} must begin with a protocol (file://, s3://, …), zip:: or tar::",
        )
    if protocol in _LOCAL and roots:
        _check_place(source, roots)
    try:
        _copy(uri, options, tree)
    except ArtifactError as error:
        raise ArtifactError(error.code, f"{redacted(uri)}: {error.message}") from error
    except Exception as error:  # noqa: BLE001 - drivers raise their own libraries' errors; each gets a code
        code = _code(error)
        # `from None`: the driver's exception may carry URLs with signatures, or the options themselves.
        raise ArtifactError(
            code, f"{redacted(uri)}: {_hint(code, error)}{_scrubbed(str(error), uri, options)}"
        ) from None


def _copy(uri: str, options: Mapping[str, object], tree: Path) -> None:
    if uri.startswith(("file:", "local:")):
        _copy_local(uri, tree)
        return
    import fsspec.core  # pyright: ignore[reportMissingTypeStubs]

    url_to_fs = cast("Callable[..., tuple[Any, str]]", fsspec.core.url_to_fs)  # pyright: ignore[reportUnknownMemberType]
    wrapped = "::" in uri
    keywords = {uri.rpartition("::")[2].partition(":")[0]: dict(options)} if wrapped else dict(options)
    fs, root = url_to_fs(uri, **keywords)
    fs.invalidate_cache()  # drivers are shared and remember listings
    for member in fs.tar.getmembers() if uri.startswith("tar:") else ():
        # A link has no size of its own: a small archive of them could become anything, and its driver reads devices as
        # files that are broken, which another attempt might find whole.
        if not (member.isreg() or member.isdir()):
            raise ArtifactError(
                Code.ARTIFACT_INVALID, f"{member.name!r} is neither a file nor a folder (links in archives are refused)"
            )
    root = root.rstrip("/")
    listed: dict[str, dict[str, Any]]
    info: dict[str, Any] = {"type": "directory"} if root == "" or uri.endswith("/") else fs.info(root)
    if info["type"] == "file":
        listed, names = (
            {root: info},
            [urlsplit(root).path.rpartition("/")[2] if "://" in root else root.rpartition("/")[2]],
        )
    else:
        listed = {
            path: row
            for path, row in fs.find(root, detail=True).items()
            if row["type"] == "file" and not path.endswith("/")
        }
        names = [path.removeprefix(root).removeprefix("/") for path in listed]
    if not listed:
        raise FileNotFoundError(root)
    _check_room(tree, len(listed), sum(int(row.get("size") or 0) for row in listed.values()))
    targets = [_target(tree, name) for name in names]
    for target in targets:
        target.parent.mkdir(parents=True, exist_ok=True)
    fs.get(list(listed), [str(target) for target in targets])


def _check_place(uri: str, roots: Sequence[Path]) -> None:
    """Refuse what is not below one of the folders, links followed; a driver may or may not decode `%`."""
    for path in {_local_path(uri), unquote(_local_path(uri))}:
        place = Path(path)
        if not place.is_absolute() or not any(place.resolve().is_relative_to(root.resolve()) for root in roots):
            raise ArtifactError(
                Code.ARTIFACT_FORBIDDEN, f"{uri} is not below a folder that this agent may read artifacts from"
            )


def _local_path(uri: str) -> str:
    rest = uri.partition(":")[2]
    return rest.removeprefix("//localhost") if rest.startswith("//localhost/") else rest.removeprefix("//")


def _copy_local(uri: str, tree: Path) -> None:
    root = Path(unquote(_local_path(uri)))
    if not root.is_absolute():
        raise ArtifactError(Code.ARTIFACT_INVALID, "a file URI holds an absolute path, as in file:///models/iris")
    if not root.exists():
        raise FileNotFoundError(str(root))
    files = local_files(root)
    if not files:
        raise FileNotFoundError(f"{root} holds no file")
    _check_room(tree, len(files), sum(path.stat().st_size for path in files.values()))
    for relative, path in files.items():
        target = _target(tree, relative)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def _target(tree: Path, relative: str) -> Path:
    """Place a name from a listing or an archive inside the tree; the name is somebody else's and may be anything."""
    parts = relative.split("/")
    if any(part in {"", ".", ".."} for part in parts) or "\\" in relative or any(ord(c) < 32 for c in relative):
        raise ArtifactError(Code.ARTIFACT_INVALID, f"{relative!r} is not a path inside an artifact")
    return tree.joinpath(*parts)


def _check_room(tree: Path, count: int, needed: int) -> None:
    """Refuse before a byte is written. What an archive says of its members' sizes also bounds what is read of them."""
    if count > MAX_FILES:
        raise ArtifactError(Code.ARTIFACT_INVALID, f"holds {count} files, and {MAX_FILES} are the most")
    free = shutil.disk_usage(tree).free
    if needed > free:
        raise ArtifactError(Code.LOAD_FAIL_DISK, f"needs {needed} bytes of disk, {free} are free")


def _code(error: Exception) -> Code:
    if isinstance(error, (FileExistsError, NotADirectoryError, IsADirectoryError)):
        return Code.ARTIFACT_INVALID  # an object store may hold both `a` and `a/b`; a file system cannot
    if isinstance(error, FileNotFoundError):
        return Code.ARTIFACT_MISSING
    if isinstance(error, PermissionError) or getattr(error, "status", 0) in _FORBIDDEN:
        return Code.ARTIFACT_FORBIDDEN
    if isinstance(error, ImportError):
        return Code.DRIVER_MISSING
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return Code.LOAD_FAIL_DISK
    if isinstance(error, ValueError) and "Protocol not known" in str(error):
        return Code.ARTIFACT_INVALID
    return Code.ARTIFACT_UNREACHABLE


def _hint(code: Code, error: Exception) -> str:
    match code:
        case Code.ARTIFACT_MISSING:
            return "there is nothing at this place: "
        case Code.DRIVER_MISSING:
            return "this protocol needs a package in the agent's environment: "
        case Code.ARTIFACT_FORBIDDEN:
            return "access is refused; check secretName: "
        case _:
            return f"{type(error).__name__}: "


def _scrubbed(text: str, uri: str, options: Mapping[str, object]) -> str:
    """Take out of a driver's message whatever could be a credential."""
    text = text.replace(uri, redacted(uri))
    text = re.sub(r"(\w+://)[^/\s@]*@", r"\1", text)
    text = re.sub(r"(\w+://[^\s?'\"]*)\?[^\s'\"]*", r"\1", text)
    for value in _leaves(options):
        if len(value) > 3:
            text = text.replace(value, "***")
    return text[:1000]


def _leaves(value: object) -> list[str]:
    if isinstance(value, Mapping):
        return [leaf for item in cast("Mapping[str, object]", value).values() for leaf in _leaves(item)]
    if isinstance(value, (list, tuple)):
        return [leaf for item in cast("list[object]", value) for leaf in _leaves(item)]
    return [str(value)]
