"""Traces: their JSON form, their checks, and that the shapes press where they should."""

from collections.abc import Callable

import pytest

from vllm_oracle.driving import Run
from vllm_oracle.model import run_model
from vllm_oracle.shapes import SHAPES, make
from vllm_oracle.traces import Job, Limits, Trace, token, trace_from_json, trace_to_json

LIMITS = Limits(num_blocks=9, block_size=4, max_num_seqs=4, max_num_batched_tokens=8, max_model_len=32)


def _job(job_id: str, *, after: str | None = None) -> Job:
    return Job(job_id=job_id, prompt=((1, 3),), output_tokens=2, output_stream=5, after=after)


@pytest.mark.parametrize("shape", SHAPES)
def test_trace_survives_json(shape: str) -> None:
    trace = make(shape, 3)
    assert trace_from_json(trace_to_json(trace)) == trace


@pytest.mark.parametrize("shape", SHAPES)
def test_seed_makes_the_trace(shape: str) -> None:
    assert make(shape, 3) == make(shape, 3)
    assert make(shape, 3).jobs != make(shape, 4).jobs


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(3))
def test_vllm_takes_the_limits_and_every_prompt_leaves_room(shape: str, seed: int) -> None:
    trace = make(shape, seed)
    limits = trace.limits
    assert limits.max_num_seqs <= limits.max_num_batched_tokens
    assert limits.max_model_len <= (limits.num_blocks - 1) * limits.block_size
    assert max(len(job.prompt_tokens()) for job in trace.jobs) < limits.max_model_len


@pytest.mark.parametrize(
    "jobs",
    [
        pytest.param((_job("a"), _job("a")), id="an id twice"),
        pytest.param((_job("a", after="b"), _job("b")), id="after a later job"),
        pytest.param((_job("a", after="a"),), id="after itself"),
    ],
)
def test_trace_that_could_not_end_is_refused(jobs: tuple[Job, ...]) -> None:
    with pytest.raises(ValueError, match=r"trace bad|which does not come before"):
        Trace(name="bad", limits=LIMITS, jobs=jobs)


def test_next_turn_begins_with_the_answer_before() -> None:
    jobs = {job.job_id: job for job in make("sessions", 1).jobs}
    second = next(job for job in jobs.values() if job.after is not None)
    first = jobs[second.after or ""]
    answer = [token(first.output_stream, position) for position in range(first.output_tokens)]
    assert second.prompt_tokens()[: len(first.prompt_tokens()) + len(answer)] == [
        *first.prompt_tokens(),
        *answer,
    ]


PRESSES: dict[str, Callable[[Run], bool]] = {
    "thrash": lambda run: sum(run.summary.preempted.values()) >= 5,
    "preempted-mid-prefill": lambda run: run.summary.preempted != {},
    "one-fits": lambda run: run.summary.preempted != {} and run.summary.blocks_evicted > 0,
    "no-caching": lambda run: run.summary.preempted != {} and run.summary.prefix_queries == 0,
    "twins": lambda run: run.summary.preempted != {} and run.summary.blocks_evicted > 0,
    "long-prompts": lambda run: run.summary.blocks_evicted > 100,
    "rollouts": lambda run: run.summary.prefix_hits > 0 and run.summary.blocks_evicted > 100,
    "large": lambda run: len(run.steps) > 1000 and run.summary.blocks_evicted > 1000,
}


@pytest.mark.parametrize("shape", PRESSES)
def test_shape_presses_where_it_should(shape: str) -> None:
    run: Run = run_model(make(shape, 1))
    assert PRESSES[shape](run)


def test_aborts_come_before_and_after_the_first_step() -> None:
    traces = [make("aborts", seed) for seed in range(4)]
    runs = [run_model(trace) for trace in traces]
    ended = [{job_id for step in run.steps for job_id in step.finished} for run in runs]
    started = [{job_id for step in run.steps for job_id in step.scheduled} for run in runs]
    aborted = [{job.job_id for job in trace.jobs} - done for trace, done in zip(traces, ended, strict=True)]
    assert any(jobs - begun for jobs, begun in zip(aborted, started, strict=True))
    assert any(jobs & begun for jobs, begun in zip(aborted, started, strict=True))
