"""The engines of a run: which there are, when each must be looked at next, and what they count."""

from __future__ import annotations

from collections.abc import Iterable

from rolloutpool_router.core.pressure import EngineTotals
from rolloutpool_sim.engine import EngineConfig, FinishedRequest
from rolloutpool_sim.fleet.measures import FleetTotals
from rolloutpool_sim.fleet.scenario import Kv, Scenario
from rolloutpool_sim.leap import LeapEngine, LeapRequest, Offload
from rolloutpool_sim.profile import load_builtin

UNLIMITED_TOKENS = 10**9
"""KV tokens of an engine with unlimited KV: more than any load fills."""


class Engines:
    """All engines of a pool, by name; a lost one is listed and holds nothing."""

    def __init__(self, scenario: Scenario) -> None:
        fleet = scenario.fleet
        tokens = fleet.capacity_tokens() if scenario.kv is Kv.FINITE else UNLIMITED_TOKENS
        self.names = fleet.engine_names()
        self.capacity_blocks = tokens // fleet.block_size
        """KV blocks of one engine."""
        self._config = EngineConfig(
            num_blocks=self.capacity_blocks + 1,
            max_model_len=fleet.max_model_len,
            block_size=fleet.block_size,
            max_num_seqs=fleet.max_num_seqs,
            max_num_batched_tokens=fleet.max_num_batched_tokens,
        )
        profile = load_builtin(fleet.profile).at(fleet.tensor_parallel)
        self.profile = profile.model_copy(update={"kv_capacity_tokens": tokens})
        """Of one engine, with the KV that it has here."""
        self._offload: Offload | None = None
        self.offload_blocks = fleet.offload.blocks if fleet.offload is not None else 0
        """Blocks of one engine's second tier."""
        if fleet.offload is not None:
            self._offload = Offload(
                blocks=fleet.offload.blocks, seconds_per_block=fleet.offload.seconds_per_block
            )
        self._engines = {name: self._new() for name in self.names}
        self._retired = FleetTotals()

    def is_up(self, name: str) -> bool:
        """Whether an engine is not lost."""
        return name in self._engines

    def name(self, engine: int | str) -> str:
        """The name of an engine that a scenario refers to by index or name."""
        return self.names[engine] if isinstance(engine, int) else engine

    def add(self, name: str, request: LeapRequest, now: float) -> None:
        """Hand a request to an engine that is up."""
        self._engines[name].add(request, now)

    def advance(self, name: str, now: float) -> tuple[FinishedRequest, ...]:
        """Run an engine on until now; the requests that finished."""
        return self._engines[name].advance(now)

    def next_event(self, name: str) -> float | None:
        """When `advance` is due, in seconds; None while the engine has nothing to do or is lost."""
        engine = self._engines.get(name)
        return engine.next_event() if engine is not None else None

    def lose(self, name: str) -> None:
        """An engine dies with all that it holds."""
        engine = self._engines.pop(name, None)
        if engine is not None:
            self._retired += _totals([engine])

    def bring_back(self, name: str) -> None:
        """A lost engine is back, with an empty cache."""
        if name not in self._engines:
            self._engines[name] = self._new()

    def readings(self) -> dict[str, EngineTotals]:
        """What the engines that are up tell of themselves, by name."""
        return {
            name: EngineTotals(
                prefix_queries=engine.counters.prefix_cache_queries,
                prefix_hits=engine.counters.prefix_cache_hits,
                preemptions=engine.counters.preemptions,
                kv_usage=engine.used_blocks / self.capacity_blocks,
            )
            for name, engine in self._engines.items()
        }

    def totals(self) -> FleetTotals:
        """Counters of all engines since the start."""
        return self._retired + _totals(self._engines.values())

    def used_fraction(self) -> float:
        """Part of the KV blocks of the engines that are up that requests hold."""
        used = sum(engine.used_blocks for engine in self._engines.values())
        return used / (self.capacity_blocks * max(1, len(self._engines)))

    def _new(self) -> LeapEngine:
        return LeapEngine(self._config, self.profile, offload=self._offload)


def _totals(engines: Iterable[LeapEngine]) -> FleetTotals:
    total = FleetTotals()
    for engine in engines:
        counters = engine.counters
        total += FleetTotals(
            counters.prefix_cache_queries,
            counters.prefix_cache_hits,
            counters.preemptions,
            counters.recomputed_tokens,
            counters.prompt_tokens_remote,
        )
    return total
