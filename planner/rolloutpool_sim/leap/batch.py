"""The decoding requests of an engine as sums, so that any number of decode steps costs the same.

In every step each decoding request computes one token. So with the engine's step count as the clock, a
request is known by one number, the `offset` of its computed tokens from that count, until it ends at a step
known beforehand. The batch keeps what a step needs to know about all: how many there are, the sum of their
contexts, and how many fill their last block in which step.
"""

from heapq import heappop, heappush
from math import sqrt

from rolloutpool_sim.leap.pool import ExtentPool
from rolloutpool_sim.leap.request import State
from rolloutpool_sim.profile import ParallelismProfile, token_seconds


class DecodeBatch:
    """All requests that compute one output token a step. `step` counts the engine's steps."""

    def __init__(self, profile: ParallelismProfile, pool: ExtentPool, block_size: int) -> None:
        self.step = 0
        self.size = 0
        self._pool = pool
        self._profile = profile
        self._block_size = block_size
        self._offsets = 0  # sum over the requests
        self._phases = [0] * block_size  # requests by offset modulo the block size
        self._ends: list[tuple[int, int, State]] = []  # last step, order in the batch; entries may be stale
        self._token_seconds: dict[int, float] = {}
        # The time of the end of step `_base_step + j` while the batch stays as it is:
        # _base_time + j * _first + j * (j - 1) * _growth
        self._base_step = 0
        self._base_time = self._first = self._growth = 0.0

    @property
    def context(self) -> int:
        """Computed tokens of all requests."""
        return self._offsets + self.size * self.step

    def join(self, state: State) -> None:
        """Take in a request whose known tokens are all computed but the one just sampled."""
        offset = state.computed - self.step
        state.offset = offset
        state.decoding = True
        self.size += 1
        self._offsets += offset
        self._phases[offset % self._block_size] += 1
        state.path[-1][0].growers.append(state)
        heappush(self._ends, (self.step + state.end_tokens - state.length, state.order, state))

    def leave(self, state: State) -> None:
        """Take out a request, which then knows its own numbers of tokens again and has its blocks cached."""
        stream = state.path[-1][0]
        self._pool.catch_up(stream, self.step)
        stream.growers.remove(state)
        offset = state.offset
        state.decoding = False
        state.computed = self.step + offset
        state.length = state.computed + 1
        self.size -= 1
        self._offsets -= offset
        self._phases[offset % self._block_size] -= 1

    def ended(self) -> list[State]:
        """Take out and return the requests that have all their tokens by now, in batch order."""
        ends = self._ends
        ended: list[State] = []
        while ends and ends[0][0] <= self.step:
            _, order, state = heappop(ends)
            if state.decoding and state.order == order:
                self.leave(state)
                ended.append(state)
        return ended

    def steps_to_end(self) -> int:
        """Steps until the first request ends, counting the one in which it does. Not for an empty batch."""
        ends = self._ends
        while True:
            end, order, state = ends[0]
            if state.decoding and state.order == order:
                return end - self.step
            heappop(ends)

    def blocks_for(self, steps: int) -> int:
        """New blocks that the next `steps` steps take."""
        rounds, rest = divmod(steps, self._block_size)
        blocks = rounds * self.size
        for ahead in range(rest):
            blocks += self._phases[-(self.step + ahead) % self._block_size]
        return blocks

    def needs_block(self, state: State) -> bool:
        """Whether a request takes a new block in the next step."""
        return (self.step + state.offset) % self._block_size == 0

    def steps_within(self, blocks: int, steps: int) -> int:
        """How many of the next `steps` steps can be done with `blocks` new blocks."""
        rounds = min(steps // self._block_size, blocks // self.size)
        if rounds == steps // self._block_size and blocks >= (rounds + 1) * self.size:
            return steps
        done = rounds * self._block_size
        blocks -= rounds * self.size
        while done < steps:
            blocks -= self._phases[-(self.step + done) % self._block_size]
            if blocks < 0:
                break
            done += 1
        return done

    def rebase(self, now: float) -> None:
        """Note that the batch has changed, or time has passed otherwise: the next step begins at `now`."""
        size = self.size
        tokens = self._token_seconds.get(size)
        if tokens is None:
            tokens = self._token_seconds[size] = token_seconds(self._profile.token_time, size)
        per_context = self._profile.decode_seconds_per_context_token
        self._base_step = self.step
        self._base_time = now
        self._first = tokens + per_context * (self.context + size)
        self._growth = per_context * size / 2

    def ends_at(self, step: int) -> float:
        """When step number `step` ends if all steps from the last `rebase` on are pure decode steps."""
        steps = step - self._base_step
        return self._base_time + steps * (self._first + (steps - 1) * self._growth)

    def steps_begun(self, until: float, *, most: int, inclusive: bool) -> int:
        """How many of the next `most` decode steps begin before `until` (or at it, if `inclusive`).

        The first of them must. The answer may be one too few, by rounding, so ask again from there.
        """
        last = self.step + most - 1  # the number of the step at whose end the last one begins
        if self._begins_by(last, until, inclusive):
            return most
        span = until - self._base_time
        linear = self._first - self._growth
        ended = 2 * span / (linear + sqrt(linear * linear + 4 * self._growth * span))
        step = min(max(self._base_step + int(ended), self.step), last)
        while not self._begins_by(step, until, inclusive):
            step -= 1
        return step + 1 - self.step

    def _begins_by(self, step: int, until: float, inclusive: bool) -> bool:
        begins = self.ends_at(step)
        return begins < until or (inclusive and begins == until)
