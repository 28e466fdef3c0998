"""Which requests run in the next step, as vLLM V1's scheduler decides, at a cost that leaves decodes out.

See `rolloutpool_sim.engine.scheduler` for the rules. As a batch limit below the number of sequences is
refused, each decoding request gets its token in every step, and only the last of the batch can be in the
middle of its prefill, since a prefill that is cut takes all that is left of a step's tokens.
"""

from collections import deque
from typing import Literal

from rolloutpool_sim.engine.config import EngineConfig
from rolloutpool_sim.engine.kv import blocks_for
from rolloutpool_sim.engine.results import Counters
from rolloutpool_sim.leap.batch import DecodeBatch
from rolloutpool_sim.leap.offload import CpuTier
from rolloutpool_sim.leap.pool import ExtentPool
from rolloutpool_sim.leap.request import State
from rolloutpool_sim.leap.streams import Stream

Scheduled = list[tuple[State, int]]
"""Requests of a step that do more than go on decoding, with their tokens."""

_Outcome = Literal["runs", "loads", "waits for another's load", "does not fit"]


class Scheduler:
    """Queues of one engine. The engine around it tells the time and does the rest."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        pool: ExtentPool,
        batch: DecodeBatch,
        counters: Counters,
        tier: CpuTier | None,
    ) -> None:
        self.running: dict[State, None] = {}  # in batch order
        self.waiting: deque[State] = deque()
        self.loading: deque[State] = (
            deque()
        )  # hold blocks that are loaded from the CPU, the first to come first
        self._loaded: deque[State] = deque()  # have got them and are the next to run
        self._partial: State | None = None  # in the middle of its prefill
        self._stuck = True  # nobody can be admitted until a request is added, preempted, loaded or ends
        self._admissions = 0
        self._config = config
        self._pool = pool
        self._batch = batch
        self._counters = counters
        self._tier = tier

    @property
    def queued(self) -> int:
        """Requests not in the batch."""
        return len(self.waiting) + len(self.loading) + len(self._loaded)

    def add(self, state: State) -> None:
        """Queue a request."""
        if not self.waiting:
            self._stuck = False
        self.waiting.append(state)

    def end(self, state: State) -> None:
        """Take a request out, wherever it is, and its blocks from it."""
        self._stuck = False
        if state in self.running:
            self._leave(state)
            return
        for queue in (self.waiting, self.loading, self._loaded):
            if state in queue:
                queue.remove(state)
        self._unmark_load(state)
        self._release(state)

    def end_finished(self) -> list[State]:
        """Take out and return the requests that have all their tokens by now, in batch order."""
        ended = self._batch.ended()
        for state in ended:
            self._stuck = False
            del self.running[state]
            self._release(state)
        return ended

    def leap(self, now: float) -> int:
        """How many steps from `now` on do nothing but decode, counting that in which the first request ends.

        That is as long as no request is added and no load comes in.
        """
        if self._partial is not None or not self.running or not self._stuck or self._load_due(now):
            return 0
        if self.waiting and self._head_may_gain():
            return 0
        return self._batch.steps_within(self._pool.free, self._batch.steps_to_end())

    def idle(self, now: float) -> bool:
        """Whether no step can run before a load comes in or a request is added."""
        return self._stuck and not self.running and not self._load_due(now)

    def step(self, now: float) -> Scheduled:
        """Schedule the step that begins at `now`: decodes, then the prefill under way, then those waiting."""
        batch, pool = self._batch, self._pool
        while self._load_due(now):
            self._finish_load(self.loading.popleft())
        needed = batch.blocks_for(1)
        budget = self._config.max_num_batched_tokens - batch.size
        partial, tokens, growth = self._partial, 0, 0
        if partial is not None:
            tokens = min(partial.length - partial.computed, budget)
            growth = self._blocks(partial.computed + tokens) - self._blocks(partial.computed)
        if needed + growth > pool.free:
            self._decode_preempting(now)
            return []
        pool.take(needed)
        batch.step += 1
        scheduled: Scheduled = []
        if partial is not None:
            pool.take(growth)
            self._compute(partial, tokens)
            scheduled.append((partial, tokens))
        self._admit(budget - tokens, scheduled, now)
        return scheduled

    def _load_due(self, now: float) -> bool:
        return bool(self.loading) and self.loading[0].loaded_at <= now

    def _head_may_gain(self) -> bool:
        """Whether the first one waiting shares a stream in which others decode, so that it may soon fit."""
        if len(self.running) >= self._config.max_num_seqs:
            return False
        return any(stream.growers for stream, _ in self.waiting[0].path)

    def _decode_preempting(self, now: float) -> None:
        """Decode with too few free blocks: each request, in order, takes what it lacks from the last ones.

        A prefill under way never survives this: it is the last, and less is free than it needs.
        """
        batch, pool = self._batch, self._pool
        order = list(self.running)
        done = 0
        while done < len(order):
            state = order[done]
            needs = state.decoding and batch.needs_block(state)
            if state is self._partial or (needs and pool.free < 1):
                self._preempt(order.pop(), now)
            else:
                pool.take(int(needs))
                done += 1
        batch.step += 1

    def _preempt(self, state: State, now: float) -> None:
        if state.decoding:
            state.last_token_at = now
        self._leave(state)
        state.computed = 0
        state.preemptions += 1
        self._counters.preemptions += 1
        self._stuck = False
        self.waiting.appendleft(state)

    def _leave(self, state: State) -> None:
        """Take a request out of the batch, and its blocks from it."""
        del self.running[state]
        if state.decoding:
            self._batch.leave(state)
        elif state is self._partial:
            self._partial = None
        self._release(state)

    def _release(self, state: State) -> None:
        if self._tier is not None and state.full:
            self._tier.store(state.path, state.full)
        self._pool.release(state, self._blocks(state.computed))

    def _admit(self, budget: int, scheduled: Scheduled, now: float) -> None:
        """Let requests in, in order, each only if the free blocks hold all of its tokens."""
        delayed: list[State] = []
        self._stuck = True
        while (self._loaded or self.waiting) and len(self.running) < self._config.max_num_seqs:
            if not budget:
                self._stuck = False
                break
            queue = self._loaded or self.waiting
            state = queue[0]
            outcome = self._try_loaded(state) if queue is self._loaded else self._try_waiting(state, now)
            if outcome == "does not fit":
                break
            queue.popleft()
            if outcome == "runs":
                tokens = self._start(state, budget, now)
                scheduled.append((state, tokens))
                budget -= tokens
            elif outcome == "loads":
                self.loading.append(state)
            else:
                delayed.append(state)
        self.waiting.extendleft(reversed(delayed))

    def _try_waiting(self, state: State, now: float) -> _Outcome:
        """Give a request the blocks of its cached prefix and those to load into, if all of it fits."""
        pool, tier = self._pool, self._tier
        size = self._config.block_size
        limit = (state.length - 1) // size  # the last token is computed in any case
        prefix = pool.find(state.path, limit, self._batch.step)
        found = prefix.blocks
        if tier is not None:
            found = tier.find(state.path, start=found, limit=limit)
        load = found - prefix.blocks
        streams = _streams_between(state, prefix.blocks, found) if load else []
        if any(stream.loads for stream in streams):
            return "waits for another's load"
        free = pool.free - prefix.free
        if self._blocks(state.length) - prefix.blocks > free or (load and load > free - self._reserved()):
            return "does not fit"
        pool.hold(state, prefix)
        state.computed = found * size
        if not state.preemptions:
            state.hit_tokens = prefix.blocks * size
            state.remote_tokens = load * size
        if tier is None or not load:
            return "runs"
        pool.take(load)
        for stream in streams:
            stream.loads += 1
        state.load = streams
        state.loaded_at = tier.load(load, now)
        return "loads"

    def _try_loaded(self, state: State) -> _Outcome:
        missing = self._blocks(state.length) - self._blocks(state.computed)
        return "runs" if missing <= self._pool.free else "does not fit"

    def _reserved(self) -> int:
        """Blocks that requests which hold some already still lack, so that no two block each other."""
        others = [*self.loading, *self._loaded]
        if self._partial is not None:
            others.append(self._partial)
        return sum([self._blocks(state.length) - self._blocks(state.computed) for state in others])

    def _finish_load(self, state: State) -> None:
        self._unmark_load(state)
        self._cache(state)
        self._loaded.append(state)

    def _unmark_load(self, state: State) -> None:
        for stream in state.load:
            stream.loads -= 1
        state.load = []

    def _start(self, state: State, budget: int, now: float) -> int:
        """Put a request into the batch with its first tokens; return how many."""
        self.running[state] = None
        self._admissions += 1
        state.order = self._admissions
        self._count(state)
        if state.scheduled_at is None:
            state.scheduled_at = now
        tokens = min(state.length - state.computed, budget)
        self._pool.take(self._blocks(state.computed + tokens) - self._blocks(state.computed))
        self._compute(state, tokens)
        return tokens

    def _count(self, state: State) -> None:
        counters = self._counters
        if state.preemptions:
            counters.recomputed_tokens += state.length - state.computed
        elif self._config.enable_prefix_caching:
            counters.prefix_cache_queries += state.prompt_tokens
            counters.prefix_cache_hits += state.hit_tokens
            if self._tier is not None:
                counters.external_prefix_cache_queries += state.prompt_tokens - state.hit_tokens
                counters.external_prefix_cache_hits += state.remote_tokens

    def _compute(self, state: State, tokens: int) -> None:
        """Schedule tokens of a prefill, for which there are blocks."""
        state.computed += tokens
        self._cache(state)
        if self._tier is not None and state.full:
            self._tier.store(state.path, state.full)
        self._partial = state if state.computed < state.length else None

    def _cache(self, state: State) -> None:
        for stream, _ in state.path:
            if stream.growers:  # what these have filled was filled before
                self._pool.catch_up(stream, self._batch.step)
        self._pool.store(state, state.computed // self._config.block_size)

    def _blocks(self, tokens: int) -> int:
        return blocks_for(tokens, self._config.block_size)


def _streams_between(state: State, lo: int, hi: int) -> list[Stream]:
    """Streams of a prompt that have some of the blocks `lo`..`hi` (exclusive)."""
    streams: list[Stream] = []
    begin = 0
    for stream, end in state.path:
        if begin < hi and end > lo and end > begin:
            streams.append(stream)
        begin = max(begin, end)
    return streams
