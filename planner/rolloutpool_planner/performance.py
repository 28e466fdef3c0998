"""How one replica performs under the mix: latencies and KV as functions of its load, and its capacity.

Load is a rate in samples of the mix per second. With S the tokens of one step, B the decoding sequences,
c the mean context, O the tokens decoded per sample, t(.) the profile's token time, and for each kind of
prefill k (w_k per sample, u_k uncached tokens, chunks n_k = ceil(u_k / (S - B))):

    d(B)    = t(B) + gamma_d B c                                decode step
    x_k(B)  = n_k (t(u_k/n_k + B) - t(B)) + gamma_p pairs_k     what a prefill adds to the decode steps
    rate(B) = 1 / (sum_k w_k x_k(B) + O d(B) / B)               aggregated: prefill and decode share steps
    rate(B) = B / (O d(B))                                      decode

A load runs at the smallest batch whose rate covers it. Then

- ITL: d(B) on decode engines. On aggregated ones the 95th percentile over steps, of which a fraction
  w_k n_k B / O also carries a chunk of kind k and takes x_k / n_k longer.
- TTFT: the wait for the prefill queue (`queueing`; a prompt's work is its share of full steps), one step that
  is under way, the prompt's own p95 prefill, and on prefill engines the KV transfer and one decode step.
- KV: rate x KV-token-seconds of a sample (Little's law) <= kv_fill x the replica's KV.

Assumptions: admission caps hold the batch at B, so its fluctuations are left out (without caps, latencies
near the highest load are worse); samples of one prompt run on one engine and share its blocks; with prefill
engines every prefill is remote (running some locally only helps them); a prefill engine keeps histories as
long as they fit, and recomputes the rest.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from rolloutpool_sim.profile import (
    ParallelismProfile,
    attention_pairs,
    decode_step_seconds,
    token_seconds,
    transfer_seconds,
)

from .inputs import EngineLimits
from .mix import RARE_TURNS, ClassMix, Mix, Turn
from .queueing import Job, Wait, mixture_quantile, wait

LEVEL = 0.95
"""Percentile that SLOs and predictions speak of."""

MAX_PREFILL_UTILIZATION = 0.9
"""Load of a prefill queue that is planned at most, SLO or not: beyond it waits grow without bound."""

BATCH_STEP = 1.1
"""Ratio of neighbouring batch sizes that are tried: the error of a batch is below a tenth."""


def batch_sizes(largest: int) -> Iterator[int]:
    """1, 2, 3, ... and then in steps of about a tenth, up to and with `largest`."""
    batch = 1
    while batch < largest:
        yield batch
        batch = max(batch + 1, int(batch * BATCH_STEP))
    yield largest


@dataclass(frozen=True, kw_only=True)
class LoadState:
    """One replica at one load. Seconds and tokens; `ttft_p95` is per class, in the order of the mix.

    Roles without a TTFT or an ITL of their own leave them out (empty, None).
    """

    kv_tokens: float
    prefill_utilization: float = 0.0
    ttft_mean: float = 0.0
    ttft_p95: tuple[float, ...] = ()
    itl_mean: float = 0.0
    itl_p95: float | None = None


@dataclass(frozen=True, kw_only=True)
class DecodePace:
    """What prefill engines assume of the decode engines they work for."""

    itl: float
    engine: ParallelismProfile


@dataclass(frozen=True, kw_only=True)
class ReplicaModel:
    """What all roles share: the engine, the mix, and prefills of `turns` on top of a batch."""

    engine: ParallelismProfile
    mix: Mix
    limits: EngineLimits
    remote: bool = False

    @cached_property
    def prefills(self) -> tuple[tuple[ClassMix, Turn], ...]:
        """Every kind of prefill with its class."""
        return tuple((c, turn) for c in self.mix.classes for turn in c.turns(remote=self.remote))

    def decode_step(self, batch: int) -> float:
        """d(B), in seconds; nothing for no batch."""
        context = round(batch * self.mix.decode_context)
        return decode_step_seconds(self.engine, batch=batch, context_tokens=context)

    def chunks(self, uncached: float, batch: int) -> int:
        """n_k: steps that a prompt takes beside `batch` decoding sequences."""
        return max(1, math.ceil(uncached / (self.limits.max_num_batched_tokens - batch)))

    def attention(self, uncached: float, cached: float) -> float:
        """Seconds of the attention of a prompt's prefill."""
        pairs = attention_pairs(new_tokens=round(uncached), context_tokens=round(cached))
        return self.engine.prefill_seconds_per_attention_pair * pairs

    def alone(self, uncached: float, cached: float, batch: int) -> float:
        """Seconds from the first to the last step of a prompt that has every step's free tokens."""
        n = self.chunks(uncached, batch)
        base = token_seconds(self.engine.token_time, round(uncached / n) + batch)
        context = self.engine.decode_seconds_per_context_token * batch * self.mix.decode_context
        return n * (base + context) + self.attention(uncached, cached)

    def work(self, uncached: float, cached: float, batch: int) -> float:
        """Seconds that a prompt occupies when steps are full: its part of the prefill queue's work."""
        step = self.limits.max_num_batched_tokens
        full = token_seconds(self.engine.token_time, step)
        full += self.engine.decode_seconds_per_context_token * batch * self.mix.decode_context
        return full * uncached / (step - batch) + self.attention(uncached, cached)

    def own_p95(self, c: ClassMix, prefill: Callable[[Turn], float]) -> float:
        """The class's p95 of `prefill`: the first prompt counts unless nearly all turns are later ones."""
        turns = (turn for owner, turn in self.prefills if owner is c)
        return max(prefill(turn) for turn in turns if turn.history or c.first_turns_matter())


