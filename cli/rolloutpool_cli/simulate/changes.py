"""What the command line changes of an experiment: values, and how long runs are. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from rolloutpool_cli.simulate.experiment import Experiment
from rolloutpool_cli.simulate.read import InvalidExperiment
from rolloutpool_sim.fleet.scenario import Scenario

Tree = dict[str, Any]
EITHER_OR = {
    "trainer.outstanding": "trainer.outstandingPerEngine",
    "trainer.outstandingPerEngine": "trainer.outstanding",
    "trainer.batch": "trainer.batchPerEngine",
    "trainer.batchPerEngine": "trainer.batch",
}
"""Fields of which a scenario has one: giving this one takes the other away."""


@dataclass(frozen=True)
class Changes:
    """What is to be other than in the file."""

    values: Tree = field(default_factory=dict)
    """By path; they are laid over the base scenario, below loads and variants."""
    seconds: float | None = None
    """Length of a run, in seconds; the warm-up and the times of events change in proportion."""


NO_CHANGES = Changes()


def parse_changes(sets: Sequence[str], *, seconds: float | None, experiment: Experiment) -> Changes:
    """Read the options --set and --seconds.

    Args:
        sets: path=value each, the value as YAML.
        seconds: length of a run, in seconds; None: the file's.
        experiment: what they are to change.

    Raises:
        InvalidExperiment: one is no path=value, or would change nothing.
    """
    values: Tree = {}
    for text in sets:
        path, equals, value = text.partition("=")
        if not path or not equals:
            raise InvalidExperiment(f"--set {text}: write path=value, e.g. --set fleet.engines=2")
        _effective(path, experiment)
        try:
            values[path] = yaml.safe_load(value)
        except (yaml.YAMLError, RecursionError):
            raise InvalidExperiment(f"--set {text}: {value!r} is no YAML value: put it in quotes") from None
    return Changes(values, seconds)


def stretched(tree: Tree, seconds: float) -> Tree:
    """A scenario's YAML that takes so many seconds, with its warm-up and events in proportion."""
    before = tree.get("seconds", Scenario.model_fields["seconds"].default)
    if not isinstance(before, int | float) or before <= 0:
        return tree
    factor = seconds / before
    warmup = tree.get("warmupSeconds", Scenario.model_fields["warmup_seconds"].default)
    changed: Tree = {**tree, "seconds": seconds, "warmupSeconds": _times(warmup, factor)}
    if "events" in tree:
        changed["events"] = _scaled(tree["events"], factor, ("at", "for"))
    if "operator" in tree:
        changed["operator"] = _scaled(tree["operator"], factor, ("from", "to", "frozenFrom"))
    return changed


def _effective(path: str, experiment: Experiment) -> None:
    """Refuse a path that every load or every variant sets for itself."""
    same = {path, EITHER_OR.get(path, path)}
    for kind, items in (("load", experiment.loads), ("variant", experiment.variants)):
        if all(same & item.set.keys() for item in items):
            raise InvalidExperiment(
                f"--set {path}: every {kind} of {experiment.name} sets this itself: "
                f"choose with --{kind}s, or change the file"
            )


def _scaled(tree: Any, factor: float, names: Sequence[str]) -> Any:
    """The tree with every number of these names multiplied, however deep."""
    if isinstance(tree, list):
        return [_scaled(item, factor, names) for item in tree]
    if not isinstance(tree, dict):
        return tree
    return {
        key: _times(value, factor) if key in names else _scaled(value, factor, names)
        for key, value in tree.items()
    }


def _times(value: Any, factor: float) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return value * factor if number else value
