"""The samples that a trainer submits: drawn from the classes of a scenario, group by group.

Each group and each sample draws from a generator of its own, made from the seed, its class and its number.
So the k-th sample of a class is the same session under every policy: policies are compared on the same work.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from xxhash import xxh3_64_intdigest

from rolloutpool_router.core.prefix import PrefixKey
from rolloutpool_sim.fleet.dist import draw
from rolloutpool_sim.leap import Segment

if TYPE_CHECKING:
    from random import Random

    from rolloutpool_sim.fleet.workload import Workload, WorkloadChange

CHUNK_TOKENS = 64
"""Tokens of one prefix key: routers hash chunks of 256 bytes, about 4 bytes a token."""
MAX_CHUNKS = 512
"""Prefix keys of one prompt, as in `rolloutpool_router.core.prefix`."""

Randoms = Callable[[str], "Random"]
"""Makes a generator of its own for each name; the same name gives the same numbers."""


class Turn(NamedTuple):
    """One request of a session."""

    added_tokens: int
    """Tokens that it adds behind the history: 0 for the first, whose prompt the group shares."""
    output_tokens: int
    """Tokens to generate."""
    gap_seconds: float
    """Time between the last answer and this request, in seconds; 0 for the first."""


@dataclass(frozen=True, slots=True)
class Group:
    """One prompt, of which several samples are drawn."""

    name: str
    """Unique in a run."""
    key: bytes
    """The same as routers know it."""
    class_name: str
    prompt: tuple[Segment, ...]
    """The system prompt and the group's own, as far as there are any."""
    prompt_tokens: int
    """Tokens of both."""
    prefix: tuple[PrefixKey, ...]
    """Keys of the prompt's whole chunks, for placement."""
    score: float
    """Standard normal score that the group's outputs and turns have in common."""
    single: bool = False
    """Sessions of its class have one turn, so clients name none."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One session: what becomes one sample of the trainer's batch."""

    name: str
    """Session id, unique in a run."""
    group: Group
    turns: tuple[Turn, ...]

    @property
    def class_name(self) -> str:
        """Its class."""
        return self.group.class_name


class ClassSource:
    """The endless supply of one class's groups."""

    def __init__(self, workload: Workload, *, max_model_len: int, randoms: Randoms) -> None:
        """Start with group 0.

        Args:
            workload: the class.
            max_model_len: longest prompt plus output, in tokens.
            randoms: makes the generators.
        """
        self.workload = workload
        self._max_model_len = max_model_len
        self._randoms = randoms
        self._groups = 0
        self.output_factor = 1.0
        """How much longer outputs are than the class says."""
        self._system = _segments([(f"{workload.name}/system", workload.system_tokens)])
        self._system_prefix = _keys(f"{workload.name}/system", 0, workload.system_tokens // CHUNK_TOKENS)

    def change(self, change: WorkloadChange) -> None:
        """Samples from now on are drawn from these values."""
        self.workload = change.apply(self.workload)

    def grow_outputs(self, factor: float) -> None:
        """Outputs of samples from now on are longer by this factor."""
        self.output_factor *= factor

    def next_group(self) -> list[Sample]:
        """Draw the next group with all its samples."""
        number = self._groups
        self._groups += 1
        group = self._group(number)
        size = self.workload.group_size
        return [self._sample(group, number * size + index) for index in range(size)]

    def _group(self, number: int) -> Group:
        workload = self.workload
        name = f"{workload.name}/{number}"
        rng = self._randoms(f"group/{name}")
        score = rng.gauss(0.0, 1.0)
        room = self._max_model_len - 1 - workload.system_tokens
        own = max(1, min(round(draw(workload.prompt_tokens, rng.gauss(0.0, 1.0), rng)), room))
        tokens = workload.system_tokens + own
        prefix = self._system_prefix + _keys(name, len(self._system_prefix), tokens // CHUNK_TOKENS)
        prompt = self._system + _segments([(name, own)])
        single = workload.single_turn
        return Group(name, name.encode(), workload.name, prompt, tokens, prefix, score, single)

    def _sample(self, group: Group, number: int) -> Sample:
        name = f"{group.class_name}-{number}"
        rng = self._randoms(f"sample/{name}")
        workload = self.workload
        count = max(1, round(draw(workload.turns, self._score(group, rng), rng)))
        room = self._max_model_len - group.prompt_tokens
        turns: list[Turn] = []
        for index in range(count):
            output = draw(workload.output_tokens, self._score(group, rng), rng) * self.output_factor
            output_tokens = max(1, round(output))
            added, gap = 0, 0.0
            if index:
                added = max(1, round(draw(workload.turn_tokens, rng.gauss(0.0, 1.0), rng)))
                gap = draw(workload.tool_gap_seconds, rng.gauss(0.0, 1.0), rng)
                if added + output_tokens > room:
                    break
            output_tokens = min(output_tokens, room)
            room -= added + output_tokens
            turns.append(Turn(added, output_tokens, gap))
        return Sample(name, group, tuple(turns))

    def _score(self, group: Group, rng: Random) -> float:
        correlation = self.workload.group_correlation
        own = rng.gauss(0.0, 1.0)
        return math.sqrt(correlation) * group.score + math.sqrt(1 - correlation) * own if correlation else own


def history_keys(sample: Sample, tokens: int) -> tuple[PrefixKey, ...]:
    """Prefix keys of a session's prompt of this many tokens: its group's, then those of its own history."""
    shared = sample.group.prefix
    return shared + _keys(sample.name, len(shared), tokens // CHUNK_TOKENS)


def _segments(parts: list[tuple[str, int]]) -> tuple[Segment, ...]:
    return tuple(Segment(key, tokens) for key, tokens in parts if tokens > 0)


def _keys(name: str, first: int, last: int) -> tuple[PrefixKey, ...]:
    return tuple(
        xxh3_64_intdigest(f"{name}:{index}".encode()) for index in range(first, min(last, MAX_CHUNKS))
    )
