"""From an experiment to the scenarios to run: one cell per variant, load and tuned value. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from rolloutpool_cli.simulate.changes import EITHER_OR, NO_CHANGES, Changes, Tree, stretched
from rolloutpool_cli.simulate.experiment import Experiment, Load, Variant
from rolloutpool_cli.simulate.paths import InvalidPath, set_path
from rolloutpool_cli.simulate.read import COMMAND_LINE, InvalidExperiment, Location, Source, problems
from rolloutpool_sim.fleet.scenario import Scenario

MAX_PROBLEMS = 20
"""Most problems told at once."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One scenario of an experiment."""

    variant: str
    load: str
    tuned: str = ""
    """The tuned value, as path and value; empty where nothing is tuned."""
    scenario: Scenario
    key: str
    """Equal keys are equal scenarios, which run once."""


@dataclass(frozen=True)
class Layer:
    """Values laid over the scenario, and where in the file they are written."""

    location: Location
    values: Mapping[str, Any]


def select(experiment: Experiment, *, variants: Sequence[str] = (), loads: Sequence[str] = ()) -> Experiment:
    """The experiment with these variants and loads alone, in the file's order; none given: all of them.

    Their baselines stay in any case.

    Raises:
        InvalidExperiment: a name that the experiment does not have.
    """
    _known("variant", variants, [item.name for item in experiment.variants])
    _known("load", loads, [item.name for item in experiment.loads])
    baselines = {experiment.baseline_of(name) for name in variants}
    wanted = {*variants, experiment.compare.baseline, *baselines}
    return experiment.model_copy(
        update={
            "variants": [item for item in experiment.variants if not variants or item.name in wanted],
            "loads": [item for item in experiment.loads if not loads or item.name in loads],
        }
    )


def cells(experiment: Experiment, source: Source, *, changes: Changes = NO_CHANGES) -> tuple[Cell, ...]:
    """Every scenario of the experiment, by load, then variant, then tuned value.

    Args:
        experiment: what the file says.
        source: the file, for messages.
        changes: what the command line says.

    Raises:
        InvalidExperiment: with one line per value that makes no valid scenario.
    """
    made: list[Cell] = []
    wrong: dict[str, None] = {}
    for load in experiment.loads:
        for variant in experiment.variants:
            for tuned, layers in _layers(load, variant):
                try:
                    scenario = build(experiment, layers, source, changes=changes)
                except InvalidExperiment as error:
                    wrong |= dict.fromkeys(str(error).splitlines())
                else:
                    key = scenario_key(scenario)
                    made.append(
                        Cell(variant=variant.name, load=load.name, tuned=tuned, scenario=scenario, key=key)
                    )
    if wrong:
        raise InvalidExperiment("\n".join(list(wrong)[:MAX_PROBLEMS]))
    return tuple(made)


def cell_layers(experiment: Experiment, *, variant: str, load: str) -> Sequence[Layer]:
    """What a variant at a load lays over the base scenario; the first value of what it tunes."""
    chosen_load = next(item for item in experiment.loads if item.name == load)
    chosen = next(item for item in experiment.variants if item.name == variant)
    return _layers(chosen_load, chosen)[0][1]


def build(
    experiment: Experiment, layers: Iterable[Layer], source: Source, *, changes: Changes = NO_CHANGES
) -> Scenario:
    """Lay values over the base scenario, the later over the earlier, and read the result.

    Args:
        experiment: with the base scenario.
        layers: what is laid over it and over `changes`.
        source: the file, for messages.
        changes: what the command line says.

    Raises:
        InvalidExperiment: with one line per problem.
    """
    tree: Tree = {"name": experiment.name, **experiment.scenario}
    layers = [Layer((COMMAND_LINE,), changes.values), *layers]
    for layer in layers:
        for path, value in layer.values.items():
            try:
                tree = put(tree, path, value)
            except InvalidPath as error:
                raise InvalidExperiment(source.problem([*layer.location, path], str(error))) from None
    if changes.seconds is not None:
        tree = stretched(tree, changes.seconds)
    try:
        return Scenario.model_validate(tree)
    except ValidationError as error:
        lines = [
            source.problem(*_blame(tree, layers, location, message))
            for location, message in problems(error, Scenario)
        ]
        raise InvalidExperiment("\n".join(lines)) from None


def put(tree: Tree, path: str, value: Any) -> Tree:
    """A copy of a scenario's YAML with another value at the path; takes away what would contradict it.

    Raises:
        InvalidPath: the path leads through something that is not there.
    """
    tree = set_path(tree, path, value)
    other = EITHER_OR.get(path)
    if other and isinstance(tree.get("trainer"), dict):
        tree["trainer"] = {key: kept for key, kept in tree["trainer"].items() if f"trainer.{key}" != other}
    return tree


def scenario_key(scenario: Scenario) -> str:
    """A digest that is the same for scenarios that run the same."""
    body = scenario.model_dump(mode="json", by_alias=True, exclude={"name", "description"})
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]


def _layers(load: Load, variant: Variant) -> list[tuple[str, list[Layer]]]:
    """What is laid over the base scenario, once for each tuned value."""
    fixed = [
        Layer(("loads", load.name, "set"), load.set),
        Layer(("variants", variant.name, "set"), variant.set),
    ]
    if variant.tune is None:
        return [("", fixed)]
    path = variant.tune.path
    where = ("variants", variant.name, "tune", "values")
    return [(f"{path}={value}", [*fixed, Layer(where, {path: value})]) for value in variant.tune.values]


def _blame(tree: Any, layers: Sequence[Layer], location: Location, message: str) -> tuple[Location, str]:
    """The place in the file where a wrong value of the scenario was written."""
    named = _by_name(tree, location)
    for found in reversed(layers):
        for path in found.values:
            parts = path.split(".")
            if named[: len(parts)] == parts:
                return (*found.location, path, *named[len(parts) :]), message
    return ("scenario", *named), message


def _by_name(tree: Any, location: Location) -> list[str]:
    """A location with list items by name, as paths have them."""
    parts: list[str] = []
    for part in location:
        below = None
        if isinstance(tree, dict):
            below = tree.get(part)
        elif isinstance(tree, list) and isinstance(part, int) and part < len(tree):
            below = tree[part]
        is_named = isinstance(part, int) and isinstance(below, dict) and "name" in below
        parts.append(str(below["name"]) if is_named and isinstance(below, dict) else str(part))
        tree = below
    return parts


def _known(kind: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise InvalidExperiment(f"there is no {kind} {name!r}: write one of {', '.join(known)}")
