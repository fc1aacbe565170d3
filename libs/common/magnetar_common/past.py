"""What a version of a model was, from the log: also of one of which nothing is left."""

from collections.abc import Iterable

from magnetar_common.bus import Bus
from magnetar_common.log import LogRecord, replay
from magnetar_events import facts as f
from magnetar_events.models import ModelSpec


class Recalled:
    """One version of a model, gathered from entries in order of the log.

    Args:
        model: key.
        generation: the version.

    Attributes:
        spec: what was wanted; None = no entry so far wanted it.
        digest: of the artifact that was pinned; empty = none was.
    """

    def __init__(self, model: str, generation: int) -> None:
        self.spec: ModelSpec | None = None
        self.digest = ""
        self._named = (model, generation)

    def hear(self, facts: Iterable[f.Fact]) -> None:
        """Take up what an entry says of it."""
        for fact in facts:
            if isinstance(fact, (f.ModelWanted, f.ArtifactPinned)) and (fact.model, fact.generation) == self._named:
                if isinstance(fact, f.ModelWanted):
                    self.spec, self.digest = fact.spec, self.digest or fact.spec.artifact_digest
                else:
                    self.digest = fact.digest

    def pinned(self) -> ModelSpec | None:
        """Return its specification with the artifact that it had, or None."""
        return self.spec and self.spec.model_copy(update={"artifact_digest": self.digest})


def recall(bus: Bus, model: str, generation: int) -> ModelSpec | None:
    """Return what a version was, with the digest of its artifact pinned; None = it is nowhere in the log, which is read.

    Raises:
        LogError: the log cannot be read.
    """
    recalled = Recalled(model, generation)

    def hear(record: LogRecord) -> None:
        recalled.hear(record.entry.facts)

    replay(bus, on_record=hear)
    return recalled.pinned()
