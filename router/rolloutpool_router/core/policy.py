"""What a pool's admission policy and its switches mean for the decisions; see spec.admission."""

from __future__ import annotations

from dataclasses import dataclass

from rolloutpool_api.serving import AdmissionPolicy, Enforcement
from rolloutpool_api.spec import RolloutPoolSpec
from rolloutpool_router.core.admission import Rules
from rolloutpool_router.core.caps import ROUNDING
from rolloutpool_router.core.demand import prior_life, prior_peak
from rolloutpool_router.core.estimates import Expectation, Method
from rolloutpool_router.core.forecast import quantile

AHEAD_PART = 0.5
"""With enforcement Hard, how far a class may get ahead of its share, as a part of the tolerated drift."""
LEAST_AHEAD = 2.0
"""The same in samples, at least: whole sessions enter."""


@dataclass(frozen=True)
class PolicyRules:
    """A policy with its switches, as the decisions ask for them."""

    admission: Rules
    """For the choice of who enters next."""
    method: Method
    """For the estimates."""
    pot: bool
    """Sessions must fit the forecast of what all residents hold."""
    z: float
    """Margin of that forecast, in standard deviations."""
    rescue: bool
    """A class without an entry for too long goes before all others."""
    groups: bool
    """Samples of one prompt enter together."""
    parking: bool
    """Sessions with long tool gaps are parked."""
    feasible_floors: bool
    """Floors are granted only where they fit together."""
    safety: float
    """Part of an engine's blocks that sessions may fill where there is no pot."""

    def protected_blocks(self, capacity_blocks: int, factor: float = 1.0) -> int:
        """KV blocks that admitted sessions may fill (C).

        Args:
            capacity_blocks: what the engine has.
            factor: part that pressure leaves, 0 to 1.
        """
        part = 1.0 if self.pot else self.safety
        return int(capacity_blocks * part * factor * (1 + ROUNDING))


def rules_of(spec: RolloutPoolSpec, policy: AdmissionPolicy) -> PolicyRules:
    """The rules of a pool under a policy; the switches of spec.admission extend MISA-T alone."""
    admission = spec.admission
    full = policy is AdmissionPolicy.MISA_T
    by_debt = full and admission.mixture_debt
    hard = by_debt and spec.mixture.enforcement is Enforcement.HARD
    tolerated = spec.mixture.tolerance_percentage_points / 100 * spec.mixture.window_samples
    return PolicyRules(
        admission=Rules(
            class_blind=policy is AdmissionPolicy.SESSION,
            lending=full and admission.lending,
            by_debt=by_debt,
            most_ahead=max(LEAST_AHEAD, AHEAD_PART * tolerated) if hard else None,
        ),
        method=Method(
            time_averaged=full and admission.time_averaged_footprint,
            censoring=full and admission.censoring,
            window_seconds=admission.window_seconds,
        ),
        pot=full and admission.chance_constraint,
        z=quantile(admission.safety),
        rescue=(full and admission.chance_constraint) or hard,
        groups=full and admission.groups,
        parking=full and admission.parking,
        feasible_floors=full and admission.feasible_floors,
        safety=admission.safety,
    )


def expectations(spec: RolloutPoolSpec) -> dict[str, Expectation]:
    """The priors of every class, by name."""
    size, longest = spec.engine.block_size, spec.model.max_model_len
    return {
        workload.name: Expectation(
            life=prior_life(workload, block_size=size, slo=spec.slo, max_tokens=longest),
            peak_blocks=prior_peak(workload, block_size=size, max_tokens=longest),
            weight=spec.admission.prior_weight,
        )
        for workload in spec.workloads
    }
