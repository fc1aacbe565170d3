"""An inference server by hand: it obeys, is slow, fails, dies or lies, as a test wants it."""

import threading
from collections.abc import Callable, Iterable

from magnetar_agent.adapters.base import (
    Code,
    IndexEntry,
    IndexState,
    LoadFailed,
    LoadResult,
    ModelSpec,
    ServerUnreachable,
    UnloadFailed,
)


class FakeAdapter:
    """An ``Adapter`` whose server is a dictionary.

    Attributes:
        models: what the server's index says.
        calls: every load and unload, in order.
        up: whether the server answers; a load on a dead one fails.
        busy: the server takes questions, and is silent.
        fails: name → (code, message) of every load of it.
        lies: names that a load reports as loaded and that never come into the index.
        gate: loads wait until it is set: clear it to make them slow.
        on_load: called with what is loaded, before it is.
    """

    kind = "fake"

    def __init__(self, held: Iterable[str] = ()) -> None:
        self.models = {name: IndexEntry(IndexState.READY) for name in held}
        self.calls: list[tuple[str, str]] = []
        self.specs: list[ModelSpec] = []
        self.up = True
        self.busy = False
        self.asked = 0
        self.fails: dict[str, tuple[Code, str]] = {}
        self.lies: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.on_load: Callable[[ModelSpec], object] = lambda _: None
        self.url = "http://127.0.0.1:9"
        self.closed = False

    def load(self, spec: ModelSpec) -> LoadResult:
        if not self.up:
            raise LoadFailed(Code.SERVER_UNREACHABLE, "the server is down")
        self.calls.append(("load", spec.name))
        self.specs.append(spec)
        if spec.name in self.models:
            return LoadResult(spec.name, already=True, load_ms=0.0, verify_ms=0.0)
        self.gate.wait(30)
        self.on_load(spec)
        if spec.name in self.fails:
            raise LoadFailed(*self.fails[spec.name])
        if spec.name not in self.lies:
            self.models = {**self.models, spec.name: IndexEntry(IndexState.READY)}
        return LoadResult(spec.name, already=False, load_ms=1.0, verify_ms=1.0)

    def unload(self, name: str) -> None:
        if not self.up:
            raise UnloadFailed(Code.SERVER_UNREACHABLE, "the server is down")
        self.calls.append(("unload", name))
        self.drop(name)

    def drop(self, name: str) -> None:
        """Lose a model behind everybody's back."""
        self.models = {other: entry for other, entry in self.models.items() if other != name}

    def index(self) -> dict[str, IndexEntry]:
        self.asked += 1
        if self.busy:
            raise ServerUnreachable("read time-out", busy=True)
        if not self.up:
            raise ServerUnreachable("the server is down")
        return self.models

    def ready(self, name: str) -> bool:
        return self.up and name in self.models

    def alive(self) -> bool:
        return self.up

    def endpoint(self, name: str) -> str:
        return self.url

    def server_info(self) -> tuple[str, str]:
        return self.kind, "1"

    def capabilities(self) -> tuple[str, ...]:
        return ("sklearn",)

    def close(self) -> None:
        self.closed = True

    def loads(self, name: str) -> int:
        """How often a load of this model was tried."""
        return self.calls.count(("load", name))
