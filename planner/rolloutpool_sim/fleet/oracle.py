"""The truth about a scenario's classes, computed from their distributions instead of observed.

For the variant in which the controller knows footprints and residencies at once (`oracle: true`), and for
stating how large a load is. A session's course follows from its tokens and from the pace of the engines: how
long a first token takes and how long each further one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING

from rolloutpool_router.core.demand import SessionCost
from rolloutpool_router.core.estimates import ClassEstimator, Finished
from rolloutpool_router.core.lifetable import EDGES, bucket_of
from rolloutpool_sim.fleet.pool import typical_samples
from rolloutpool_sim.profile import load_builtin, step_seconds

if TYPE_CHECKING:
    from rolloutpool_sim.engine import FinishedRequest
    from rolloutpool_sim.fleet.sampling import ClassSource, Randoms, Sample
    from rolloutpool_sim.fleet.scenario import Scenario

PACE_ROUNDS = 20
"""Rounds in which the pace and the number of sessions that fit are brought to agree; a few would do."""
PACE_WEIGHT = 0.01
"""Weight of the latest turn in the pace of a run."""
MIN_PACE_TOKENS = 16
"""Tokens of an answer from which its pace counts."""
TOLD_SAMPLES = 256
"""About how many sessions of a class the oracle makes an estimate of."""


@dataclass(frozen=True)
class Pace:
    """How fast the engines answer."""

    ttft_seconds: float
    """Time to first token of a turn, in seconds."""
    itl_seconds: float
    """Time of each further token, in seconds."""

    def turn_seconds(self, output_tokens: int) -> float:
        """Time that a turn takes."""
        return self.ttft_seconds + self.itl_seconds * (output_tokens - 1)


@dataclass(frozen=True)
class Stretch:
    """A time in which what a session holds alone grows evenly."""

    seconds: float
    from_tokens: float
    to_tokens: float


def stretches(sample: Sample, pace: Pace) -> Iterator[Stretch]:
    """The life of a session that never waits: turns and tool gaps."""
    held = 0.0
    for index, turn in enumerate(sample.turns):
        if index:
            yield Stretch(turn.gap_seconds, held, held)
        prompt = held + turn.added_tokens
        held = prompt + turn.output_tokens
        yield Stretch(pace.turn_seconds(turn.output_tokens), prompt, held)


def mean_cost(samples: Iterable[Sample], pace: Pace, *, block_size: int) -> SessionCost:
    """Time-averaged blocks that a resident session holds alone, and its mean residency in seconds."""
    token_seconds = residency = count = 0.0
    for sample in samples:
        count += 1
        for part in stretches(sample, pace):
            residency += part.seconds
            token_seconds += part.seconds * (part.from_tokens + part.to_tokens) / 2
    return SessionCost(token_seconds / residency / block_size, residency / count)


def estimator_of(samples: Iterable[Sample], pace: Pace, *, block_size: int, now: float) -> ClassEstimator:
    """An estimator that has seen these sessions from beginning to end.

    Args:
        samples: sessions of one class.
        pace: of the engines.
        block_size: KV block size, in tokens.
        now: when it has seen them, in seconds.
    """
    estimator = ClassEstimator()
    for sample in samples:
        age, block_seconds, peak = 0.0, 0.0, 0.0
        for part in stretches(sample, pace):
            for seconds, tokens in _within_buckets(part, age):
                blocks = max(1.0, tokens / block_size)
                estimator.table.see(since=age, age=age + seconds, blocks=blocks)
                block_seconds += blocks * seconds
                age += seconds
            peak = max(peak, part.to_tokens)
        whole = (peak + sample.group.prompt_tokens) / block_size
        done = Finished(age, block_seconds / age, whole)
        estimator.end(done, now=now)
    return estimator


def true_costs(scenario: Scenario, randoms: Randoms, *, pace: Pace | None = None) -> dict[str, SessionCost]:
    """Footprint (private blocks, time-averaged) and residency (seconds) of each class as the scenario begins.

    Args:
        scenario: the scenario.
        randoms: makes the generators that the sessions are drawn with.
        pace: of the engines. Default: `full_pace`.
    """
    samples = typical(scenario, randoms)
    pace = pace or full_pace(scenario, samples)
    size = scenario.fleet.block_size
    return {name: mean_cost(found, pace, block_size=size) for name, found in samples.items()}


def full_pace(scenario: Scenario, samples: Mapping[str, Sequence[Sample]]) -> Pace:
    """The pace of engines whose KV cache is full of sessions in the target mixture, and none of them evicted.

    How many sessions fit follows from the pace, since it says how much each holds on average; they in turn
    set the pace, by the step time of their decoding and of the prefill that keeps up with it.
    """
    fleet = scenario.fleet
    profile = load_builtin(fleet.profile).at(fleet.tensor_parallel)
    capacity = fleet.capacity_tokens()
    mixed = [(workload.share, samples[workload.name]) for workload in scenario.workloads]
    per_session = [
        (share, fmean(_output_tokens(s) for s in found), fmean(_prefill_tokens(s) for s in found))
        for share, found in mixed
    ]
    output = sum(share * out for share, out, _ in per_session)
    prefill = sum(share * tokens for share, _, tokens in per_session)
    pace = Pace(0.1, 0.02)
    for _ in range(PACE_ROUNDS):
        costs = [(share, mean_cost(found, pace, block_size=1)) for share, found in mixed]
        residency = sum(share * cost.residency_seconds for share, cost in costs)
        held = sum(share * cost.residency_seconds * cost.footprint_blocks for share, cost in costs)
        resident = capacity * residency / held
        batch = min(resident * output * pace.itl_seconds / residency, fleet.max_num_seqs)
        seconds = step_seconds(
            profile,
            prefill_tokens=round(batch * prefill / output),
            decode_batch=max(1, round(batch)),
            decode_context_tokens=round(capacity * batch / resident),
        )
        pace = Pace(2 * seconds, seconds)
    return pace


def _within_buckets(part: Stretch, age: float) -> Iterator[tuple[float, float]]:
    """Cut a stretch that begins at an age where age buckets end: seconds and mean tokens of each piece."""
    end = age + part.seconds
    inner = EDGES[bucket_of(age) + 1 : bucket_of(end) + 1]
    marks = [age, *(edge for edge in inner if age < edge < end), end]
    slope = (part.to_tokens - part.from_tokens) / part.seconds if part.seconds else 0.0
    for before, after in pairwise(marks):
        yield after - before, part.from_tokens + slope * ((before + after) / 2 - age)


def typical(scenario: Scenario, randoms: Randoms) -> dict[str, list[Sample]]:
    """Some samples of each class as the scenario begins."""
    longest = scenario.fleet.max_model_len
    return {
        workload.name: typical_samples(workload, max_model_len=longest, randoms=randoms)
        for workload in scenario.workloads
    }


class Oracle:
    """Knows the classes of a run at any time: their distributions now, and the engines' pace."""

    def __init__(self, scenario: Scenario, randoms: Randoms) -> None:
        self._block_size = scenario.fleet.block_size
        self._max_model_len = scenario.fleet.max_model_len
        self._randoms = randoms
        self._samples = typical(scenario, randoms)
        self.pace = full_pace(scenario, self._samples)
        """Of the engines: follows their answers."""

    def answered(self, finished: FinishedRequest) -> None:
        """A turn was answered: the pace follows."""
        ttft = finished.queue_seconds + finished.prefill_seconds
        itl = self.pace.itl_seconds
        if finished.output_tokens > MIN_PACE_TOKENS:
            itl = finished.decode_seconds / (finished.output_tokens - 1)
        self.pace = Pace(
            self.pace.ttft_seconds + PACE_WEIGHT * (ttft - self.pace.ttft_seconds),
            self.pace.itl_seconds + PACE_WEIGHT * (itl - self.pace.itl_seconds),
        )

    def changed(self, source: ClassSource) -> None:
        """Sessions of a class look different from now on."""
        self._samples[source.workload.name] = typical_samples(
            source.workload,
            max_model_len=self._max_model_len,
            randoms=self._randoms,
            output_factor=source.output_factor,
        )

    def estimators(self, now: float) -> dict[str, ClassEstimator]:
        """Estimators by class that have seen typical sessions at the present pace."""
        return {
            name: estimator_of(
                found[:: max(1, len(found) // TOLD_SAMPLES)], self.pace, block_size=self._block_size, now=now
            )
            for name, found in self._samples.items()
        }


def _output_tokens(sample: Sample) -> int:
    return sum(turn.output_tokens for turn in sample.turns)


def _prefill_tokens(sample: Sample) -> int:
    """Prompt tokens that are in nobody's cache when the session comes to them, groups apart."""
    own = sample.group.prompt[-1].tokens
    return own + sum(turn.added_tokens for turn in sample.turns)
