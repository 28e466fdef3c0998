"""The engines of a pool as the router sees them: which are up, what they hold, and what prefill owes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rolloutpool_api.planning import Role
from rolloutpool_router.core.health import HEALTHY, EngineHealth
from rolloutpool_router.core.pd import Local, PrefillEngine, Remote, choose_prefill
from rolloutpool_router.core.prefix import PrefixIndex
from rolloutpool_router.core.view import Engine, PoolView

if TYPE_CHECKING:
    from random import Random


class Fleet:
    """Engines of the view in force, with their passive health and cached prefixes."""

    def __init__(self) -> None:
        self.prefixes = PrefixIndex()
        self._view: PoolView | None = None
        self._health: dict[str, EngineHealth] = {}
        self._answering: set[str] = set()
        """Engines that the object calls not ready and that answered this router since."""
        self.prefill_tokens: Counter[str] = Counter()
        """Prompt tokens that each prefill engine was sent and has not answered."""

    @property
    def engines(self) -> Mapping[str, Engine]:
        """Engines that the object lists, by name."""
        return self._view.engines if self._view is not None else {}

    @property
    def has_status(self) -> bool:
        """Whether the object tells caps."""
        return self._view is not None and self._view.admission is not None

    @property
    def has_prefill(self) -> bool:
        """Whether any engine does nothing but prefill."""
        return any(engine.role is Role.PREFILL for engine in self.engines.values())

    def apply(self, view: PoolView) -> None:
        """Take over a new view; what was known of engines that are gone is forgotten."""
        for gone in self.engines.keys() - view.engines.keys():
            self.prefixes.forget(gone)
            self._health.pop(gone, None)
        self._view = view
        self._answering &= self.unready().keys()

    def failed(self, engine: str, now: float) -> None:
        """A connection to the engine failed: it is out for a while."""
        self._answering.discard(engine)
        if engine in self.engines:
            self._health[engine] = self._health.get(engine, HEALTHY).failed(now)

    def answered(self, engine: str) -> None:
        """The engine answered: it is in."""
        self._health.pop(engine, None)

    def unready(self) -> dict[str, str]:
        """Base URLs of the engines that the object calls not ready, by name."""
        return {name: engine.url for name, engine in self.engines.items() if not engine.ready}

    def probed(self, engine: str, *, serves: bool) -> None:
        """Whether an engine that the object calls not ready serves all the same: the object may be old."""
        if serves and engine in self.unready():
            self._answering.add(engine)
        else:
            self._answering.discard(engine)

    def reachable(self, engine: str, now: float) -> bool:
        """Whether the engine is listed, and not out after connection errors."""
        return engine in self.engines and self._health.get(engine, HEALTHY).healthy(now)

    def is_up(self, engine: str, now: float) -> bool:
        """Whether new sessions may go there: reachable, and the operator or this router saw it serve."""
        return self.reachable(engine, now) and (self.engines[engine].ready or engine in self._answering)

    def homes(self, now: float) -> list[Engine]:
        """Engines that are up and hold sessions: aggregated and decode."""
        return [e for e in self.engines.values() if e.holds_sessions and self.is_up(e.name, now)]

    def choose_prefill(
        self, home: str, *, prefix: Sequence[bytes], prompt_tokens: int, now: float, rng: Random
    ) -> Local | Remote:
        """Where the prompt of a session on engine `home` is computed; `prompt_tokens` is an estimate."""
        engine = self.engines.get(home)
        if engine is None or engine.role is not Role.DECODE:
            return Local("the engine is not a decode engine")
        overlaps = self.prefixes.overlaps(prefix)
        candidates = [
            PrefillEngine(
                name=e.name,
                revision=e.revision,
                outstanding_tokens=self.prefill_tokens[e.name],
                cached_tokens=prompt_tokens * overlaps[e.name] // len(prefix) if prefix else 0,
            )
            for e in self.engines.values()
            if e.role is Role.PREFILL and self.is_up(e.name, now)
        ]
        return choose_prefill(candidates, revision=engine.revision, prompt_tokens=prompt_tokens, rng=rng)

    def prefill_started(self, engine: str, prompt_tokens: int) -> None:
        """A prompt was sent to a prefill engine."""
        self.prefill_tokens[engine] += prompt_tokens

    def prefill_ended(self, engine: str, prompt_tokens: int) -> None:
        """That prompt was answered, or given up."""
        self.prefill_tokens[engine] -= prompt_tokens
        if self.prefill_tokens[engine] <= 0:
            del self.prefill_tokens[engine]
