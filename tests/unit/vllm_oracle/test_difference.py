"""The report of a first difference names the step and what each engine did."""

from dataclasses import replace

import pytest

from vllm_oracle.difference import difference
from vllm_oracle.driving import Run, Step
from vllm_oracle.model import run_model
from vllm_oracle.shapes import make

TRACE = make("thrash", 1)
RUN = run_model(TRACE)


def _changed(index: int, step: Step) -> Run:
    return replace(RUN, steps=[*RUN.steps[:index], step, *RUN.steps[index + 1 :]])


def test_equal_runs_have_none() -> None:
    assert difference(TRACE, vllm=RUN, model=run_model(TRACE)) is None


def test_step_is_named_with_those_before() -> None:
    number = RUN.steps[40].number
    report = difference(TRACE, vllm=RUN, model=_changed(40, replace(RUN.steps[40], evicted=99)))
    assert report is not None
    assert f"part at step {number}" in report
    assert f"step {RUN.steps[39].number}: scheduled" in report
    assert report.endswith(f"  evicted\n    vLLM   {RUN.steps[40].evicted}\n    model  99")


def test_order_in_the_batch_counts() -> None:
    index = next(index for index, step in enumerate(RUN.steps) if len(step.scheduled) > 1)
    step = RUN.steps[index]
    turned = replace(step, scheduled=dict(reversed(step.scheduled.items())))
    assert "  order of the batch\n" in (difference(TRACE, vllm=RUN, model=_changed(index, turned)) or "")


@pytest.mark.parametrize(
    ("model", "told"),
    [
        pytest.param(replace(RUN, steps=RUN.steps[:-1]), "part at the end", id="fewer steps"),
        pytest.param(
            replace(RUN, summary=replace(RUN.summary, prefix_hits=-1)), "part at the totals", id="totals"
        ),
        pytest.param(
            replace(RUN, summary=replace(RUN.summary, cached={**RUN.summary.cached, "s0.0": -5})),
            "    model  {'s0.0': -5}",
            id="only what differs of a mapping",
        ),
    ],
)
def test_later_differences(model: Run, told: str) -> None:
    report = difference(TRACE, vllm=RUN, model=model)
    assert report is not None
    assert told in report
