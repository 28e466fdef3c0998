"""The loop that drives both engines: when jobs arrive and are aborted, and how it ends."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from vllm_oracle import driving
from vllm_oracle.driving import Step, Summary, drive
from vllm_oracle.traces import Job, Limits, Trace

LIMITS = Limits(num_blocks=9, block_size=4, max_num_seqs=4, max_num_batched_tokens=8, max_model_len=32)
SUMMARY = Summary(
    cached={},
    preempted={},
    prefix_queries=0,
    prefix_hits=0,
    blocks_stored=0,
    blocks_evicted=0,
    eviction_order=[],
)


@dataclass
class Fake:
    """Ends each job `output_tokens` steps after it was added, and notes what it is told."""

    calls: list[tuple[str, str, int]] = field(default_factory=list)
    left: dict[str, int] = field(default_factory=dict)

    def add(self, job: Job, number: int) -> None:
        self.calls.append(("add", job.job_id, number))
        self.left[job.job_id] = job.output_tokens

    def abort(self, job_id: str, number: int) -> None:
        self.calls.append(("abort", job_id, number))
        del self.left[job_id]

    def step(self, number: int) -> Step:
        scheduled = dict.fromkeys(self.left, 1)
        self.left = {job_id: count - 1 for job_id, count in self.left.items()}
        finished = [job_id for job_id, count in self.left.items() if count == 0]
        self.left = {job_id: count for job_id, count in self.left.items() if count}
        return _step(number, scheduled, finished)

    def summary(self) -> Summary:
        return SUMMARY


def _step(number: int, scheduled: Mapping[str, int], finished: list[str]) -> Step:
    return Step(
        number=number,
        scheduled=dict(scheduled),
        preempted=[],
        finished=finished,
        evicted=0,
        free=0,
        new_blocks={},
    )


def _job(
    job_id: str, steps: int, *, at: int = 0, after: str | None = None, abort_after: int | None = None
) -> Job:
    return Job(
        job_id=job_id,
        prompt=((1, 1),),
        output_tokens=steps,
        output_stream=2,
        at=at,
        after=after,
        abort_after=abort_after,
    )


@pytest.mark.parametrize(
    ("jobs", "calls", "steps"),
    [
        pytest.param(
            (_job("b", 1, at=5), _job("a", 2)), [("add", "a", 0), ("add", "b", 5)], [0, 1, 5], id="idle steps"
        ),
        pytest.param(
            (_job("a", 3), _job("b", 1, at=2, after="a")),
            [("add", "a", 0), ("add", "b", 4)],
            [0, 1, 2, 4],
            id="two steps after the end of another",
        ),
        pytest.param(
            (_job("a", 1), _job("b", 1, after="a")),
            [("add", "a", 0), ("add", "b", 1)],
            [0, 1],
            id="no sooner than the step after",
        ),
        pytest.param(
            (_job("a", 9, abort_after=2), _job("b", 1, at=1, after="a")),
            [("add", "a", 0), ("abort", "a", 2), ("add", "b", 3)],
            [0, 1, 2, 3],
            id="after an abort",
        ),
        pytest.param((_job("a", 2, abort_after=2),), [("add", "a", 0)], [0, 1], id="ended before its abort"),
        pytest.param(
            (_job("a", 2, abort_after=0),), [("add", "a", 0), ("abort", "a", 0)], [0], id="aborted at once"
        ),
    ],
)
def test_jobs_come_and_go(jobs: tuple[Job, ...], calls: list[tuple[str, str, int]], steps: list[int]) -> None:
    engine = Fake()
    run = drive(Trace(name="t", limits=LIMITS, jobs=jobs), engine)
    assert engine.calls == calls
    assert [step.number for step in run.steps] == steps


def test_engine_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driving, "MOST_STEPS", 10)
    with pytest.raises(RuntimeError, match="trace t has not ended after 10 steps"):
        drive(Trace(name="t", limits=LIMITS, jobs=(_job("a", 100),)), Fake())
