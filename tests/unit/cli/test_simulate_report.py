"""What is made of finished runs: rows, ratios, sweeps, tables, pictures and the page."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from rolloutpool_cli.simulate.cells import cells
from rolloutpool_cli.simulate.figures import Picture
from rolloutpool_cli.simulate.files import pictures, write_outcome
from rolloutpool_cli.simulate.outcome import Outcome
from rolloutpool_cli.simulate.page import page
from rolloutpool_cli.simulate.read import Source, parse_experiment
from rolloutpool_cli.simulate.runner import Failed, Job
from rolloutpool_cli.simulate.summary import Row
from rolloutpool_cli.simulate.sweep import Flatness, sweep_lines, sweep_points
from rolloutpool_cli.simulate.table import table_lines
from rolloutpool_cli.simulate.testing import made_up

TEXT = """
name: small
description: Is <ours> better?
scenario:
  fleet: {engines: 2, kvTokens: 20000, maxModelLen: 8192}
  workloads:
    - {name: one, share: 0.5, promptTokens: 100, outputTokens: 200}
    - {name: two, share: 0.5, promptTokens: 100, outputTokens: 50}
  trainer: {outstanding: 60}
  seconds: 100
  warmupSeconds: 20
variants:
  - {name: free, set: {admission.policy: None}}
  - {name: tuned, set: {admission.policy: None}, tune: {path: fleet.maxNumSeqs, values: [8, 16]}}
  - {name: ours}
compare: {baseline: free}
sweep:
  variant: ours
  constants:
    - {path: admission.windowSeconds, values: [75], unit: s}
    - {path: admission.parkIdleSeconds, values: [5, 50]}
