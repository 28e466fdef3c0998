"""Runs a scenario: the one place of the fleet simulator where a seed becomes randomness."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from rolloutpool_sim.fleet.result import FleetResult
from rolloutpool_sim.fleet.scenario import Scenario
from rolloutpool_sim.fleet.simulation import Simulation


def run(scenario: Scenario, *, seed: int, progress: Callable[[float], None] | None = None) -> FleetResult:
    """Run a scenario; the same scenario and seed give the same result in every process.

    Args:
        scenario: what to run.
        seed: any integer; the k-th sample of each class depends on it and on nothing else.
        progress: told the part done, 0 to 1, about a hundred times.
    """

    def randoms(name: str) -> Random:
        # Seeding with a text hashes it with SHA-512, which PYTHONHASHSEED does not change.
        return Random(f"{seed}/{name}")

    return Simulation(scenario, randoms=randoms, seed=seed).run(progress)
