"""What the mixture of classes asks of an engine: turns to prefill, tokens to decode, KV held over time.

Token counts of one class are lognormal through their p50 and p95. Per class, with mean first prompt P, mean
output O, appended tokens A, turns T, gap g and samples per prompt G:

- *Effective uncached tokens.* The first prompt is prefilled once per G samples (they share its blocks and run
  on one engine); the other samples compute one block. Every later turn computes A where the session's KV
  lives, and A + O on a prefill engine, which lacks what the decode engine generated.
- *Context.* Before the output of a turn a session holds P + (T-1)/2 (A+O) tokens on average.
- *KV-token-seconds of a sample.* While running, a turn holds its private context c0 = P/G + (T-1)/2 (A+O)
  for its prefill time, and c0 plus a growing output while decoding: itl (O c0 + E[O^2]/2). In each of its
  T-1 gaps it holds P/G + T/2 (A+O) for g seconds: KV is kept during gaps (no parking).
"""

import math
from dataclasses import dataclass
from functools import cached_property

from .inputs import PlannerInputs, WorkloadClass

Z95 = 1.6448536269514722
"""95th percentile of the standard normal distribution."""

BLOCK_TOKENS = 16
"""Tokens of one KV block: what a sample still computes of a prompt whose blocks another sample filled."""

RARE_TURNS = 0.05
"""Turns that are no more frequent than this cannot move a 95th percentile."""


@dataclass(frozen=True)
class Lognormal:
    """A token count through its median and 95th percentile."""

    p50: float
    p95: float

    @cached_property
    def variance_factor(self) -> float:
        """E[X^2] / E[X]^2, at least 1."""
        return math.exp((math.log(self.p95 / self.p50) / Z95) ** 2)

    @cached_property
    def mean(self) -> float:
        """E[X], in tokens."""
        return self.p50 * math.sqrt(self.variance_factor)

    @cached_property
    def second_moment(self) -> float:
        """E[X^2], in tokens squared."""
        return self.mean**2 * self.variance_factor


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One kind of prefill: how often per sample of its class, and its tokens.

    `history` says that the cached tokens are the session's own past, kept through a tool gap.
    """

    per_sample: float
    uncached: float
    uncached_p95: float
    variance_factor: float
    cached: float
    transferred_p95: float
    history: bool = False


@dataclass(frozen=True, kw_only=True)
class ClassMix:
    """The statistics of one class; see the module's docstring for the symbols."""

    workload: WorkloadClass

    @cached_property
    def prompt(self) -> Lognormal:
        """P: tokens of the first prompt."""
        return Lognormal(self.workload.prompt_tokens_p50, self.workload.prompt_tokens_p95)

    @cached_property
    def output(self) -> Lognormal:
        """O: tokens generated in one turn."""
        return Lognormal(self.workload.output_tokens_p50, self.workload.output_tokens_p95)

    @cached_property
    def output_per_sample(self) -> float:
        """Tokens decoded for one sample."""
        return self.workload.turns * self.output.mean

    @cached_property
    def growth(self) -> float:
        """A + O: tokens that one turn adds to a session."""
        return self.workload.turn_tokens + self.output.mean

    @cached_property
    def decode_context(self) -> float:
        """Mean context that a decoding token looks at, in tokens."""
        history = self.prompt.mean + (self.workload.turns - 1) / 2 * self.growth
        return history + self.output.second_moment / (2 * self.output.mean)

    @cached_property
    def longest_session_tokens(self) -> int:
        """Context at the end of a long session: p95 prompt and last output, mean turns between."""
        first = self.workload.prompt_tokens_p95 + self.workload.output_tokens_p95
        return math.ceil(first + (self.workload.turns - 1) * self.growth)

    def turns(self, *, remote: bool) -> tuple[Turn, ...]:
        """The prefills of a sample, where its session lives or (`remote`) on a prefill engine."""
        w, prompt = self.workload, self.prompt
        first = Turn(
            per_sample=1 / w.samples_per_prompt,
            uncached=prompt.mean,
            uncached_p95=prompt.p95,
            variance_factor=prompt.variance_factor,
            cached=0.0,
            transferred_p95=prompt.p95,
        )
        block = float(min(BLOCK_TOKENS, w.prompt_tokens_p50))
        shared = Turn(
            per_sample=1 - 1 / w.samples_per_prompt,
            uncached=block,
            uncached_p95=block,
            variance_factor=1.0,
            cached=max(prompt.mean - block, 0.0),
            transferred_p95=prompt.p95,
        )
        later = self._later_turn(remote=remote)
        return tuple(turn for turn in (first, shared, later) if turn.per_sample > 0)

    def _later_turn(self, *, remote: bool) -> Turn:
        w = self.workload
        appended = max(w.turn_tokens, 1)
        uncached = appended + (self.output.mean if remote else 0.0)
        before = self.prompt.mean + (w.turns / 2) * self.growth
        return Turn(
            per_sample=w.turns - 1,
            uncached=uncached,
            uncached_p95=appended + (self.output.p95 if remote else 0.0),
            variance_factor=1.0,
            cached=max(before - uncached, 0.0),
            transferred_p95=appended,
            history=True,
        )

    def first_turns_matter(self) -> bool:
        """Whether first prompts are frequent enough among the class's requests to set its p95."""
        return 1 / self.workload.turns > RARE_TURNS

    def residency_seconds(self, *, ttft: float, itl: float) -> float:
        """Mean seconds from a sample's first request to its last token, at these mean latencies."""
        running = self.workload.turns * (ttft + self.output.mean * itl)
        return running + (self.workload.turns - 1) * self.workload.tool_gap_seconds

    def kv_token_seconds(self, *, ttft: float, itl: float) -> float:
        """KV tokens held by a sample, summed over its residency (token-seconds)."""
        w, out = self.workload, self.output
        private = self.prompt.mean / w.samples_per_prompt
        context = private + (w.turns - 1) / 2 * self.growth
        running = ttft * context + itl * (out.mean * context + out.second_moment / 2)
        idle = w.tool_gap_seconds * (private + w.turns / 2 * self.growth)
        return w.turns * running + (w.turns - 1) * idle