"""
Rates = Mapping[str, tuple[float, ...]]
"""Samples per minute in the mixture by variant (and tuned value), one per seed."""
RATES = {
    "free": (100.0, 200.0, 300.0),
    "tuned 8": (120.0, 230.0, 310.0),
    "tuned 16": (110.0, 250.0, 360.0),
    "ours": (150.0, 300.0, 450.0),
}


def outcome(rates: Rates = RATES, *, failures: tuple[Failed, ...] = (), **changed: Any) -> Outcome:
    """An outcome of the small experiment in which variants reach these rates."""
    body = {**yaml.safe_load(TEXT), **changed}
    text = yaml.safe_dump(body, sort_keys=False)
    source = Source("small.yaml", text)
    experiment = parse_experiment(source)
    made = cells(experiment, source)
    results = {}
    for cell in made:
        label = " ".join([cell.variant, cell.tuned.partition("=")[2]]).strip()
        for seed, rate in enumerate(rates.get(label, ()), 1):
            results[cell.key, seed] = made_up(cell.scenario, seed=seed, in_mixture=rate)
    return Outcome(
        experiment=experiment,
        text=text,
        changes=("--set a=<b>",),
        command="rolloutpool simulate small.yaml",
        versions={"rolloutpool": "1.2.3"},
        seeds=(1, 2, 3),
        cells=made,
        points=(),
        results=results,
        failures=failures,
        planned=3 * len(made),
        elapsed_seconds=1.0,
    )


def sweep_outcome(rates: Mapping[tuple[str, float | None], float]) -> Outcome:
    """An outcome of the sweep in which values of constants reach these rates, with both seeds."""
    source = Source("small.yaml", TEXT)
    experiment = parse_experiment(source)
    assert experiment.sweep is not None
    points = sweep_points(experiment, experiment.sweep, source)
    results = {
        (point.cell.key, seed): made_up(
            point.cell.scenario, seed=seed, in_mixture=seed * rates[point.path, point.value]
        )
        for point in points
        for seed in (1, 2)
    }
    return Outcome(
        experiment=experiment,
        text=TEXT,
        changes=(),
        command="rolloutpool simulate small.yaml --sweep",
        versions={},
        seeds=(1, 2),
        cells=(),
        points=points,
        results=results,
        failures=(),
        planned=len(results),
        elapsed_seconds=1.0,
    )


SWEPT: Mapping[tuple[str, float | None], float] = {
    ("admission.windowSeconds", 300): 100.0,
    ("admission.windowSeconds", 75): 99.0,
    ("admission.windowSeconds", 150): 101.0,
    ("admission.windowSeconds", 600): 90.0,
    ("admission.parkIdleSeconds", None): 100.0,
    ("admission.parkIdleSeconds", 5): 80.0,
    ("admission.parkIdleSeconds", 50): 98.5,
}


@pytest.fixture(scope="module")
def drawn() -> tuple[Picture, ...]:
    """The pictures of the usual outcome, which take a second to draw."""
    return pictures(outcome())


def row(found: Outcome, variant: str) -> Row:
    return next(item for item in found.rows if item.variant == variant)


def constant(found: Outcome, name: str) -> Flatness:
    return next(item for item in found.flatness if item.path == name)


def test_rows_have_means_and_paired_ratios() -> None:
    found = row(outcome(), "ours")
    value, ratio = found.measures["inMixture"], found.ratio
    assert ratio is not None
    assert value.mean == 300.0
    # sd 150, t(2) = 4.303: the interval of the mean is wide, that of the ratio has no width
    assert value.half_width == pytest.approx(4.3027 * 150 / 3**0.5, rel=1e-3)
    assert (ratio.mean, ratio.half_width) == (1.5, 0.0)


def test_a_tuned_variant_is_its_best_value() -> None:
    found = row(outcome(), "tuned")
    assert found.tuned == "fleet.maxNumSeqs=16"
    assert found.measures["inMixture"].mean == 240.0
    assert found.ratio is not None
    assert found.ratio.mean == pytest.approx((1.1 + 1.25 + 1.2) / 3)


def test_a_variant_may_have_its_own_baseline() -> None:
    variants: list[dict[str, Any]] = [
        {"name": "free"},
        {"name": "tuned"},
        {"name": "ours", "baseline": "tuned"},
    ]
    rates = {"free": (100.0,), "tuned": (200.0,), "ours": (300.0,)}
    for number, variant in enumerate(variants, 1):
        variant["set"] = {"admission.floor": number}
    found = outcome(rates, variants=variants)
    ratio = row(found, "ours").ratio
    assert ratio is not None
    assert ratio.mean == 1.5
    assert "divided by that of free (ours: tuned)" in "\n".join(table_lines(found.experiment, found.rows))


def test_ratios_use_the_seeds_that_both_have() -> None:
    found = outcome({**RATES, "free": (100.0,)})
    ratio = row(found, "ours").ratio
    assert ratio is not None
    assert (ratio.mean, ratio.count) == (1.5, 1)
    assert not found.complete


def test_classes_and_other_measures() -> None:
    found = row(outcome(), "ours")
    assert found.measures["recomputed"].mean == 1.5
    assert found.measures["waitP95"].mean == 8.0
    assert found.classes["one"]["perMinute"].mean == 150.0
    assert "iteration" not in found.measures, "a trainer without batches has no iterations of its own"


def test_a_trainer_in_batches_has_iterations_and_drain_times() -> None:
    scenario = yaml.safe_load(TEXT)["scenario"]
    scenario["trainer"] = {"mode": "Sync", "batch": 8}
    found = outcome(scenario=scenario)
    assert row(found, "ours").measures["iteration"].mean == 60.0
    assert row(found, "ours").classes["two"]["drain"].mean == 60.0
    assert "Iteration s" in table_lines(found.experiment, found.rows)[0]
    assert [picture.name for picture in pictures(found)] == ["compare", "iterations", "course-1"]


def test_the_table() -> None:
    found = outcome()
    head, *lines = table_lines(found.experiment, found.rows)
    assert head.split()[:4] == ["Variant", "In", "mixture", "/min"]
    assert [line.split("  ")[0] for line in lines[:3]] == ["free", "tuned (16)", "ours"]
    assert "1.50 ±0.00" in lines[2]
    assert lines[-1].startswith("mean over 3 seeds ± half of the 95 % confidence interval; ratio: ")


def test_flatness() -> None:
    window = constant(sweep_outcome(SWEPT), "admission.windowSeconds")
    assert (window.default, window.best, window.reached) == (300, 150, 151.5)
    assert (window.low, window.high) == (75, 300)
    half, double = window.loss(0.5), window.loss(2.0)
    assert half is not None
    assert double is not None
    assert half.mean == pytest.approx(-1.0)
    assert double.mean == pytest.approx(10.0)
    assert half.half_width == pytest.approx(0.0, abs=1e-9)


def test_flatness_around_a_computed_default() -> None:
    parking = constant(sweep_outcome(SWEPT), "admission.parkIdleSeconds")
    assert (parking.default, parking.best) == (None, None)
    assert (parking.low, parking.high) == (50, 50)
    assert parking.loss(0.5) is None
    assert dict(parking.losses)[5].mean == pytest.approx(20.0)


def test_the_sweeps_table() -> None:
    found = sweep_outcome(SWEPT)
    _, window, parking, *_ = sweep_lines(found.experiment, found.flatness)
    assert window.split()[:3] == ["admission.windowSeconds", "300", "s"]
    assert "75 to 300 s" in window
    assert "+10.0 ±0.0 %" in window
    assert "computed" in parking


class Collector(HTMLParser):
    """Finds whatever would make a browser ask the network, and unbalanced tags."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in {"src", "href", "xlink:href"}]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read_page(text: str) -> Collector:
    collector = Collector()
    collector.feed(text)
    collector.close()
    return collector


