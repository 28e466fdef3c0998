"""Passive health of one engine, judged by its work: connection errors, failed generations, unanswered probes.

Three things take an engine out, each on its own terms:
- a connection error: for a time that grows with each further one; whatever it answers next ends that;
- generations that fail one after another with no success between: it is ejected, and only a generation that
  succeeds brings it back. Single generations try it, after a back-off that grows with each of them: one may
  be a rollout that takes an hour, so the next does not wait for its end;
- probes that stay unanswered: until one is answered.

`core.standing` decides what that means beside the other engines: the last ones are never out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

FIRST_BACKOFF_SECONDS = 0.5
"""How long an engine is out after its first connection error, in seconds; doubles with each further one."""
MAX_BACKOFF_SECONDS = 10.0
"""Longest time out after connection errors, in seconds: how late a returned engine may be noticed."""
AWAY_FAILURES = 4
"""Connection errors in a row (about 8 s) after which an engine is away: others cannot count on its return."""
EJECT_FAILURES = 5
"""Generations that fail in a row, no success between, until their engine is ejected."""
FIRST_EJECTION_SECONDS = 2.0
"""How long after an ejection the first trial may be sent, in seconds; doubles with each further one."""
MAX_EJECTION_SECONDS = 60.0
"""Longest time between two trials, in seconds."""
MOST_TRIALS = 4
"""Trials under way at a time: what an engine that takes requests and answers none may hold of them."""
PARDON_SECONDS = 300.0
"""How long an engine must have been back until its next ejection is short again, in seconds."""
RESERVED_SECONDS = 5.0
"""How long a trial is kept for a session that was let in for it, in seconds: its request is on its way."""
UNANSWERED_PROBES = 3
"""Probes in a row without an answer until an engine is out; its tokens that still come speak against it."""


@dataclass(frozen=True, slots=True)
class Ejection:
    """An engine that is out until a generation succeeds."""

    why: str
    """In words."""
    trial_from: float
    """When a trial may be sent, in seconds."""
    times: int = 1
    """Ejections and failed trials in a row."""
    trials: int = 0
    """Trials under way; with `times` what the next back-off follows."""
    reserved_until: float = 0.0
    """Until when the trial is kept for a session that was let in, in seconds."""

    def is_due(self, now: float) -> bool:
        """Whether a trial may be sent, be it by the session that it is kept for."""
        return self.trials < MOST_TRIALS and now >= self.trial_from

    def is_free(self, now: float) -> bool:
        """Whether any session may have the trial."""
        return self.is_due(now) and now >= self.reserved_until

    def backed_off(self, now: float) -> Ejection:
        """The same, with the wait for the next trial from now on."""
        wait = FIRST_EJECTION_SECONDS * 2.0 ** min(self.times + self.trials - 1, 16)
        return replace(self, trial_from=now + min(MAX_EJECTION_SECONDS, wait))

    def after_trial(self) -> Ejection:
        """One of its trials has ended."""
        return replace(self, trials=max(0, self.trials - 1))


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """What speaks against an engine; times are seconds of the caller's monotonic clock."""

    connect_failures: int = 0
    """Connection errors in a row."""
    out_until: float = 0.0
    """Until when it is out after connection errors."""
    failures: int = 0
    """Generations that failed in a row."""
    unanswered: int = 0
    """Probes in a row without an answer."""
    ejection: Ejection | None = None
    last_times: int = 0
    """`times` of the last ejection, while it is not pardoned."""
    pardon_at: float = 0.0
    """When the last ejection is forgotten."""

    @property
    def is_away(self) -> bool:
        """Whether it has been gone for longer than a blink."""
        return self.connect_failures >= AWAY_FAILURES or self.unanswered >= UNANSWERED_PROBES

    def stands_as(self, other: EngineHealth) -> bool:
        """Whether the engine stands as it would with that health, at any time."""
        mine = (self.out_until, self.ejection, self.unanswered >= UNANSWERED_PROBES, self.is_away)
        theirs = (other.out_until, other.ejection, other.unanswered >= UNANSWERED_PROBES, other.is_away)
        return mine == theirs

    def failed(self, now: float) -> EngineHealth:
        """After a connection error. Errors of requests that started before the last one count once."""
        if now < self.out_until:
            return self
        backoff = min(MAX_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** min(self.connect_failures, 16))
        return replace(self, connect_failures=self.connect_failures + 1, out_until=now + backoff)

    def healthy(self, now: float) -> bool:
        """Whether it may be tried, as far as connection errors go."""
        return now >= self.out_until

    def answered(self) -> EngineHealth:
        """It answered something: it is there. That alone does not end an ejection."""
        return replace(self, connect_failures=0, out_until=0.0, unanswered=0)

    def unheard(self) -> EngineHealth:
        """A probe was not answered."""
        return replace(self, unanswered=self.unanswered + 1)

    def succeeded(self, now: float) -> EngineHealth:
        """A generation succeeded: it is back, whatever was held against it."""
        if self.ejection is not None:
            return EngineHealth(last_times=self.ejection.times, pardon_at=now + PARDON_SECONDS)
        if now >= self.pardon_at:
            return HEALTHY
        return EngineHealth(last_times=self.last_times, pardon_at=self.pardon_at)

    def generation_failed(self, now: float, *, trial: bool) -> EngineHealth:
        """A generation failed; `trial`: it was the ejected engine's trial."""
        if self.ejection is not None:
            if not trial:
                return self
            ejection = replace(self.ejection.after_trial(), times=self.ejection.times + 1)
            return replace(self, ejection=ejection.backed_off(now))
        failures = self.failures + 1
        if failures < EJECT_FAILURES:
            return replace(self, failures=failures)
        return self.ejected(now, f"{failures} generations failed in a row")

    def ejected(self, now: float, why: str) -> EngineHealth:
        """Out until a generation succeeds; each time in a row doubles the wait for the next trial."""
        if self.ejection is not None:
            times = self.ejection.times + 1
        else:
            times = 1 + (self.last_times if now < self.pardon_at else 0)
        return replace(self, failures=0, ejection=Ejection(why, now, times).backed_off(now))

    def trial_reserved(self, now: float) -> EngineHealth:
        """A session was let in for the trial; its request follows."""
        if self.ejection is None:
            return self
        return replace(self, ejection=replace(self.ejection, reserved_until=now + RESERVED_SECONDS))

    def trial_began(self, now: float) -> EngineHealth:
        """A trial was sent."""
        if self.ejection is None:
            return self
        ejection = replace(self.ejection, trials=self.ejection.trials + 1, reserved_until=0.0)
        return replace(self, ejection=ejection.backed_off(now))

    def trial_ended(self, now: float) -> EngineHealth:
        """A trial told nothing (its client went away, say): the next may follow at once."""
        if self.ejection is None:
            return self
        return replace(self, ejection=replace(self.ejection.after_trial(), trial_from=now))


HEALTHY = EngineHealth()
