"""Where two runs of one trace part, told so that a reader sees which decision differed."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from vllm_oracle.driving import Run, Step
from vllm_oracle.traces import Trace

AGREED_STEPS = 3
"""Steps before the first difference that are shown for context."""
WIDTH = 160


def difference(trace: Trace, *, vllm: Run, model: Run) -> str | None:
    """A report of the first difference between vLLM's run and the model's, or None if they are equal."""
    for index, (right, found) in enumerate(zip(vllm.steps, model.steps, strict=False)):
        if lines := _differing_steps(right, found):
            return _report(
                trace, f"step {right.number}", lines, vllm.steps[max(index - AGREED_STEPS, 0) : index]
            )
    if len(vllm.steps) != len(model.steps):
        lines = _lines("steps", len(vllm.steps), len(model.steps))
        return _report(trace, "the end", lines, vllm.steps[-AGREED_STEPS:])
    if vllm.summary != model.summary:
        return _report(trace, "the totals", _differing(asdict(vllm.summary), asdict(model.summary)), [])
    return None


def _differing_steps(right: Step, found: Step) -> list[str]:
    """What differs in a step; the order of the batch counts too."""
    if right != found:
        return _differing(asdict(right), asdict(found))
    batch, other = list(right.scheduled), list(found.scheduled)
    return [] if batch == other else _lines("order of the batch", batch, other)


def _differing(right: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    return [
        line
        for name, value in right.items()
        if value != found[name]
        for line in _lines(name, value, found[name])
    ]


def _lines(name: str, right: object, found: object) -> list[str]:
    """The two values of one name; of mappings only the entries that differ."""
    if isinstance(right, Mapping) and isinstance(found, Mapping):
        right, found = _beyond(right, found), _beyond(found, right)
    return [f"  {name}", f"    vLLM   {_short(right)}", f"    model  {_short(found)}"]


def _beyond(mapping: Mapping[Any, Any], other: Mapping[Any, Any]) -> dict[Any, Any]:
    return {key: value for key, value in mapping.items() if key not in other or other[key] != value}


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= WIDTH else f"{text[:WIDTH]}... ({len(text)} characters)"


def _report(trace: Trace, where: str, lines: Sequence[str], agreed: Sequence[Step]) -> str:
    return "\n".join(
        [
            f"trace {trace.name}: vLLM and the engine model part at {where}",
            f"  {trace.limits}, {len(trace.jobs)} jobs",
            *(["the steps before, equal in both:", *map(_step, agreed)] if agreed else []),
            "what differs (of scheduled tokens and blocks only the requests that do):",
            *lines,
        ]
    )


def _step(step: Step) -> str:
    what = {"scheduled": step.scheduled, "preempted": step.preempted, "finished": step.finished}
    told = [f"{name} {_short(value)}" for name, value in what.items() if value]
    return f"  step {step.number}: " + ", ".join([*told, f"evicted {step.evicted}", f"free {step.free}"])
