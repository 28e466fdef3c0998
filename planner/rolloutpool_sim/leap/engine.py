"""The leaping engine: the decisions of `rolloutpool_sim.engine.Engine`, at a cost that suits fleets.

Tokens are known by their streams, blocks by extents, and the decoding part of the batch by sums, so a step
costs only the requests that are admitted, prefilled or ended in it; runs of steps in which nothing but
decoding happens are done at once. Pure and on the caller's clock. Without transfer between engines.
"""

from collections.abc import Iterable

from rolloutpool_sim.engine.config import EngineConfig
from rolloutpool_sim.engine.request import FinishReason
from rolloutpool_sim.engine.results import Counters, FinishedRequest
from rolloutpool_sim.leap.batch import DecodeBatch
from rolloutpool_sim.leap.offload import CpuTier, Offload
from rolloutpool_sim.leap.pool import ExtentPool
from rolloutpool_sim.leap.request import LeapRequest, Segment, State
from rolloutpool_sim.leap.scheduler import Scheduled, Scheduler
from rolloutpool_sim.leap.streams import Trie
from rolloutpool_sim.profile import ParallelismProfile, attention_pairs, step_seconds


class LeapEngine:
    """One vLLM replica. `now` arguments are engine seconds and must not go backwards.

    `advance(now)` begins all steps up to `now`, one that begins at `now` included; a request that is added
    later, at the same time too, is seen by the step after that. Numbers of running requests, blocks and so
    on are those of the end of the last step begun. `offload` is a second tier in CPU memory. Raises
    ValueError for a batch limit that vLLM refuses too.
    """

    def __init__(
        self, config: EngineConfig, profile: ParallelismProfile, *, offload: Offload | None = None
    ) -> None:
        if config.max_num_batched_tokens < config.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({config.max_num_batched_tokens}) must be at least max_num_seqs"
                f" ({config.max_num_seqs}), so that every running request gets a token a step"
            )
        self.config = config
        self.profile = profile
        self.counters = Counters()
        self.pool = ExtentPool(config.num_blocks, config.block_size, caching=config.enable_prefix_caching)
        self.tier = CpuTier(offload) if offload is not None and config.enable_prefix_caching else None
        self.trie = Trie(config.block_size)
        self._batch = DecodeBatch(profile, self.pool, config.block_size)
        self._scheduler = Scheduler(
            config, pool=self.pool, batch=self._batch, counters=self.counters, tier=self.tier
        )
        self._states: dict[str, State] = {}
        self._clock = 0.0  # end of the last step begun
        self._finished: list[FinishedRequest] = []  # not yet returned, in order

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        """Requests not in the batch: queued, preempted, or waiting for blocks from the CPU."""
        return self._scheduler.queued

    @property
    def used_blocks(self) -> int:
        """Blocks held by requests."""
        return self.pool.usable - self.pool.free

    @property
    def usage(self) -> float:
        """Used fraction of the blocks, 0..1."""
        return self.used_blocks / self.pool.usable

    @property
    def evicted(self) -> int:
        """Cached blocks that lost their contents to a new use."""
        return self.pool.evicted

    def cached_tokens(self, prompt: Iterable[Segment]) -> int:
        """Tokens of `prompt`, in whole blocks, that are in the GPU's prefix cache."""
        path = self.trie.known(prompt)
        if not path:
            return 0
        return self.pool.find(path, path[-1][1], self._batch.step).blocks * self.config.block_size

    def add(self, request: LeapRequest, now: float) -> None:
        """Queue a request. Raises ValueError for a prompt that is too long or an id that is in use."""
        if request.request_id in self._states:
            raise ValueError(f"request id {request.request_id} is in use")
        prompt_tokens, limit = request.prompt_tokens, self.config.max_model_len
        if prompt_tokens >= limit:
            raise ValueError(
                f"request {request.request_id}: its prompt of {prompt_tokens} tokens leaves no room for"
                f" output within max_model_len {limit}"
            )
        self._run(now, inclusive=False)
        if not self._states or self._scheduler.idle(now):
            self._clock = max(self._clock, now)
        path = self.trie.path(request.prompt)
        path[-1][0].users += 1
        state = State(request, prompt_tokens=prompt_tokens, path=path, arrival=now, max_model_len=limit)
        self._states[request.request_id] = state
        self._scheduler.add(state)

    def abort(self, request_ids: Iterable[str], now: float) -> tuple[FinishedRequest, ...]:
        """End requests at once, freeing their blocks; unknown and finished ids are ignored."""
        self._run(now, inclusive=False)
        ended: list[FinishedRequest] = []
        for request_id in request_ids:
            state = self._states.get(request_id)
            if state is None:
                continue
            if state.decoding:
                state.last_token_at = self._clock
            self._scheduler.end(state)
            ended.append(self._end(state, "abort", now))
        self._batch.rebase(self._clock)
        return tuple(ended)

    def next_event(self) -> float | None:
        """When to call `advance` next: not after the next request finishes. None if nothing is to be done.

        To be asked again after every other call.
        """
        if self._finished:
            return self._finished[0].finished_at
        if not self._states:
            return None
        steps = self._scheduler.leap(self._clock)
        loading = self._scheduler.loading
        if steps:
            end = self._batch.ends_at(self._batch.step + steps)
            return min(end, loading[0].loaded_at) if loading else end
        return loading[0].loaded_at if self._scheduler.idle(self._clock) else self._clock

    def advance(self, now: float) -> tuple[FinishedRequest, ...]:
        """Begin all steps up to `now`, and one at `now`; return the requests finished by `now`, in order."""
        self._run(now, inclusive=True)
        done = [one for one in self._finished if one.finished_at <= now]
        if done:
            self._finished = self._finished[len(done) :]
        return tuple(done)

    def _run(self, until: float, *, inclusive: bool) -> None:
        """Do all steps that begin before `until` (or at it, if `inclusive`)."""
        scheduler = self._scheduler
        while self._states and (self._clock < until or (inclusive and self._clock == until)):
            steps = scheduler.leap(self._clock)
            if steps:
                self._leap(steps, until, inclusive=inclusive)
            elif not scheduler.idle(self._clock):
                self._step()
            elif scheduler.loading[0].loaded_at <= until:
                self._clock = scheduler.loading[0].loaded_at
            else:
                break

    def _leap(self, most: int, until: float, *, inclusive: bool) -> None:
        """Do those of the next `most` steps, all decodes, that begin by `until` and before a load ends."""
        batch, loading = self._batch, self._scheduler.loading
        if loading and loading[0].loaded_at <= until:
            until, inclusive = loading[0].loaded_at, False
        steps = batch.steps_begun(until, most=most, inclusive=inclusive)
        self.pool.take(batch.blocks_for(steps))
        batch.step += steps
        self.counters.steps += steps
        self.counters.generation_tokens += steps * batch.size
        self._clock = batch.ends_at(batch.step)
        self._end_finished()

    def _step(self) -> None:
        """Do one step: schedule it, let its time pass, and give tokens to the requests computed in full."""
        scheduled = self._scheduler.step(self._clock)
        batch, counters = self._batch, self.counters
        if scheduled or batch.size:
            self._clock += self._seconds(scheduled)
            counters.steps += 1
            counters.generation_tokens += batch.size
            for state, _ in scheduled:
                if state.computed == state.length:
                    self._sample(state)
        batch.rebase(self._clock)
        self._end_finished()

    def _seconds(self, scheduled: Scheduled) -> float:
        """Seconds of a step; a request that computes one token on its output decodes."""
        prefill_tokens, pairs = 0, 0.0
        decodes, context = self._batch.size, self._batch.context
        for state, tokens in scheduled:
            if tokens == 1 and state.length > state.prompt_tokens:
                decodes += 1
                context += state.computed
            else:
                prefill_tokens += tokens
                pairs += attention_pairs(new_tokens=tokens, context_tokens=state.computed - tokens)
        return step_seconds(
            self.profile,
            prefill_tokens=prefill_tokens,
            prefill_pairs=pairs,
            decode_batch=decodes,
            decode_context_tokens=context,
        )

    def _sample(self, state: State) -> None:
        """Give a request its first token after a prefill; from here on it decodes."""
        counters = self.counters
        counters.generation_tokens += 1
        state.length += 1
        if state.first_token_at is None:
            state.first_token_at = self._clock
            counters.prompt_tokens += state.prompt_tokens
            counters.prompt_tokens_cached += state.hit_tokens
            counters.prompt_tokens_remote += state.remote_tokens
        self._batch.join(state)

    def _end_finished(self) -> None:
        ended = self._scheduler.end_finished()
        for state in ended:
            state.last_token_at = self._clock
            self._finished.append(self._end(state, state.end_reason, self._clock))
        if ended:
            self._batch.rebase(self._clock)

    def _end(self, state: State, reason: FinishReason, at: float) -> FinishedRequest:
        del self._states[state.request_id]
        stream = state.path[-1][0]
        stream.users -= 1
        stream.drop_if_unused()
        scheduled = state.scheduled_at if state.scheduled_at is not None else at
        first = state.first_token_at if state.first_token_at is not None else at
        last = state.last_token_at if state.last_token_at is not None else first
        return FinishedRequest(
            request_id=state.request_id,
            reason=reason,
            arrival=state.arrival,
            finished_at=at,
            prompt_tokens=state.prompt_tokens,
            output_tokens=state.length - state.prompt_tokens,
            max_tokens=state.output_tokens,
            cached_tokens=state.hit_tokens,
            remote_tokens=state.remote_tokens,
            preemptions=state.preemptions,
            queue_seconds=scheduled - state.arrival,
            prefill_seconds=first - scheduled,
            decode_seconds=last - first,
            computed_tokens=state.computed,
        )
