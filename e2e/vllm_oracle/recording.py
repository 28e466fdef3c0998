"""A few of vLLM's schedules as a file: the ordinary tests hold the engine model to them without vLLM."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vllm_oracle.driving import Run, Step, Summary
from vllm_oracle.oracle import Oracle
from vllm_oracle.shapes import make
from vllm_oracle.traces import Trace, trace_from_json, trace_to_json

RECORDED = Path(__file__).parents[2] / "tests" / "unit" / "sim" / "vllm_0_32_schedules.json"
"""The file that `tests/unit/sim/test_vllm_schedules.py` reads."""

CHOSEN = (
    ("sessions", 9),
    ("groups", 9),
    ("groups-mid-prefill", 8),
    ("long-prompts", 6),
    ("preempted-mid-prefill", 10),
    ("waves", 1),
    ("thrash", 5),
    ("one-fits", 9),
    ("no-caching-groups", 3),
    ("least-budget", 5),
    ("few-sequences", 11),
    ("block-sizes", 4),
    ("block-edges", 9),
    ("cut-at-model-length", 6),
    ("forks", 4),
    ("twins", 8),
    ("salts", 2),
    ("aborts", 12),
    ("rollouts", 3),
)
"""Shape and seed of the traces that are recorded."""

Recording = Sequence[tuple[Trace, Run]]


def record(oracle: Oracle) -> Recording:
    """Run the chosen traces through vLLM."""
    traces = [make(shape, seed) for shape, seed in CHOSEN]
    return [(trace, oracle.run(trace)) for trace in traces]


def write_recording(target: Path, recording: Recording, *, version: str) -> None:
    """Write a recording: JSON with a line for each job and each step, so that changes can be read."""
    cases = ",\n".join(_case(trace, run) for trace, run in recording)
    target.write_text(f'{{"vllm": "{version}", "cases": [\n{cases}\n]}}\n')


def read_recording(source: Path) -> Recording:
    """Read what `write_recording` wrote."""
    return [_from_case(case) for case in json.loads(source.read_text())["cases"]]


def _case(trace: Trace, run: Run) -> str:
    plain = trace_to_json(trace)
    return (
        f'{{"name": {_json(plain["name"])}, "limits": {_json(plain["limits"])}, "jobs": [\n'
        + ",\n".join(map(_json, plain["jobs"]))
        + '\n], "steps": [\n'
        + ",\n".join(map(_json, _steps(run.steps)))
        + f'\n], "summary": {_json(asdict(run.summary))}}}'
    )


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _steps(steps: Sequence[Step]) -> Iterator[list[Any]]:
    """Steps as lists of their fields; what is scheduled is null where it is as in the step before."""
    scheduled: dict[str, int] | None = None
    for step in steps:
        same = scheduled is not None and list(step.scheduled.items()) == list(scheduled.items())
        scheduled = step.scheduled
        fields = asdict(step)
        if same:
            fields["scheduled"] = None
        yield list(fields.values())


def _from_case(case: Mapping[str, Any]) -> tuple[Trace, Run]:
    steps: list[Step] = []
    for number, scheduled, *rest in case["steps"]:
        preempted, finished, evicted, free, new_blocks = rest
        steps.append(
            Step(
                number=number,
                scheduled=steps[-1].scheduled if scheduled is None else scheduled,
                preempted=preempted,
                finished=finished,
                evicted=evicted,
                free=free,
                new_blocks=new_blocks,
            )
        )
    return trace_from_json(case), Run(steps=steps, summary=Summary(**case["summary"]))
