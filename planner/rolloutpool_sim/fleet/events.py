"""Scenario files: what happens to the fleet or the trainer at a given time."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from rolloutpool_api.base import ApiModel
from rolloutpool_api.workloads import ClassName
from rolloutpool_sim.fleet.workload import WorkloadChange

KINDS = ("workload", "engine_lost", "engine_back", "class_silent", "burst", "output_growth")

EngineRef = Annotated[int, Field(ge=0, le=255)] | Annotated[str, Field(min_length=1, max_length=253)]
"""An engine by index (0 is the first) or by name (engine-0 is the first)."""


class ChangeWorkload(ApiModel):
    """A class's sessions look different from now on; those submitted before stay as they are."""

    class_name: ClassName = Field(alias="class")
    """The class."""
    replace: WorkloadChange
    """Its new values."""


class SilentClass(ApiModel):
    """The trainer submits no sample of a class for a while."""

    class_name: ClassName = Field(alias="class")
    """The class."""
    for_seconds: float = Field(alias="for", gt=0)
    """How long, in seconds."""


class Burst(ApiModel):
    """Samples submitted at once, on top of what the trainer keeps open."""

    class_name: ClassName = Field(alias="class")
    """The class."""
    samples: int = Field(ge=1, le=1_000_000)
    """How many; rounded up to whole groups."""


class OutputGrowth(ApiModel):
    """Outputs of a class grow with each iteration from now on, for samples submitted then."""

    class_name: ClassName = Field(alias="class")
    """The class."""
    percent_per_iteration: float = Field(gt=-100, le=1000)
    """Growth of every output length with one iteration, in percent, compounding. An iteration is a batch in
    mode Sync, `trainer.batch` completed samples in mode Async."""


class Event(ApiModel):
    """Something that happens at a time: exactly one of the kinds."""

    at: float = Field(ge=0)
    """When, in seconds since the start."""
    workload: ChangeWorkload | None = None
    """Sessions of a class look different."""
    engine_lost: EngineRef | None = None
    """An engine dies with what it holds; its requests fail."""
    engine_back: EngineRef | None = None
    """A lost engine is back, with an empty cache."""
    class_silent: SilentClass | None = None
    """The trainer submits no sample of a class for a while."""
    burst: Burst | None = None
    """The trainer submits many samples of a class at once."""
    output_growth: OutputGrowth | None = None
    """Outputs of a class grow with each iteration."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError(
                "an event needs exactly one of workload, engineLost, engineBack, classSilent, burst and "
                "outputGrowth"
            )
        return self

    @property
    def class_name(self) -> str | None:
        """The class that it is about."""
        about = self.workload or self.class_silent or self.burst or self.output_growth
        return about.class_name if about is not None else None

    @property
    def engine(self) -> int | str | None:
        """The engine that it is about, by index or name."""
        return self.engine_lost if self.engine_lost is not None else self.engine_back
