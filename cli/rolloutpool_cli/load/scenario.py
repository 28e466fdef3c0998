"""What a trainer asks for next: samples in the target mixture, drawn from the priors of the spec.

Pure: the random generator is passed in, so a seed gives the same samples every time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rolloutpool_api.workloads import Priors, TokenPrior, WorkloadSpec

if TYPE_CHECKING:
    from random import Random

Z95 = 1.6449
"""95th percentile of the standard normal distribution."""
SPREAD_SIGMA = 0.5
"""Spread (sigma of a lognormal) of turns and of tool output, whose priors are means alone."""
TAIL = 4
"""Draws are cut at this multiple of the 95th percentile, so that one draw cannot dominate a short run."""
TEMPLATE_TOKENS = 16
"""What a chat template adds for one question and its answer, in tokens; an upper bound."""

WORDS = tuple(
    """
    the of and to in is that for it as was with be by on not he his but at are this have from or had an
    they one you were all her she we him been has when who will no more if out so up said what its than
    into them can only time new some two may then do any my now such like our over man me even most made
    did many must back well way
    """.split()  # noqa: SIM905 (a list of a hundred strings is harder to read)
)
"""Common words of at most four letters: one token each for the usual tokenizers and for the emulator's."""


@dataclass(frozen=True)
class Turn:
    """One request of a session."""

    input_tokens: int
    """Tokens that it adds to the history: the prompt, later the environment's answer."""
    output_tokens: int
    """Tokens to generate."""
    gap_seconds: float
    """Time between the last answer and this request, in seconds."""


@dataclass(frozen=True)
class Sample:
    """One session: what becomes one sample of the trainer's batch."""

    session_id: str
    class_name: str
    prompt: str
    """Names the prompt; samples of one group have the same."""
    turns: tuple[Turn, ...]


def draw_tokens(prior: TokenPrior, rng: Random) -> int:
    """Draw a token count from the lognormal with the prior's median and 95th percentile."""
    sigma = math.log(prior.p95 / prior.p50) / Z95
    drawn = prior.p50 * math.exp(sigma * rng.gauss(0.0, 1.0))
    return max(1, min(round(drawn), TAIL * prior.p95))


def draw_around(mean: float, rng: Random) -> int:
    """Draw a count from a lognormal with this mean and SPREAD_SIGMA; 0 for mean 0."""
    if mean <= 0:
        return 0
    factor = math.exp(SPREAD_SIGMA * rng.gauss(0.0, 1.0) - SPREAD_SIGMA**2 / 2)
    return max(1, min(round(mean * factor), round(TAIL * mean)))


def draw_turns(
    priors: Priors, *, prompt_tokens: int, max_model_len: int | None, rng: Random
) -> tuple[Turn, ...]:
    """Draw the turns of one session.

    Args:
        priors: the class's.
        prompt_tokens: tokens of the first prompt.
        max_model_len: longest history plus output, in tokens; a session that reaches it ends there.
        rng: source of randomness.
    """
    count = 1 if priors.turns == 1 else draw_around(priors.turns, rng)
    room = max_model_len or 2**62
    turns: list[Turn] = []
    for index in range(count):
        added = prompt_tokens if index == 0 else draw_around(priors.turn_tokens, rng)
        output = draw_tokens(priors.output_tokens, rng)
        gap = rng.expovariate(1 / priors.tool_gap_seconds) if index and priors.tool_gap_seconds else 0.0
        room -= TEMPLATE_TOKENS
        if index and added + output > room:
            break
        added = min(added, max(1, room - 1))
        output = min(output, max(1, room - added))
        room -= added + output
        turns.append(Turn(input_tokens=added, output_tokens=output, gap_seconds=gap))
    return tuple(turns)


def furthest_behind(shares: Mapping[str, float], counts: Mapping[str, int]) -> str:
    """Name the class that one more sample brings the mixture closest to its shares; ties go to the first."""
    total = 1 + sum(counts.get(name, 0) for name in shares)
    return max(shares, key=lambda name: shares[name] * total - counts.get(name, 0))


def words(count: int, rng: Random) -> str:
    """Text of about `count` tokens."""
    return " ".join(rng.choices(WORDS, k=count))


@dataclass
class _OpenPrompt:
    """A prompt whose group is not complete yet."""

    number: int = -1
    tokens: int = 0
    samples_left: int = 0


class Scenario:
    """The endless supply of samples: groups of samplesPerPrompt that share a prompt, class by class."""

    def __init__(
        self, workloads: Sequence[WorkloadSpec], *, max_model_len: int | None, run: str, rng: Random
    ) -> None:
        """Start a supply.

        Args:
            workloads: spec.workloads.
            max_model_len: spec.model.maxModelLen, in tokens.
            run: prefix of the session ids, unique to this run.
            rng: source of randomness; used by this scenario alone.
        """
        self._workloads = {workload.name: workload for workload in workloads}
        self._shares = {workload.name: workload.share for workload in workloads}
        self._open = {workload.name: _OpenPrompt() for workload in workloads}
        self._max_model_len = max_model_len
        self._run = run
        self._rng = rng
        self._count = 0

    def next_sample(self, outstanding: Mapping[str, int]) -> Sample:
        """Draw the sample that keeps the outstanding ones closest to the target mixture.

        Args:
            outstanding: samples under way, by class.
        """
        workload = self._workloads[furthest_behind(self._shares, outstanding)]
        prompt = self._prompt(workload)
        self._count += 1
        turns = draw_turns(
            workload.priors, prompt_tokens=prompt.tokens, max_model_len=self._max_model_len, rng=self._rng
        )
        return Sample(
            session_id=f"{self._run}-{workload.name}-{self._count}",
            class_name=workload.name,
            prompt=f"{workload.name}/{prompt.number}",
            turns=turns,
        )

    def _prompt(self, workload: WorkloadSpec) -> _OpenPrompt:
        prompt = self._open[workload.name]
        if prompt.samples_left == 0:
            prompt.number += 1
            prompt.tokens = draw_tokens(workload.priors.prompt_tokens, self._rng)
            prompt.samples_left = workload.priors.samples_per_prompt
        prompt.samples_left -= 1
        return prompt
