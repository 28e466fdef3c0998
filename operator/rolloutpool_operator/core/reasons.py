"""Reasons of conditions and Events: one word each, for programs."""

from __future__ import annotations

# SpecValid
VALID = "Valid"
INVALID_SPEC = "InvalidSpec"

# PlanReady
PLANNED = "Planned"
PLANNING = "Planning"
INFEASIBLE = "Infeasible"
SOLVER_TIMEOUT = "SolverTimeout"
PROFILE_MISSING = "ProfileMissing"
PLANNING_FAILED = "PlanningFailed"

# PlanApplied
APPLIED = "Applied"
PROGRESSING = "Progressing"
INSUFFICIENT_GPUS = "InsufficientGPUs"
HELD_BY_HYSTERESIS = "HeldByHysteresis"
PAUSED = "Paused"
AUTO_APPLY_OFF = "AutoApplyOff"
APPLY_FAILED = "ApplyFailed"

# PrefillReady, DecodeReady, RouterReady, Ready (which also takes NoEngineHasCurrentWeights)
ALL_READY = "AllReady"
STARTING = "Starting"
ROUTER_MISSING = "RouterMissing"
READY = "Ready"

# AdmissionThrottled, MixtureDrifting, Degraded
CAPS_REACHED = "CapsReached"
HELD_FOR_MIXTURE = "HeldForMixture"
HELD_BY_PAUSE = "HeldByPause"
NO_ENGINE_UP = "NoEngineUp"
NOT_THROTTLED = "NotThrottled"
BEYOND_TOLERANCE = "BeyondTolerance"
WITHIN_TOLERANCE = "WithinTolerance"
ROUTER_UNREACHABLE = "RouterUnreachable"
STALE_CAPS = "StaleCaps"
ENGINE_METRICS_STALE = "EngineMetricsStale"
HEALTHY = "Healthy"

# WeightsConsistent
SAME_WEIGHTS = "SameWeights"
STALE_WEIGHTS = "StaleWeights"
NO_ENGINE_HAS_CURRENT_WEIGHTS = "NoEngineHasCurrentWeights"
LONG_PAUSE = "LongPause"

# Events that are no condition's reason
PLAN_INFEASIBLE = "PlanInfeasible"
SCALED = "Scaled"
CHILD_RESTORED = "ChildRestored"
CHILD_RECREATED = "ChildRecreated"
CAPS_CHANGED = "CapsChanged"
MIXTURE_DRIFT = "MixtureDrift"
NOT_READY = "NotReady"

# Why a pod is not ready, beyond the kubelet's own words
UNSCHEDULABLE = "Unschedulable"
POD_MISSING = "PodMissing"
TERMINATING = "Terminating"