@dataclass(frozen=True, kw_only=True)
class BatchedModel(ReplicaModel):
    """A replica whose load is carried by a decoding batch (aggregated, decode)."""

    @cached_property
    def _rates(self) -> tuple[tuple[int, float], ...]:
        """(batch, rate) with rising rates: batches that serve no more than a smaller one are left out."""
        table: list[tuple[int, float]] = []
        for batch in batch_sizes(min(self.limits.max_num_seqs, self.limits.max_num_batched_tokens // 2)):
            rate = self.rate(batch)
            if not table or rate > table[-1][1]:
                table.append((batch, rate))
        return tuple(table)

    def rate(self, batch: int) -> float:
        """Samples per second at a constant batch."""
        raise NotImplementedError

    def highest_load(self) -> float:
        """The load that the largest useful batch serves, whatever the latencies."""
        return self._rates[-1][1]

    def batch_at(self, load: float) -> tuple[int, float]:
        """The smallest batch that serves the load, and the part of its rate that is used."""
        at = min(bisect_left(self._rates, load, key=lambda entry: entry[1]), len(self._rates) - 1)
        batch, rate = self._rates[at]
        return batch, min(load / rate, 1.0)


@dataclass(frozen=True, kw_only=True)
class DecodeModel(BatchedModel):
    """A decode replica: nothing but decode steps."""

    def rate(self, batch: int) -> float:
        """B / (O d(B))."""
        return batch / (self.mix.output_per_sample * self.decode_step(batch))

    def state(self, load: float) -> LoadState:
        """The replica at `load` samples per second."""
        itl = self.decode_step(self.batch_at(load)[0])
        kv = load * self.mix.kv_token_seconds(ttft=0.0, itl=itl)
        return LoadState(kv_tokens=kv, itl_mean=itl, itl_p95=itl)


@dataclass(frozen=True, kw_only=True)
class AggregatedModel(BatchedModel):
    """A replica that prefills in chunks beside its decoding batch."""

    def _added(self, turn: Turn, batch: int) -> float:
        """x_k(B): seconds that a prefill adds to the decode steps it shares."""
        n = self.chunks(turn.uncached, batch)
        with_chunk = token_seconds(self.engine.token_time, round(turn.uncached / n) + batch)
        added = n * (with_chunk - token_seconds(self.engine.token_time, batch))
        return added + self.attention(turn.uncached, turn.cached)

    def _prefill_per_sample(self, batch: int) -> float:
        return sum(c.workload.share * t.per_sample * self._added(t, batch) for c, t in self.prefills)

    def rate(self, batch: int) -> float:
        """1 / (sum_k w_k x_k(B) + O d(B) / B)."""
        decode = self.mix.output_per_sample * self.decode_step(batch) / batch
        return 1 / (self._prefill_per_sample(batch) + decode)

    def _itl_p95(self, batch: int, used: float) -> float:
        steps_per_sample = self.mix.output_per_sample / batch
        parts = []
        for c, turn in self.prefills:
            n = self.chunks(turn.uncached, batch)
            share_of_steps = used * c.workload.share * turn.per_sample * n / steps_per_sample
            parts.append((share_of_steps, self._added(turn, batch) / n))
        return self.decode_step(batch) + mixture_quantile(LEVEL, parts)

    def state(self, load: float) -> LoadState:
        """The replica at `load` samples per second."""
        batch, used = self.batch_at(load)
        jobs = [
            Job(
                load * c.workload.share * t.per_sample,
                self.work(t.uncached, t.cached, batch),
                t.variance_factor,
            )
            for c, t in self.prefills
        ]
        queue = wait(jobs)
        under_way = used * self.decode_step(batch)
        itl = self.decode_step(batch) / max(1 - load * self._prefill_per_sample(batch), 1e-9)
        ttft = queue.mean + under_way + self._mean_prefill(batch)
        return LoadState(
            kv_tokens=load * self.mix.kv_token_seconds(ttft=ttft, itl=itl)
            if math.isfinite(ttft)
            else math.inf,
            prefill_utilization=queue.utilization,
            ttft_mean=ttft,
            ttft_p95=self._ttft_p95(batch, queue, under_way),
            itl_mean=itl,
            itl_p95=self._itl_p95(batch, used),
        )

    def _mean_prefill(self, batch: int) -> float:
        """Mean seconds of a request's own prefill."""
        total = sum(
            c.workload.share * t.per_sample * self.alone(t.uncached, t.cached, batch)
            for c, t in self.prefills
        )
        return total / self.mix.requests_per_sample

    def _ttft_p95(self, batch: int, queue: Wait, under_way: float) -> tuple[float, ...]:
        before = queue.quantile(LEVEL) + under_way
        return tuple(
            before + self.own_p95(c, lambda t: self.alone(t.uncached_p95, t.cached, batch))
            for c in self.mix.classes
        )


@dataclass(frozen=True, kw_only=True)
class PrefillModel(ReplicaModel):
    """A replica that prefills for decode engines that run at `pace`, and hands over the KV."""

    pace: DecodePace
    remote: bool = True

    def highest_load(self) -> float:
        """The load at which the queue is full even if every history were cached."""
        per_sample = sum(
            c.workload.share * t.per_sample * self.work(t.uncached, t.cached, 0) for c, t in self.prefills
        )
        return MAX_PREFILL_UTILIZATION / per_sample

    def _cached_part(self, load: float) -> float:
        """Part of the sessions' histories that this replica still holds."""
        held = load * self.mix.kv_token_seconds(ttft=0.0, itl=self.pace.itl)
        return min(1.0, self.limits.kv_fill * self.engine.kv_capacity_tokens / held) if held > 0 else 1.0

    def _jobs(self, load: float, hit: float) -> Iterator[Job]:
        for c, t in self.prefills:
            rate = load * c.workload.share * t.per_sample
            missed = 1 - hit if t.history else 0.0
            yield Job(rate * (1 - missed), self.work(t.uncached, t.cached, 0), t.variance_factor)
            yield Job(rate * missed, self.work(t.uncached + t.cached, 0, 0))

    def state(self, load: float) -> LoadState:
        """The replica at `load` samples per second."""
        hit = self._cached_part(load)
        queue = wait(self._jobs(load, hit))
        before = queue.quantile(LEVEL) + min(queue.utilization, 1.0) * self._mean_step()
        own = tuple(self.own_p95(c, lambda t: self._handed_over(t, hit)) for c in self.mix.classes)
        return LoadState(
            kv_tokens=0.0,
            prefill_utilization=queue.utilization,
            ttft_mean=queue.mean + self._mean_step(),
            ttft_p95=tuple(before + seconds + self.pace.itl for seconds in own),
        )

    def _mean_step(self) -> float:
        """Mean seconds of a request's prefill steps."""
        total = sum(
            c.workload.share * t.per_sample * self.alone(t.uncached, t.cached, 0) for c, t in self.prefills
        )
        return total / self.mix.requests_per_sample

    def _handed_over(self, turn: Turn, hit: float) -> float:
        """p95 seconds of a turn's own prefill and KV transfer."""
        recomputed = turn.cached if turn.history and 1 - hit > RARE_TURNS else 0.0
        prefill = self.alone(turn.uncached_p95 + recomputed, turn.cached - recomputed, 0)
        tokens = round(turn.transferred_p95)
        return prefill + max(transfer_seconds(e, tokens=tokens) for e in (self.engine, self.pace.engine))


RoleModel = AggregatedModel | PrefillModel | DecodeModel