@dataclass(frozen=True)
class Mix:
    """All classes, weighted by their share of the samples; rates below are per *sample of the mix*."""

    classes: tuple[ClassMix, ...]

    @cached_property
    def output_per_sample(self) -> float:
        """Tokens decoded per sample of the mix."""
        return sum(c.workload.share * c.output_per_sample for c in self.classes)

    @cached_property
    def requests_per_sample(self) -> float:
        """Requests (turns) per sample of the mix."""
        return sum(c.workload.share * c.workload.turns for c in self.classes)

    @cached_property
    def decode_context(self) -> float:
        """Mean context of a decoding sequence, in tokens: each class counts by the tokens it decodes."""
        total = sum(c.workload.share * c.output_per_sample * c.decode_context for c in self.classes)
        return total / self.output_per_sample

    def kv_token_seconds(self, *, ttft: float, itl: float) -> float:
        """Mean KV-token-seconds of a sample of the mix at these mean latencies."""
        return sum(c.workload.share * c.kv_token_seconds(ttft=ttft, itl=itl) for c in self.classes)

    def residency_seconds(self, *, ttft: float, itl: float) -> float:
        """Mean residency of a sample of the mix at these mean latencies."""
        return sum(c.workload.share * c.residency_seconds(ttft=ttft, itl=itl) for c in self.classes)

    def longest_session(self) -> ClassMix:
        """The class with the longest sessions, in tokens."""
        return max(self.classes, key=lambda c: (c.longest_session_tokens, c.workload.name))


def mix_of(inputs: PlannerInputs) -> Mix:
    """The mix of the inputs' classes, in the order of their names, so that input order cannot matter."""
    ordered = sorted(inputs.classes, key=lambda c: c.name)
    return Mix(tuple(ClassMix(workload=workload) for workload in ordered))
