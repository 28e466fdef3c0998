"""One constant at a time: what else it could be, and how much that matters. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rolloutpool_cli.simulate.cells import Cell, Layer, build, cell_layers, scenario_key
from rolloutpool_cli.simulate.changes import NO_CHANGES, Changes
from rolloutpool_cli.simulate.experiment import Constant, Experiment, Sweep
from rolloutpool_cli.simulate.measures import METRICS, NOTHING, format_estimate
from rolloutpool_cli.simulate.paths import InvalidPath, get_path
from rolloutpool_cli.simulate.read import InvalidExperiment, Location, Source
from rolloutpool_cli.simulate.stats import Estimate, estimate, paired_ratio
from rolloutpool_cli.simulate.summary import Results, metric_by_seed
from rolloutpool_cli.tables import columns
from rolloutpool_sim.fleet.scenario import Scenario

FLAT_PERCENT = 2.0
"""Values whose mean is at most this much below the best one's are as good as it."""


@dataclass(frozen=True, kw_only=True)
class SweepPoint:
    """A constant at one value."""

    path: str
    unit: str
    value: float | None
    """None: as in the variant that is swept, where that is no number but computed."""
    is_default: bool
    """Whether it is as in the variant."""
    cell: Cell


@dataclass(frozen=True, kw_only=True)
class Flatness:
    """How flat the optimum of a constant is."""

    path: str
    unit: str
    default: float | None
    """None: computed."""
    at_default: Estimate
    """What the default reaches."""
    points: tuple[tuple[float, Estimate], ...]
    """Value and metric, by value."""
    best: float | None
    """Value with the highest mean; None: the computed default."""
    low: float | None
    high: float | None
    """Ends of the range of tried values around the best whose means are within FLAT_PERCENT of its; None
    where the best is the computed default and no value comes so close."""
    losses: tuple[tuple[float, Estimate], ...]
    """Value and loss against the default in percent (negative: a gain), seed by seed."""

    @property
    def reached(self) -> float:
        """The highest mean."""
        return max([self.at_default.mean, *(found.mean for _, found in self.points)])

    def loss(self, factor: float) -> Estimate | None:
        """The loss at half (0.5) or double (2) the default, if it was tried."""
        if self.default is None:
            return None
        value = _scaled(self.default, factor)
        return next((loss for tried, loss in self.losses if tried == value), None)


def sweep_points(
    experiment: Experiment, sweep: Sweep, source: Source, *, changes: Changes = NO_CHANGES
) -> tuple[SweepPoint, ...]:
    """Everything to run: each constant at its values, its default, and half and double of that.

    Half and double are left out where the scenario does not allow them.

    Raises:
        InvalidExperiment: a value that the file names makes no valid scenario, or the default is no number.
    """
    load = sweep.load or experiment.loads[0].name
    layers = cell_layers(experiment, variant=sweep.variant, load=load)
    base = build(experiment, layers, source, changes=changes)
    points: list[SweepPoint] = []

    def add(constant: Constant, value: float | None, scenario: Scenario, *, is_default: bool) -> None:
        key = scenario_key(scenario)
        tuned = f"{constant.path}={'default' if value is None else f'{value:g}'}"
        cell = Cell(variant=sweep.variant, load=load, tuned=tuned, scenario=scenario, key=key)
        points.append(
            SweepPoint(path=constant.path, unit=constant.unit, value=value, is_default=is_default, cell=cell)
        )

    for index, constant in enumerate(sweep.constants):
        where = ("sweep", "constants", index)
        default = _default(base, constant.path, source, where)
        add(constant, default, base, is_default=True)
        for value in _values(constant, default):
            over = Layer((*where, "values"), {constant.path: _written(value)})
            try:
                scenario = build(experiment, [*layers, over], source, changes=changes)
            except InvalidExperiment:
                if value in constant.values:
                    raise
                continue
            add(constant, value, scenario, is_default=False)
    return tuple(points)


def flatness(points: Sequence[SweepPoint], results: Results, *, metric: str) -> tuple[Flatness, ...]:
    """How flat each constant's optimum is; constants whose default has not finished are left out."""
    found = []
    for path in dict.fromkeys(point.path for point in points):
        own = [point for point in points if point.path == path]
        default = next(point for point in own if point.is_default)
        base = metric_by_seed(default.cell, results, metric)
        reached = estimate(list(base.values()))
        if reached is not None:
            measured = {point.value: metric_by_seed(point.cell, results, metric) for point in own}
            found.append(_flatness(default, reached, base, measured))
    return tuple(found)


