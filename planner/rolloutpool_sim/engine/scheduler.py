"""Which requests run in the next step, and for how many tokens: vLLM V1's scheduler, first come first served.

There is no prefill or decode phase: each running request has tokens whose KV is not computed yet (its
prompt at first, one sampled token later), and each step hands out a budget of tokens, running requests
first, then waiting ones. A running request that cannot get a block preempts the last running one, which
loses its KV and waits at the front of the queue. Follows `vllm/v1/core/sched/scheduler.py` of vLLM 0.32
without speculative decoding.
"""

from collections import deque
from dataclasses import dataclass, field

from rolloutpool_sim.engine.config import EngineConfig
from rolloutpool_sim.engine.kv import KvManager
from rolloutpool_sim.engine.request import RequestState, Status, Transfer


@dataclass(slots=True)
class Schedule:
    """The outcome of one scheduling pass.

    `tokens` maps each scheduled request to its number of tokens, in batch order; `started` are those among
    them that were waiting before, with the tokens found in the prefix cache. `loads` are requests that got
    blocks for remote KV in this pass, `local` those that were to load remote KV but found all of it in the
    local prefix cache.
    """

    tokens: dict[RequestState, int] = field(default_factory=dict)
    started: dict[RequestState, int] = field(default_factory=dict)
    preempted: list[RequestState] = field(default_factory=list)
    loads: list[RequestState] = field(default_factory=list)


class Scheduler:
    """Queues of one engine. `schedule` moves requests between them; the engine around it does the rest."""

    def __init__(self, config: EngineConfig, kv: KvManager) -> None:
        self.running: list[RequestState] = []
        self.waiting: deque[RequestState] = deque()
        self.holding: deque[RequestState] = deque()  # wait for remote KV, or have it, and hold blocks
        self._config = config
        self._kv = kv
        self._prefilling: set[RequestState] = set()  # hold blocks but still lack some of their prompt's

    def schedule(self) -> Schedule:
        """Choose the requests and tokens of the next step, allocate blocks and advance `computed`."""
        plan = Schedule()
        budget = self._schedule_running(plan, self._config.max_num_batched_tokens)
        if not plan.preempted:
            self._schedule_waiting(plan, budget)
        for state, tokens in plan.tokens.items():
            state.computed += tokens
            if self._prefilling and state.computed >= len(state.tokens):
                self._prefilling.discard(state)
        return plan

    def remove(self, states: set[RequestState]) -> None:
        """Take `states` out of all queues, keeping the order of the others."""
        if any(state.status is Status.RUNNING for state in states):
            self.running = [state for state in self.running if state not in states]
        if any(state.status is not Status.RUNNING for state in states):
            self.waiting = deque(state for state in self.waiting if state not in states)
            self.holding = deque(state for state in self.holding if state not in states)
        self._prefilling -= states

    def _schedule_running(self, plan: Schedule, budget: int) -> int:
        index = 0
        while index < len(self.running) and budget > 0:
            state = self.running[index]
            tokens = min(len(state.tokens) - state.computed, budget)
            if not self._kv.grow(state, tokens) and not self._preempt_for(state, tokens, plan):
                break
            plan.tokens[state] = tokens
            budget -= tokens
            index += 1
        return budget

    def _preempt_for(self, state: RequestState, tokens: int, plan: Schedule) -> bool:
        """Preempt from the end of the batch until `state` gets its blocks; False if it fell itself."""
        while True:
            victim = self.running.pop()
            self._preempt(victim)
            plan.preempted.append(victim)
            if victim is state:
                return False
            if self._kv.grow(state, tokens):
                return True

    def _preempt(self, state: RequestState) -> None:
        self._kv.free(state)
        self._prefilling.discard(state)
        state.status = Status.PREEMPTED
        state.computed = 0
        state.preemptions += 1
        self.waiting.appendleft(state)

    def _schedule_waiting(self, plan: Schedule, budget: int) -> None:
        still_loading: list[RequestState] = []
        while budget > 0 and len(self.running) < self._config.max_num_seqs:
            queue = self.holding or self.waiting
            if not queue:
                break
            state = queue[0]
            if not self._ready(state):
                still_loading.append(queue.popleft())
                continue
            hit = self._kv.find_prefix(state) if state.computed == 0 else []
            remote = self._remote_tokens(state, hit)
            if remote > 0:
                if not self._start_load(state, hit, remote):
                    break
                still_loading.append(queue.popleft())
                plan.loads.append(state)
                continue
            tokens = self._start(state, hit, budget)
            if tokens == 0:
                break
            queue.popleft()
            self.running.append(state)
            plan.tokens[state] = tokens
            plan.started[state] = len(hit) * self._config.block_size
            budget -= tokens
        self.holding.extendleft(reversed(still_loading))

    def _ready(self, state: RequestState) -> bool:
        """Whether a waiting request may be tried; it may once its remote KV has come or is lost."""
        if state.status is not Status.WAITING_FOR_REMOTE_KVS:
            return True
        if not state.load_ready:
            return False
        if state.load_failed:
            self._kv.free(state)
            self._prefilling.discard(state)
            state.computed = 0
            state.remote_hit_tokens = 0
        else:
            self._kv.cache(state, state.computed)
            # The next token is sampled from the last prompt token's output, so that one is computed here.
            state.computed = min(state.computed, len(state.tokens) - 1)
        state.status = Status.PREEMPTED if state.preemptions else Status.WAITING
        return True

    def _remote_tokens(self, state: RequestState, hit: list[int]) -> int:
        """Prompt tokens that are to come from the prefill engine beyond the local hit."""
        if state.request.transfer is not Transfer.REMOTE_PREFILL or not state.remote_pending:
            return 0
        return max(state.prompt_tokens - len(hit) * self._config.block_size, 0)

    def _start_load(self, state: RequestState, hit: list[int], remote: int) -> bool:
        """Reserve blocks for remote KV, leaving what prefills under way still need.

        No two block each other.
        """
        reserved = sum(self._kv.missing_blocks(other) for other in self._prefilling)
        if not self._kv.admit(state, hit=hit, new_tokens=0, remote_tokens=remote, reserved=reserved):
            return False
        state.status = Status.WAITING_FOR_REMOTE_KVS
        state.remote_pending = False
        state.local_hit_tokens = len(hit) * self._config.block_size
        state.remote_hit_tokens = remote
        state.computed = state.local_hit_tokens + remote
        self._prefilling.add(state)
        return True

    def _start(self, state: RequestState, hit: list[int], budget: int) -> int:
        """Let a waiting request run, with its first chunk of tokens; 0 if it does not fit."""
        found = len(hit) * self._config.block_size
        tokens = min(len(state.tokens) - found - state.computed, budget)
        if state.blocks:
            fits = self._kv.missing_blocks(state) <= self._kv.pool.free_blocks and self._kv.grow(
                state, tokens
            )
        else:
            fits = self._kv.admit(state, hit=hit, new_tokens=tokens)
        if not fits:
            return 0
        if state.preemptions == 0 and state.computed == 0:
            state.local_hit_tokens = found
        state.computed += found
        state.status = Status.RUNNING
        if state.computed + tokens < len(state.tokens):
            self._prefilling.add(state)
        return tokens
