"""The loop that drives an engine through a trace, one for both engines, and what it observes."""

from dataclasses import dataclass, field
from typing import Protocol

from vllm_oracle.traces import Job, Trace

MOST_STEPS = 20_000
"""A trace that takes more is taken to be stuck."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One step of an engine.

    `scheduled` has the tokens computed for each request, in the order of the batch; `preempted` and
    `finished` are in the order in which it happened. `evicted` counts cached blocks that were handed out
    for other contents, `free` the blocks that nobody holds at the end. `new_blocks` has the ids of the
    blocks that each request, unless it finished, got in this step, those of its prefix hit among them.
    """

    number: int
    scheduled: dict[str, int]
    preempted: list[str]
    finished: list[str]
    evicted: int
    free: int
    new_blocks: dict[str, list[int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """What is known when all jobs have ended.

    `cached` has the prompt tokens that each job found in the prefix cache at its first admission (0 if it
    was aborted before), `preempted` how often each was preempted, if at all. The totals count tokens
    (queries, hits) and blocks (stored, evicted). `eviction_order` lists the free blocks, the next to be
    reused first.
    """

    cached: dict[str, int]
    preempted: dict[str, int]
    prefix_queries: int
    prefix_hits: int
    blocks_stored: int
    blocks_evicted: int
    eviction_order: list[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """All that was observed of an engine on one trace."""

    steps: list[Step]
    summary: Summary


class SteppedEngine(Protocol):
    """An engine as `drive` uses it."""

    def add(self, job: Job, number: int) -> None:
        """Queue a job before step `number`."""

    def abort(self, job_id: str, number: int) -> None:
        """End an unfinished job before step `number`."""

    def step(self, number: int) -> Step:
        """Schedule and run one step; every request whose tokens are all computed gets its next one."""

    def summary(self) -> Summary:
        """Totals, once all jobs have ended."""


@dataclass(slots=True)
class _Agenda:
    """What has yet to arrive or to be aborted. `ends` has the step in which each job ended."""

    pending: list[Job]
    ends: dict[str, int] = field(default_factory=dict)
    aborts: dict[str, int] = field(default_factory=dict)
    live: set[str] = field(default_factory=set)

    def arrival(self, job: Job) -> int | None:
        """The step before which a job arrives, None while the job that it follows has not ended."""
        if job.after is None:
            return job.at
        end = self.ends.get(job.after)
        return None if end is None else end + job.at

    def next_arrival(self) -> int:
        """The first step before which a job arrives, if nothing runs."""
        return min(step for job in self.pending if (step := self.arrival(job)) is not None)

    def take_due(self, number: int) -> list[Job]:
        """Take out the jobs that arrive before step `number`."""
        due = [job for job in self.pending if (step := self.arrival(job)) is not None and step <= number]
        self.pending = [job for job in self.pending if job not in due]
        for job in due:
            self.live.add(job.job_id)
            if job.abort_after is not None:
                self.aborts[job.job_id] = number + job.abort_after
        return due

    def take_aborts(self, number: int) -> list[str]:
        """Take out the jobs to be aborted before step `number`."""
        due = [job_id for job_id, step in self.aborts.items() if step <= number]
        for job_id in due:
            self.end(job_id, number)
        return due

    def end(self, job_id: str, number: int) -> None:
        """Note that a job ended in step `number`."""
        self.ends[job_id] = number
        self.aborts.pop(job_id, None)
        self.live.discard(job_id)


def drive(trace: Trace, engine: SteppedEngine) -> Run:
    """Run a trace to its end, leaving out the steps in which there is nothing to do.

    Raises RuntimeError if it takes more than `MOST_STEPS` steps.
    """
    agenda = _Agenda(list(trace.jobs))
    steps: list[Step] = []
    number = 0
    while agenda.pending or agenda.live:
        if not agenda.live:
            number = max(number, agenda.next_arrival())
        for job in agenda.take_due(number):
            engine.add(job, number)
        for job_id in agenda.take_aborts(number):
            engine.abort(job_id, number)
        step = engine.step(number)
        for job_id in step.finished:
            agenda.end(job_id, number)
        steps.append(step)
        number += 1
        if len(steps) > MOST_STEPS:
            raise RuntimeError(f"trace {trace.name} has not ended after {MOST_STEPS} steps: {agenda.live}")
    return Run(steps=steps, summary=engine.summary())
