"""The engine: takes requests in, runs steps on the caller's clock, gives out tokens and finished requests.

It stands for one vLLM replica: a scheduler and a KV block pool that follow vLLM's algorithms, a profile
that says how long each step takes, and the requests' own `next_token` in place of a model. It does no I/O,
reads no clock and draws no random numbers, so the same calls always give the same results. A step costs in
proportion to the requests scheduled and blocks newly filled.
"""

from collections.abc import Iterable

from rolloutpool_sim.engine.blocks import BlockPool
from rolloutpool_sim.engine.config import EngineConfig
from rolloutpool_sim.engine.hashing import salt_seed
from rolloutpool_sim.engine.kv import KvManager
from rolloutpool_sim.engine.leases import Leases
from rolloutpool_sim.engine.request import EngineRequest, FinishReason, RequestState, Status, Transfer
from rolloutpool_sim.engine.results import Counters, FinishedRequest, Load, NewToken, StepResult
from rolloutpool_sim.engine.scheduler import Schedule, Scheduler
from rolloutpool_sim.profile import ParallelismProfile, attention_pairs, step_seconds, transfer_seconds


class Engine:
    """One emulated vLLM replica. `now` arguments are engine seconds and must not go backwards."""

    def __init__(self, config: EngineConfig, profile: ParallelismProfile) -> None:
        self.config = config
        self.profile = profile
        self.pool = BlockPool(config.num_blocks, caching=config.enable_prefix_caching)
        self.counters = Counters()
        self.leases = Leases(self.pool, config.kv_lease_seconds)
        self._kv = KvManager(self.pool, config.block_size)
        self._scheduler = Scheduler(config, self._kv)
        self._states: dict[str, RequestState] = {}
        self._aborted_loads: dict[str, RequestState] = {}
        self._finished_outside_steps: list[FinishedRequest] = []

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        """Requests not in the batch: queued, preempted, or waiting for remote KV."""
        return len(self._scheduler.waiting) + len(self._scheduler.holding)

    @property
    def deferred(self) -> int:
        """Those of `waiting` that wait for remote KV rather than for room."""
        return len(self._scheduler.holding)

    def kv_fetch_stages(self) -> dict[str, int]:
        """Requests that wait for remote KV, by stage, named as vLLM's metric.

        Costs the number of requests.
        """
        loading = [state for state in self._scheduler.holding if not state.load_ready]
        return {
            "waiting_to_start": sum(state.remote_pending for state in self._states.values()),
            "in_progress": len(loading),
            "completed_waiting": len(self._scheduler.holding) - len(loading),
        }

    def block_table(self, request_id: str) -> tuple[int, ...]:
        """Blocks that a request holds, in order; none for an unknown request."""
        state = self._states.get(request_id)
        return tuple(state.blocks) if state else ()

    def check(self, prompt_tokens: int) -> None:
        """Raise ValueError, with the numbers, if a prompt of this length leaves no room for output."""
        if prompt_tokens >= self.config.max_model_len:
            raise ValueError(
                f"This model's maximum context length is {self.config.max_model_len} tokens. However, your"
                f" prompt contains {prompt_tokens} input tokens, which exceeds this limit even without any"
                " output tokens. Please reduce the length of the input prompt."
            )

    def add(self, request: EngineRequest, now: float) -> None:
        """Queue a request. Raises ValueError for a prompt that is too long or an id that is in use."""
        if request.request_id in self._states:
            raise ValueError(f"request id {request.request_id} is in use")
        self.check(len(request.prompt))
        prompt = len(request.prompt)
        limit = min(prompt + request.max_tokens, self.config.max_model_len)
        stops = request.stop_after is not None and prompt + request.stop_after <= limit
        state = RequestState(
            request=request,
            request_id=request.request_id,
            tokens=list(request.prompt),
            hash_seed=salt_seed(request.cache_salt),
            arrival=now,
            prompt_tokens=prompt,
            end_tokens=prompt + (request.stop_after or 0) if stops else limit,
            end_reason="stop" if stops else "length",
            remote_pending=request.transfer is Transfer.REMOTE_PREFILL,
        )
        self._states[request.request_id] = state
        self._scheduler.waiting.append(state)

    def abort(self, request_ids: Iterable[str], now: float) -> tuple[FinishedRequest, ...]:
        """End requests at once, freeing their blocks; unknown and finished ids are ignored.

        A request that waits for remote KV keeps its blocks until `finish_load`, since they are being written.
        """
        states = [self._states[request_id] for request_id in request_ids if request_id in self._states]
        self._scheduler.remove(set(states))
        return tuple(self._end(state, "abort", now) for state in states)

    def finish_load(self, request_id: str, *, ok: bool, now: float) -> None:
        """Report that a request's remote KV has arrived (`ok`) or is lost.

        A loss ends the request with "error" or has its prompt computed here, as `kv_load_failure` says.
        """
        aborted = self._aborted_loads.pop(request_id, None)
        if aborted is not None:
            self._kv.free(aborted)
            return
        state = self._states.get(request_id)
        if state is None or state.status is not Status.WAITING_FOR_REMOTE_KVS:
            return
        self.counters.failed_loads += not ok
        state.load_ready = True
        state.load_failed = not ok
        if not ok and self.config.kv_load_failure == "fail":
            self._scheduler.remove({state})
            self._finished_outside_steps.append(self._end(state, "error", now))

    def next_event(self) -> float | None:
        """When something will happen by itself while no step runs (a lease ends); None if never."""
        return self.leases.next_end()

    def step(self, now: float) -> StepResult:
        """Schedule and run one step that begins at `now`, and return what it will have done at its end.

        The engine's state is already that of the step's end; the caller delivers the results then, and
        calls again.
        """
        self.counters.expired_leases += self.leases.expire(now)
        plan = self._scheduler.schedule()
        prefill_tokens, seconds = self._cost(plan)
        for state, found in plan.started.items():
            self._count_admission(state, found, now)
        self.counters.preemptions += len(plan.preempted)
        for state in plan.loads:
            self._count_prefix(state)
        tokens, finished = self._sample(plan, now + seconds)
        outside, self._finished_outside_steps = self._finished_outside_steps, []
        if plan.tokens:
            self.counters.steps += 1
        return StepResult(
            started_at=now,
            seconds=seconds,
            scheduled={state.request_id: count for state, count in plan.tokens.items()},
            prefill_tokens=prefill_tokens,
            tokens=tuple(tokens),
            finished=(*outside, *finished),
            preempted=tuple(state.request_id for state in plan.preempted),
            loads=tuple(self._load(state) for state in plan.loads),
        )

    def _load(self, state: RequestState) -> Load:
        tokens = state.remote_hit_tokens
        seconds = transfer_seconds(self.profile, tokens=tokens)
        return Load(request_id=state.request_id, tokens=tokens, seconds=seconds)

    def _cost(self, plan: Schedule) -> tuple[int, float]:
        """Prefill tokens and seconds of a step; a request that computes one token on its output decodes."""
        prefill_tokens = decode_batch = decode_context = 0
        pairs = 0.0
        for state, count in plan.tokens.items():
            if count == 1 and len(state.tokens) > state.prompt_tokens:
                decode_batch += 1
                decode_context += state.computed
            else:
                prefill_tokens += count
                pairs += attention_pairs(new_tokens=count, context_tokens=state.computed - count)
        seconds = step_seconds(
            self.profile,
            prefill_tokens=prefill_tokens,
            prefill_pairs=pairs,
            decode_batch=decode_batch,
            decode_context_tokens=decode_context,
        )
        return prefill_tokens, seconds

    def _count_admission(self, state: RequestState, found: int, now: float) -> None:
        if state.scheduled_at is None:
            state.scheduled_at = now
        if state.preemptions:
            self.counters.recomputed_tokens += len(state.tokens) - found
        elif state.remote_hit_tokens == 0:
            self._count_prefix(state)

    def _count_prefix(self, state: RequestState) -> None:
        if not self.config.enable_prefix_caching:
            return
        self.counters.prefix_cache_queries += state.prompt_tokens
        self.counters.prefix_cache_hits += state.local_hit_tokens
        if state.request.transfer is Transfer.REMOTE_PREFILL:
            self.counters.external_prefix_cache_queries += state.prompt_tokens - state.local_hit_tokens
            self.counters.external_prefix_cache_hits += state.remote_hit_tokens

    def _sample(self, plan: Schedule, at: float) -> tuple[list[NewToken], list[FinishedRequest]]:
        """Give a token to every scheduled request with no uncomputed tokens left; end those that are done."""
        tokens: list[NewToken] = []
        ended: list[RequestState] = []
        for state in plan.tokens:
            known = len(state.tokens)
            if state.computed < known:
                continue
            position = known - state.prompt_tokens
            token = state.request.next_token(position)
            state.tokens.append(token)
            since = state.last_token_at
            if since is None:
                since = state.arrival
                state.first_token_at = at
                self._count_prompt(state)
            state.last_token_at = at
            tokens.append(NewToken(state.request_id, position, token, at - since))
            if known + 1 >= state.end_tokens:
                ended.append(state)
        self.counters.generation_tokens += len(tokens)
        if ended:
            self._scheduler.remove(set(ended))
        return tokens, [self._end(state, state.end_reason, at) for state in ended]

    def _count_prompt(self, state: RequestState) -> None:
        self.counters.prompt_tokens += state.prompt_tokens
        self.counters.prompt_tokens_cached += state.local_hit_tokens
        self.counters.prompt_tokens_remote += state.remote_hit_tokens

    def _end(self, state: RequestState, reason: FinishReason, at: float) -> FinishedRequest:
        loading = state.status is Status.WAITING_FOR_REMOTE_KVS and not state.load_ready
        lease = reason in ("stop", "length") and state.request.transfer is Transfer.REMOTE_DECODE
        block_ids: tuple[int, ...] = ()
        state.status = Status.FINISHED
        del self._states[state.request_id]
        if lease:
            blocks = self._kv.take(state)
            block_ids = tuple(blocks)
            self.leases.grant(state.request_id, blocks, tokens=state.computed, now=at)
        elif loading:
            self._aborted_loads[state.request_id] = state
        else:
            self._kv.free(state)
        return _finished(state, reason, at, lease=lease, block_ids=block_ids)


def _finished(
    state: RequestState, reason: FinishReason, at: float, *, lease: bool, block_ids: tuple[int, ...]
) -> FinishedRequest:
    scheduled = state.scheduled_at if state.scheduled_at is not None else at
    first = state.first_token_at if state.first_token_at is not None else at
    last = state.last_token_at if state.last_token_at is not None else first
    return FinishedRequest(
        request_id=state.request_id,
        reason=reason,
        arrival=state.arrival,
        finished_at=at,
        prompt_tokens=state.prompt_tokens,
        output_tokens=state.output_tokens,
        max_tokens=state.request.max_tokens,
        cached_tokens=state.local_hit_tokens,
        remote_tokens=state.remote_hit_tokens,
        preemptions=state.preemptions,
        queue_seconds=scheduled - state.arrival,
        prefill_seconds=first - scheduled,
        decode_seconds=last - first,
        lease=lease,
        block_ids=block_ids,
        computed_tokens=state.computed,
    )
