"""Where a new session goes: to the longest cached prefix among engines that are not clearly fuller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from random import Random

MAX_LEAD = 0.1
"""How much fuller than the emptiest engine, as a part of the mean load, an engine may be and still be
preferred for its prefix. Without a bound, one shared system prompt would fill one engine before any other."""


class EngineLoad(NamedTuple):
    """One engine as admission and placement see it."""

    name: str
    capacity_blocks: int
    """KV blocks that it has; 0 while unknown."""
    protected_blocks: float
    """KV blocks that admitted sessions may fill; 0 while unknown."""
    caps: Mapping[str, int]
    """Sessions that may be resident, by class."""
    active: Mapping[str, int]
    """Sessions resident, by class; classes without any may be absent."""
    occupied_blocks: float
    """KV blocks that the residents are expected to hold at most."""

    closed: bool = False
    """This router has no part of the engine: other routers share it."""

    @property
    def load(self) -> float:
        """Occupied part of the blocks; blocks, where the capacity is unknown."""
        return self.occupied_blocks / self.capacity_blocks if self.capacity_blocks else self.occupied_blocks


def choose_engine(engines: Sequence[EngineLoad], overlap: Mapping[str, int], rng: Random) -> EngineLoad:
    """The engine for a new session: best prefix overlap, then least load, ties at random.

    Args:
        engines: those that may take it; not empty.
        overlap: leading prompt chunks that each engine holds, by engine; engines that hold none are absent.
        rng: breaks ties; a fixed order would send every new session to the same engine.
    """
    if len(engines) == 1:
        return rng.choice(engines)
    try:
        loads = [engine.occupied_blocks / engine.capacity_blocks for engine in engines]
    except ZeroDivisionError:  # a capacity is unknown
        loads = [engine.occupied_blocks for engine in engines]
    least = min(loads)
    if not overlap:
        return rng.choice([e for e, load in zip(engines, loads, strict=True) if load == least])
    near = least + MAX_LEAD * sum(loads) / len(loads)
    found = [
        (-overlap.get(engine.name, 0), load, engine)
        for engine, load in zip(engines, loads, strict=True)
        if load <= near
    ]
    best = min(found, key=lambda one: one[:2])[:2]
    return rng.choice([engine for chunks, load, engine in found if (chunks, load) == best])
