"""Experiment files: how values are laid over one another, and what is said of wrong ones."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from rolloutpool_cli.simulate.cells import Cell, cells, put, select
from rolloutpool_cli.simulate.changes import Changes, parse_changes
from rolloutpool_cli.simulate.experiment import Experiment
from rolloutpool_cli.simulate.paths import InvalidPath, get_path, line_of, set_path
from rolloutpool_cli.simulate.read import InvalidExperiment, Source, parse_experiment
from rolloutpool_cli.simulate.sweep import sweep_points

TEXT = """
name: small
description: A small one.
scenario:
  fleet: {engines: 2, kvTokens: 20000, maxModelLen: 8192}
  workloads:
    - {name: one, share: 0.5, promptTokens: 100, outputTokens: 200}
    - {name: two, share: 0.5, promptTokens: 100, outputTokens: {lognormal: {median: 50, p95: 200}}}
  trainer: {outstanding: 60}
  seconds: 100
  warmupSeconds: 20
loads:
  - {name: low}
  - {name: high, set: {trainer.outstandingPerEngine: 90}}
variants:
  - {name: free, set: {admission.policy: None}}
  - {name: tuned, set: {admission.policy: None}, tune: {path: fleet.maxNumSeqs, values: [8, 16]}}
  - {name: ours, set: {workloads.two.outputTokens: 70}}
compare: {baseline: free}
sweep:
  variant: ours
  constants:
    - {path: admission.windowSeconds, values: [40], unit: s}
    - {path: admission.safety, values: [0.8]}