def test_the_page_needs_nothing_else(drawn: tuple[Picture, ...]) -> None:
    read = read_page(page(outcome(), drawn))
    assert [link for link in read.links if not link.startswith("#")] == []
    assert "script" not in read.tags
    assert read.tags.count("svg") == 2
    shown = " ".join(read.text)
    assert "Is <ours> better?" in shown, "text is escaped"
    assert "--set a=<b>" in shown
    assert "rolloutpool simulate small.yaml" in shown
    assert "1.50 ±0.00" in shown
    assert "fleet.maxNumSeqs=8" in shown, "all tuned values are shown"


def test_the_pages_ink_is_the_readers(drawn: tuple[Picture, ...]) -> None:
    text = page(outcome(), drawn)
    assert "prefers-color-scheme: dark" in text
    assert "currentColor" in text
    assert all("#24292f" not in picture.svg for picture in drawn)


def test_pictures_refer_to_no_ids_of_each_other(drawn: tuple[Picture, ...]) -> None:
    def references(svg: str) -> set[str]:
        return set(re.findall(r"url\(#(\w+)\)|href=\"#(\w+)\"", svg))

    compared, course = (references(picture.svg) for picture in drawn)
    assert compared
    assert compared.isdisjoint(course)


def test_pictures_are_well_formed_and_name_no_address(drawn: tuple[Picture, ...]) -> None:
    for picture in drawn:
        assert ElementTree.fromstring(picture.svg).tag.endswith("svg")
        addresses = set(re.findall(r"https?://[^\"]+", picture.svg))
        assert addresses == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}, "names of formats"


def test_pictures_are_the_same_each_time(drawn: tuple[Picture, ...]) -> None:
    assert pictures(outcome()) == drawn


@pytest.mark.parametrize(
    ("loads", "shown"),
    [
        pytest.param([{"name": "low"}, {"name": "high", "set": {"trainer.outstanding": 90}}], 2, id="bars"),
        pytest.param(
            [{"name": "4", "x": 4}, {"name": "64", "x": 64, "set": {"trainer.outstanding": 90}}],
            2,
            id="lines",
        ),
    ],
)
def test_every_load_has_a_picture_of_its_course(loads: list[dict[str, Any]], shown: int) -> None:
    found = pictures(outcome(loads=loads))
    assert [picture.name for picture in found] == ["compare", *(f"course-{n + 1}" for n in range(shown))]
    assert all(picture.png.startswith(b"\x89PNG") for picture in found)


def test_the_files(tmp_path: Path) -> None:
    written = write_outcome(outcome(), tmp_path / "new")
    names = ["results.json", "report.html", "compare.png", "course-1.png"]
    assert [path.name for path in written] == names
    data = json.loads(written[0].read_text())
    assert data["command"] == "rolloutpool simulate small.yaml"
    assert data["complete"] is True
    assert data["versions"] == {"rolloutpool": "1.2.3"}
    ours = next(item for item in data["rows"] if item["variant"] == "ours")
    assert ours["ratio"] == {"mean": 1.5, "halfWidth": 0.0, "count": 3}
    assert {run["seed"] for run in data["runs"]} == {1, 2, 3}
    (scenario,) = [item["scenario"] for item in data["cells"] if item["key"] == ours["key"]]
    assert scenario["fleet"]["engines"] == 2


def test_the_sweeps_files(tmp_path: Path) -> None:
    written = write_outcome(sweep_outcome(SWEPT), tmp_path)
    assert [path.name for path in written] == ["results.json", "report.html", "sweep.png"]
    data = json.loads(written[0].read_text())
    assert [item["best"] for item in data["sweep"]] == [150, None]
    assert "How flat each optimum is" in written[1].read_text()


def test_failures_are_told_once_each() -> None:
    cell = outcome().cells[0]
    jobs = [Job(cell.key, seed, cell.scenario, keep_series=False) for seed in (1, 2)]
    found = outcome({**RATES, "free": (1.0,)}, failures=tuple(Failed(job, "no luck") for job in jobs))
    assert found.warnings() == [
        "Incomplete: 10 of 12 runs have finished.",
        "Failed: free, seed 1, and 1 more runs: no luck",
    ]
    assert "no luck" in page(found, ())
