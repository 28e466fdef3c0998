"""The experiment file: a base scenario, what is varied, and what is compared. Pure.

    name: overload
    description: one line
    seeds: 5
    scenario: {...}                       # a scenario of rolloutpool_sim.fleet.scenario
    loads:                                # the same question at several loads; optional
      - {name: 2x, set: {trainer.outstandingPerEngine: 80}}
    variants:
      - {name: None, set: {admission.policy: None}}
      - {name: None tuned, set: {admission.policy: None}, tune: {path: fleet.maxNumSeqs, values: [32, 64]}}
      - {name: MISA-T, set: {}}
    compare: {baseline: None, metric: inMixture}
    sweep: {variant: MISA-T, load: 2x, constants: [{path: admission.windowSeconds, values: [75, 1200]}]}

`set` gives values by dotted path (`paths`); each replaces what the scenario has there. A run is the base
scenario, then the load's values, then the variant's, then the tuned one.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from rolloutpool_api.base import ApiModel

Name = Annotated[str, Field(pattern="^[^,]{1,64}$")]
"""Without commas, which separate names on the command line."""
Path = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_ -]+)*$", max_length=200)]
"""A dotted path into the scenario."""
Settings = Annotated[dict[Path, Any], Field(max_length=64)]
MAX_RUNS_LISTED = 64
"""Most loads, variants or values in one list."""


class Metric(StrEnum):
    """What variants are compared by; more is better."""

    IN_MIXTURE = "inMixture"
    SAMPLES = "samples"


class Load(ApiModel):
    """One load at which every variant runs."""

    name: Name
    description: str = ""
    """What it stands for, in a line."""
    set: Settings = {}
    """Values by path."""
    x: float | None = None
    """Where it stands on the horizontal axis; with one for every load the picture is a line, not bars."""


class Tune(ApiModel):
    """A value that the variant may choose for itself: the best by the experiment's metric, load by load.

    It is chosen on the seeds that are then reported, which flatters the variant a little.
    """

    path: Path
    values: Annotated[list[Any], Field(min_length=2, max_length=MAX_RUNS_LISTED)]


class Variant(ApiModel):
    """One of the things compared."""

    name: Name
    description: str = ""
    """What it is, in a line."""
    set: Settings = {}
    """Values by path."""
    tune: Tune | None = None
    """A value that is chosen for it."""
    baseline: Name | None = None
    """The variant that this one is divided by. Default: the one of `compare`."""


class Compare(ApiModel):
    """How variants are compared."""

    baseline: Name
    """The variant that the others are divided by."""
    metric: Metric = Metric.IN_MIXTURE
    """What is divided."""


class Constant(ApiModel):
    """A constant to sweep."""

    path: Path
    values: Annotated[list[float], Field(min_length=1, max_length=MAX_RUNS_LISTED)]
    """Values to try; the default, its half and its double are tried in any case."""
    unit: str = ""
    """For the axis."""


class Sweep(ApiModel):
    """Constants varied one at a time, all else as in the variant."""

    variant: Name
    load: Name | None = None
    """Default: the first."""
    constants: Annotated[list[Constant], Field(min_length=1, max_length=MAX_RUNS_LISTED)]


class Experiment(ApiModel):
    """An experiment file."""

    name: Name
    description: Annotated[str, Field(min_length=1, max_length=200)]
    """What is asked, in a line; shown by --list."""
    notes: str = ""
    """How numbers were chosen and what to look for; shown in the page."""
    seeds: int = Field(default=5, ge=1, le=1000)
    """Seeds where --seeds does not say otherwise."""
    scenario: dict[str, Any]
    """The base."""
    load_label: str = ""
    """Name of the axis on which loads have their `x`."""
    loads: Annotated[list[Load], Field(min_length=1, max_length=MAX_RUNS_LISTED)] = [Load(name="-")]
    variants: Annotated[list[Variant], Field(min_length=1, max_length=MAX_RUNS_LISTED)]
    compare: Compare
    sweep: Sweep | None = None

    @model_validator(mode="after")
    def _names(self) -> Self:
        variants, loads = [item.name for item in self.variants], [item.name for item in self.loads]
        for kind, names in (("variants", variants), ("loads", loads)):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"{kind}: {twice[0]!r} is there twice: rename one")
        if self.compare.baseline not in variants:
            raise ValueError(_unknown("compare.baseline", self.compare.baseline, variants))
        for item in self.variants:
            if item.baseline is not None and item.baseline not in variants:
                raise ValueError(_unknown(f"variants.{item.name}.baseline", item.baseline, variants))
        if self.sweep and self.sweep.variant not in variants:
            raise ValueError(_unknown("sweep.variant", self.sweep.variant, variants))
        if self.sweep and self.sweep.load is not None and self.sweep.load not in loads:
            raise ValueError(_unknown("sweep.load", self.sweep.load, loads))
        return self

    def baseline_of(self, variant: str) -> str:
        """The variant that this one is divided by."""
        own = next(item.baseline for item in self.variants if item.name == variant)
        return own or self.compare.baseline


def _unknown(field: str, name: str, known: list[str]) -> str:
    return f"{field}: there is no {name!r}: write one of {', '.join(known)}"
