"""Runs that simulate nothing, for tests: results made up from the scenario and the seed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from rolloutpool_sim.fleet.result import ClassResult, FleetResult, Iteration, Series
from rolloutpool_sim.fleet.scenario import Scenario

POINTS = 5
"""Length of a made-up series."""


def made_up(
    scenario: Scenario, *, seed: int, in_mixture: float = 100.0, samples: float | None = None
) -> FleetResult:
    """A result with these samples per minute; everything else is plausible and always the same."""
    names = [workload.name for workload in scenario.workloads]
    rate = samples if samples is not None else in_mixture
    return FleetResult(
        scenario=scenario.name,
        seed=seed,
        seconds=scenario.seconds - scenario.warmup_seconds,
        classes={workload.name: _class_result(rate * workload.share) for workload in scenario.workloads},
        samples_per_minute=rate,
        in_mixture_per_minute=in_mixture,
        drift_max=4.0,
        drift_end=2.0,
        drift_total=1.0,
        prefix_hit_rate=0.5,
        recomputed_tokens=1_000_000,
        loaded_tokens=250_000,
        evicted_history_tokens=500_000,
        preemptions=7,
        used_fraction=0.6,
        resident_fraction=0.8,
        failed_turns=0,
        open_at_end=3,
        iterations=(
            Iteration(
                start=0.0,
                end=60.0,
                counts=dict.fromkeys(names, 4),
                finished={name: 30.0 + 30 * index for index, name in enumerate(names)},
            ),
        ),
        series=_series(scenario, names),
    )


def seeded(scenario: Scenario, *, seed: int, progress: Callable[[float], None] | None = None) -> FleetResult:
    """A run whose metric is its window of estimation in seconds plus ten for each seed."""
    if progress is not None:
        progress(0.5)
    return made_up(scenario, seed=seed, in_mixture=scenario.admission.window_seconds + 10.0 * seed)


def broken(scenario: Scenario, *, seed: int, progress: Callable[[float], None] | None = None) -> FleetResult:
    """A run that raises with even seeds."""
    if seed % 2 == 0:
        raise RuntimeError(f"no luck with seed {seed}")
    return seeded(scenario, seed=seed, progress=progress)


def dying(scenario: Scenario, *, seed: int, progress: Callable[[float], None] | None = None) -> FleetResult:
    """A run whose process is gone before it has said anything."""
    os._exit(9)


def endless(scenario: Scenario, *, seed: int, progress: Callable[[float], None] | None = None) -> FleetResult:
    """A run that reports its progress with seed 1 and never ends."""
    if progress is not None and seed == 1:
        progress(0.5)
    while True:
        time.sleep(60)


def _class_result(per_minute: float) -> ClassResult:
    return ClassResult(
        submitted=100,
        completed=90,
        per_minute=per_minute,
        turns=120,
        output_tokens=9000,
        queue_wait_p50=1.0,
        queue_wait_p95=8.0,
        queue_wait_max=9.0,
        oldest_wait_max=9.5,
        ttft_p50=0.1,
        ttft_p95=0.4,
        footprint_blocks=50.0,
        residency_seconds=30.0,
    )


def _series(scenario: Scenario, names: list[str]) -> Series:
    return Series(
        time=tuple(scenario.seconds * (index + 1) / POINTS for index in range(POINTS)),
        completed=dict.fromkeys(names, (0, 3, 3, 4, 5)),
        active=dict.fromkeys(names, (1, 2, 3, 4, 5)),
        waiting=dict.fromkeys(names, (0, 0, 9, 8, 7)),
        caps=dict.fromkeys(names, (-1, 5, 5, 5, 5)),
        used=(0.1, 0.4, 0.6, 0.6, 0.6),
        resident=(0.2, 0.6, 0.8, 0.9, 0.9),
        drift=(0.0, 1.0, 2.0, 2.0, 2.0),
        hit_rate=(None, 0.4, 0.5, 0.5, 0.5),
        preemptions=(0, 1, 2, 2, 2),
    )