"""


def source(text: str = TEXT, **changed: Any) -> Source:
    if changed:
        text = yaml.safe_dump({**yaml.safe_load(text), **changed}, sort_keys=False)
    return Source("small.yaml", text)


def read(text: str = TEXT, **changed: Any) -> tuple[Experiment, Source]:
    found = source(text, **changed)
    return parse_experiment(found), found


def find(made: tuple[Cell, ...], variant: str, load: str) -> list[Cell]:
    return [cell for cell in made if (cell.variant, cell.load) == (variant, load)]


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        pytest.param("a.b", 2, {"a": {"b": 2, "c": 3}, "l": [{"name": "x", "v": 1}]}, id="mapping"),
        pytest.param(
            "a.new.deep",
            2,
            {"a": {"b": 1, "c": 3, "new": {"deep": 2}}, "l": [{"name": "x", "v": 1}]},
            id="made",
        ),
        pytest.param("l.x.v", 2, {"a": {"b": 1, "c": 3}, "l": [{"name": "x", "v": 2}]}, id="item-by-name"),
        pytest.param("l.0.v", 2, {"a": {"b": 1, "c": 3}, "l": [{"name": "x", "v": 2}]}, id="item-by-index"),
        pytest.param("a", {"z": 1}, {"a": {"z": 1}, "l": [{"name": "x", "v": 1}]}, id="replaced-whole"),
    ],
)
def test_values_replace_what_is_there(path: str, value: object, expected: dict[str, Any]) -> None:
    tree: dict[str, Any] = {"a": {"b": 1, "c": 3}, "l": [{"name": "x", "v": 1}]}
    before = yaml.safe_dump(tree)
    assert set_path(tree, path, value) == expected
    assert yaml.safe_dump(tree) == before
    assert get_path(expected, path) == value


@pytest.mark.parametrize(
    ("path", "message"),
    [
        pytest.param("l.y.v", "l has no 'y'; there is x", id="no-item"),
        pytest.param("l.1.v", "l has no '1'; there is x", id="no-index"),
        pytest.param("a.b.c", "a.b has no 'c'", id="plain-value"),
    ],
)
def test_paths_that_lead_nowhere(path: str, message: str) -> None:
    with pytest.raises(InvalidPath, match=message):
        set_path({"a": {"b": 1}, "l": [{"name": "x"}]}, path, 1)


def test_lines_are_found_by_key_name_and_index() -> None:
    root = yaml.compose("a: 1\nl:\n  - name: x\n    v: 1\n  - name: y\n    v: 2\n", Loader=yaml.SafeLoader)
    assert line_of(root, ["a"]) == 1
    assert line_of(root, ["l", "y", "v"]) == 6
    assert line_of(root, ["l", 0, "v"]) == 4
    assert line_of(root, ["l", "y", "absent"]) == 5
    assert line_of(root, []) == 1


def test_loads_lie_over_the_base_and_variants_over_loads() -> None:
    made = cells(*read())
    (low,), (high,) = find(made, "free", "low"), find(made, "free", "high")
    assert (low.scenario.trainer.outstanding, low.scenario.trainer.outstanding_per_engine) == (60, None)
    assert (high.scenario.trainer.outstanding, high.scenario.trainer.outstanding_per_engine) == (None, 90)
    (ours,) = find(made, "ours", "low")
    assert [workload.output_tokens.constant for workload in ours.scenario.workloads] == [200, 70]
    assert ours.scenario.admission.policy == "MISA-T"
    assert low.scenario.admission.policy == "None"


def test_a_tuned_variant_is_one_cell_per_value() -> None:
    made = find(cells(*read()), "tuned", "low")
    assert [cell.tuned for cell in made] == ["fleet.maxNumSeqs=8", "fleet.maxNumSeqs=16"]
    assert [cell.scenario.fleet.max_num_seqs for cell in made] == [8, 16]


def test_equal_scenarios_have_equal_keys() -> None:
    tuned = {"path": "trainer.outstanding", "values": [60, 80]}
    variants = [{"name": "free"}, {"name": "tuned", "tune": tuned}]
    experiment, where = read(variants=variants, sweep=None)
    made = cells(experiment, where)
    # What it tunes is what loads differ in, so its runs are the same at all loads.
    assert {cell.key for cell in find(made, "tuned", "low")} == {
        cell.key for cell in find(made, "tuned", "high")
    }
    assert find(made, "free", "low")[0].key == find(made, "tuned", "low")[0].key
    assert find(made, "free", "low")[0].key != find(made, "free", "high")[0].key


def test_one_of_two_ways_to_say_it_takes_the_other_away() -> None:
    tree = {"trainer": {"outstandingPerEngine": 5, "mode": "Async"}}
    assert put(tree, "trainer.outstanding", 7) == {"trainer": {"mode": "Async", "outstanding": 7}}


def test_select_keeps_the_baselines_and_the_order() -> None:
    experiment, _ = read()
    chosen = select(experiment, variants=["ours"], loads=["high"])
    assert [item.name for item in chosen.variants] == ["free", "ours"]
    assert [item.name for item in chosen.loads] == ["high"]
    variants = [{"name": "free"}, {"name": "tuned"}, {"name": "ours", "baseline": "tuned"}]
    experiment, _ = read(variants=variants)
    assert [item.name for item in select(experiment, variants=["ours"]).variants] == ["free", "tuned", "ours"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        pytest.param(
            {"variants": ["theirs"]}, "no variant 'theirs': write one of free, tuned, ours", id="variant"
        ),
        pytest.param({"loads": ["top"]}, "no load 'top': write one of low, high", id="load"),
    ],
)
def test_unknown_names_list_the_known(names: dict[str, list[str]], message: str) -> None:
    with pytest.raises(InvalidExperiment, match=message):
        select(read()[0], **names)


def test_seconds_move_warm_up_and_events_in_proportion() -> None:
    scenario = yaml.safe_load(TEXT)["scenario"]
    scenario["events"] = [{"at": 50, "classSilent": {"class": "one", "for": 30}}]
    scenario["operator"] = {"away": [{"from": 10, "to": 20}], "frozenFrom": 40}
    experiment, where = read(scenario=scenario)
    cell = cells(experiment, where, changes=Changes(seconds=50.0))[0]
    (event,), (span,) = cell.scenario.events, cell.scenario.operator.away
    assert (cell.scenario.seconds, cell.scenario.warmup_seconds) == (50, 10)
    assert event.class_silent is not None
    assert (event.at, event.class_silent.for_seconds) == (25, 15)
    assert (span.from_seconds, span.to_seconds, cell.scenario.operator.frozen_from) == (5, 10, 20)


def test_set_changes_the_base_below_loads_and_variants() -> None:
    experiment, where = read()
    changes = parse_changes(
        ["fleet.engines=3", "trainer.outstanding=10"], seconds=None, experiment=experiment
    )
    made = cells(experiment, where, changes=changes)
    assert {cell.scenario.fleet.engines for cell in made} == {3}
    assert find(made, "free", "low")[0].scenario.trainer.outstanding == 10
    assert find(made, "free", "high")[0].scenario.trainer.outstanding_per_engine == 90


@pytest.mark.parametrize(
    ("option", "message"),
    [
        pytest.param("fleet.engines", "write path=value", id="no-value"),
        pytest.param("fleet.engines=" + "[" * 5000, "no YAML value", id="nested-too-deeply"),
        pytest.param("fleet.engines=[1", "no YAML value", id="no-yaml"),
        pytest.param("fleet.engins=3", r"--set fleet.engins: .*did you mean engines", id="unknown"),
        pytest.param("fleet.engines=none", r"--set fleet.engines: .*integer.*'none'", id="wrong"),
        pytest.param(
            "workloads.three.share=1", r"--set workloads.three.share: .*there are one, two", id="no-item"
        ),
    ],
)
def test_wrong_options_are_named(option: str, message: str) -> None:
    experiment, where = read()
    with pytest.raises(InvalidExperiment, match=message):
        cells(experiment, where, changes=parse_changes([option], seconds=None, experiment=experiment))


def test_an_option_that_would_change_nothing_is_refused() -> None:
    loads = [{"name": "a", "set": {"trainer.outstandingPerEngine": 5}}]
    experiment, _ = read(loads=loads, sweep=None)
    with pytest.raises(InvalidExperiment, match="every load of small sets this itself: choose with --loads"):
        parse_changes(["trainer.outstanding=5"], seconds=None, experiment=experiment)


@pytest.mark.parametrize(
    ("old", "new", "messages"),
    [
        pytest.param(
            "engines: 2",
            "engins: 2",
            ["small.yaml:5: scenario.fleet.engins: ", "did you mean engines?"],
            id="field",
        ),
        pytest.param(
            "share: 0.5, promptTokens: 100, outputTokens: {",
            "share: 0.7, promptTokens: 100, outputTokens: {",
            ["small.yaml:6: scenario.workloads: ", "shares sum to 1.2"],
            id="rule",
        ),
        pytest.param("median: 50", "median: many", ["small.yaml:8: ", "median", "'many'"], id="value"),
        pytest.param(
            "set: {trainer.outstandingPerEngine: 90}",
            "set: {trainer.outstandingPerEngine: -1}",
            ["small.yaml:14: loads.high.set.trainer.outstandingPerEngine: ", "greater than 0"],
            id="load",
        ),
        pytest.param(
            "set: {workloads.two.outputTokens: 70}",
            "set: {workloads.three.outputTokens: 70}",
            ["small.yaml:18: variants.ours.set.", "workloads has no 'three'; there are one, two"],
            id="variant",
        ),
        pytest.param(
            "values: [8, 16]",
            "values: [8, none]",
            ["small.yaml:17: variants.tuned.tune.values.fleet.maxNumSeqs: ", "'none'"],
            id="tuned",
        ),
        pytest.param(
            "{name: ours,",
            "{name: ours, baseline: fre,",
            ["small.yaml:18: variants.ours.baseline: ", "write one of free, tuned, ours"],
            id="own-baseline",
        ),
        pytest.param(
            "baseline: free",
            "baseline: fre",
            ["small.yaml:19: compare.baseline: ", "write one of free, tuned, ours"],
            id="baseline",
        ),
        pytest.param(
            "variant: ours",
            "variant: our",
            ["small.yaml:21: sweep.variant: ", "write one of free, tuned, ours"],
            id="sweep",
        ),
        pytest.param("name: tuned", "name: free", ["variants: 'free' is there twice"], id="twice"),
        pytest.param(
            "description: A small one.",
            "describtion: A small one.",
            ["small.yaml:3: describtion: ", "did you mean description?", "description: is missing: add it"],
            id="misspelt",
        ),
        pytest.param("name: small", "name: {", ["small.yaml: this is not YAML"], id="no-yaml"),
        pytest.param(
            TEXT, "a: " + "[" * 5000, ["small.yaml: this is nested too deeply"], id="nested-too-deeply"
        ),
        pytest.param(TEXT, "5", ["small.yaml: an experiment needs name"], id="no-mapping"),
    ],
)
def test_errors_name_line_and_field_and_what_to_write(old: str, new: str, messages: list[str]) -> None:
    assert old in TEXT
    with pytest.raises(InvalidExperiment) as raised:
        cells(*read(TEXT.replace(old, new)))
    for message in messages:
        assert message in str(raised.value)


def swept(experiment: Experiment, where: Source) -> dict[str, list[float | None]]:
    assert experiment.sweep is not None
    values: dict[str, list[float | None]] = {}
    for point in sweep_points(experiment, experiment.sweep, where):
        values.setdefault(point.path, []).append(point.value)
    return values


def test_a_sweep_tries_the_default_half_and_double_and_what_is_listed() -> None:
    # Twice the default of safety is more than the scenario allows.
    assert swept(*read()) == {
        "admission.windowSeconds": [300, 40, 150, 600],
        "admission.safety": [0.95, 0.475, 0.8],
    }


def test_the_default_of_every_constant_is_the_same_run() -> None:
    experiment, where = read()
    assert experiment.sweep is not None
    points = sweep_points(experiment, experiment.sweep, where)
    assert len({point.cell.key for point in points if point.is_default}) == 1
    windows = [point.cell.scenario.admission.window_seconds for point in points]
    assert windows == [300, 40, 150, 600, 300, 300, 300]


def test_a_constant_whose_default_is_computed() -> None:
    constant = {"path": "admission.parkIdleSeconds", "values": [5, 50]}
    experiment, where = read(sweep={"variant": "ours", "constants": [constant]})
    assert swept(experiment, where) == {"admission.parkIdleSeconds": [None, 5, 50]}


@pytest.mark.parametrize(
    ("constant", "message"),
    [
        pytest.param({"path": "admission.windo", "values": [1]}, "admission has no 'windo'", id="unknown"),
        pytest.param({"path": "admission.policy", "values": [1]}, "only numbers are swept", id="no-number"),
        pytest.param(
            {"path": "admission.safety", "values": [2]}, "less than or equal to 1", id="not-allowed"
        ),
    ],
)
def test_a_wrong_sweep(constant: dict[str, Any], message: str) -> None:
    experiment, where = read(sweep={"variant": "ours", "constants": [constant]})
    assert experiment.sweep is not None
    with pytest.raises(InvalidExperiment, match=message):
        sweep_points(experiment, experiment.sweep, where)
