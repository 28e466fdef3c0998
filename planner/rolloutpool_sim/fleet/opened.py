"""A sample under way: where its session stands, and what it holds."""

from __future__ import annotations

from dataclasses import dataclass

from rolloutpool_sim.fleet.sampling import Sample, Turn
from rolloutpool_sim.leap import LeapRequest, Segment


@dataclass(slots=True, eq=False)
class OpenSample:
    """One submitted sample; times in seconds of the run."""

    sample: Sample
    submitted_at: float
    block_size: int
    """KV block size, in tokens."""
    turn: int = 0
    """Index of the turn that is under way, or comes next."""
    history_tokens: int = 0
    """Tokens behind the group's prompt: those of all answers, and what the environment added, so far."""
    engine: str = ""
    """Where it is resident, or was last; empty before it entered."""
    entered_at: float | None = None
    """When it first entered."""
    in_flight: bool = False
    """Whether its engine is busy with a turn of it."""
    own_blocks: float = 0.0
    """Blocks that it holds alone now."""
    block_seconds: float = 0.0
    """Those, integrated over its residency so far."""
    resident_seconds: float = 0.0
    """Its residency so far."""
    counted_to: float = 0.0
    """When the two were last brought up to date."""
    resident: bool = False
    """Whether it counts as resident."""

    @property
    def next_turn(self) -> Turn:
        """The turn that is under way, or comes next."""
        return self.sample.turns[self.turn]

    @property
    def prompt_tokens(self) -> int:
        """Tokens of that turn's prompt."""
        return self.sample.group.prompt_tokens + self.history_tokens + self.next_turn.added_tokens

    @property
    def known_tokens(self) -> int:
        """Tokens whose KV its last turn left behind, in whole blocks; 0 before the first turn ended."""
        if self.turn == 0:
            return 0
        left = self.sample.group.prompt_tokens + self.history_tokens - 1
        return left // self.block_size * self.block_size

    def request(self) -> LeapRequest:
        """The engine request of that turn."""
        turn = self.next_turn
        own = Segment(self.sample.name, self.history_tokens + turn.added_tokens)
        return LeapRequest(self.sample.name, (*self.sample.group.prompt, own), turn.output_tokens)

    def end_turn(self) -> bool:
        """The turn's answer is complete; whether another turn follows."""
        turn = self.next_turn
        self.history_tokens += turn.added_tokens + turn.output_tokens
        self.turn += 1
        return self.turn < len(self.sample.turns)

    def count(self, now: float) -> None:
        """Bring block-seconds and residency up to now."""
        if self.resident:
            self.block_seconds += self.own_blocks * (now - self.counted_to)
            self.resident_seconds += now - self.counted_to
        self.counted_to = now