def sweep_lines(experiment: Experiment, found: Sequence[Flatness]) -> list[str]:
    """The result of a sweep as plain text."""
    headers, rows = sweep_table(found)
    metric = METRICS[experiment.compare.metric]
    return [
        *columns(headers, rows),
        "",
        f"by {metric.title} {metric.unit}; within {FLAT_PERCENT:g} %: tried values that lose no more",
        "losses: against the default, seed by seed, ± half of the 95 % confidence interval",
    ]


def sweep_table(found: Sequence[Flatness]) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of the table."""
    within = f"Within {FLAT_PERCENT:g} %"
    headers = ["Constant", "Default", "Reaches", "Best", "Reaches", within, "Loss at half", "Loss at double"]
    rows = []
    for item in found:
        best = next((value for tried, value in item.points if tried == item.best), item.at_default)
        unit = f" {item.unit}" if item.unit else ""
        rows.append(
            [
                item.path,
                _value(item.default, unit),
                format_estimate(item.at_default),
                _value(item.best, unit),
                format_estimate(best),
                NOTHING if item.low is None else f"{item.low:g} to {item.high:g}{unit}",
                _percent(item.loss(0.5)),
                _percent(item.loss(2.0)),
            ]
        )
    return headers, rows


def _default(base: Scenario, path: str, source: Source, where: Location) -> float | None:
    """What the constant is in the variant; None where that is computed."""
    try:
        default = get_path(base.model_dump(mode="json", by_alias=True), path)
    except InvalidPath as error:
        raise InvalidExperiment(source.problem([*where, "path"], str(error))) from None
    if isinstance(default, bool) or not isinstance(default, int | float | None):
        raise InvalidExperiment(
            source.problem([*where, "path"], f"{path} is {default!r}: only numbers are swept")
        )
    return default


def _flatness(
    point: SweepPoint,
    reached: Estimate,
    base: Mapping[int, float],
    measured: Mapping[float | None, dict[int, float]],
) -> Flatness:
    values = sorted(value for value, by_seed in measured.items() if value is not None and by_seed)
    points = [(value, found) for value in values if (found := estimate(list(measured[value].values())))]
    top = max(points, key=lambda item: item[1].mean, default=None)
    best = top[0] if top and top[1].mean >= reached.mean else point.value
    low, high = _flat_range(points, best, max(reached.mean, top[1].mean if top else reached.mean))
    return Flatness(
        path=point.path,
        unit=point.unit,
        default=point.value,
        at_default=reached,
        points=tuple(points),
        best=best,
        low=low,
        high=high,
        losses=tuple((value, loss) for value in values if (loss := _loss(measured[value], base)) is not None),
    )


def _flat_range(
    points: Sequence[tuple[float, Estimate]], best: float | None, reached: float
) -> tuple[float | None, float | None]:
    """Ends of the values around the best that are about as good; of all such where the best is computed."""
    enough = reached * (1 - FLAT_PERCENT / 100)
    good = [found.mean >= enough for _, found in points]
    if best is None:
        values = [value for (value, _), is_good in zip(points, good, strict=True) if is_good]
        return (values[0], values[-1]) if values else (None, None)
    low = high = next(index for index, (value, _) in enumerate(points) if value == best)
    while low > 0 and good[low - 1]:
        low -= 1
    while high + 1 < len(points) and good[high + 1]:
        high += 1
    return points[low][0], points[high][0]


def _loss(by_seed: Mapping[int, float], base: Mapping[int, float]) -> Estimate | None:
    """Loss against the default, in percent."""
    seeds = sorted(by_seed.keys() & base.keys())
    ratio = paired_ratio([by_seed[seed] for seed in seeds], [base[seed] for seed in seeds])
    if ratio is None:
        return None
    width = None if ratio.half_width is None else 100 * ratio.half_width
    return Estimate(100 * (1 - ratio.mean), width, ratio.count)


def _values(constant: Constant, default: float | None) -> list[float]:
    """What is tried beside the default."""
    around = set() if default is None else {_scaled(default, 0.5), _scaled(default, 2.0)}
    return sorted({*constant.values, *around} - {default})


def _scaled(default: float, factor: float) -> float:
    """Half or double of a default, whole where the default is."""
    return max(1, int(default * factor)) if isinstance(default, int) else default * factor


def _written(value: float) -> float:
    """A value for a scenario: whole numbers without a point, as whole fields need them."""
    return int(value) if float(value).is_integer() else value


def _value(value: float | None, unit: str) -> str:
    return "computed" if value is None else f"{value:g}{unit}"


def _percent(loss: Estimate | None) -> str:
    if loss is None:
        return NOTHING
    if loss.half_width is None:
        return f"{loss.mean:+.1f} %"
    return f"{loss.mean:+.1f} ±{loss.half_width:.1f} %"
