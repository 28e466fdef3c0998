"""Objects that break one rule of the CRD each, with the rule's message."""

from __future__ import annotations

from typing import Any

import pytest

from rolloutpool_api import cel, labels
from rolloutpool_testkit.manifests import pool_manifest

WORKLOAD = {"name": "a", "share": 1}
TP2 = [{"tensorParallel": 2}]
RL = {"enabled": True, "tokenSecretRef": {"name": "trainer"}}
GROUP = {"role": "aggregated", "tensorParallel": 2, "replicas": 3}


def refused(message: str, name: str = "refused", **changes: Any) -> Any:
    """One case: the rule's message and a manifest that breaks that rule alone."""
    return pytest.param(message, pool_manifest(name, **changes), id=message[:60])


REFUSED_ON_CREATE = [
    refused(cel.OBJECT[0][1], name="x" * (labels.MAX_POOL_NAME + 1)),
    refused(cel.OBJECT[1][1], name="a.b"),
    refused(cel.SPEC[0][1], workloads=[{"name": "a", "share": 0.6}, {"name": "b", "share": 0.5}]),
    refused(cel.SPEC[1][1], gpus__budget=1, planning__allowedParallelism=TP2),
    refused(cel.SPEC[2][1], gpus__budget=1, planning__mode="Disaggregated"),
    refused(cel.SPEC[3][1], gpus__budget=3, planning__mode="Disaggregated", planning__allowedParallelism=TP2),
    refused(cel.SPEC[4][1], planning={"mode": "Manual", "replicas": [GROUP]}),
    refused(cel.SPEC[5][1], planning={"mode": "Manual", "replicas": [{"role": "prefill", "replicas": 1}]}),
    refused(cel.SPEC[6][1], model__maxModelLen=1000),
    refused(cel.SPEC[7][1], planning__objective="MinimizeGPUs"),
    refused(cel.SPEC[10][1], engine__rl=RL, router__replicas=2),
    refused(cel.RL[0][1], engine__rl={"enabled": True}),
    refused(cel.RL[1][1], engine__rl={"port": labels.ROUTER_PORT}),
    refused(cel.KV_EVENTS[0][1], engine__kvEvents={"port": 7000, "replayPort": 7000}),
    refused(cel.KV_EVENTS[1][1], engine__kvEvents={"port": labels.ENGINE_PORT}),
    refused(cel.MODEL[0][1], model__source="pvc://claim-without-path"),
    refused(cel.ENGINE[0][1], engine__extraArgs=["--port=9000"]),
    refused(cel.ENGINE[1][1], engine__env=[{"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "value": "0.0.0.0"}]),
    refused(cel.ENGINE[2][1], engine__resources={"limits": {"nvidia.com/gpu": "4"}}),
    refused(
        cel.ENV[0][1],
        engine__env=[{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}],
    ),
    refused(cel.MODEL_CACHE[0][1], engine__modelCache={"claimName": "c", "emptyDir": {}}),
    refused(
        cel.TOKEN_PRIOR[0][1], workloads=[{**WORKLOAD, "priors": {"promptTokens": {"p50": 9, "p95": 3}}}]
    ),
    refused(cel.DEMAND[0][1], slo__demand={"requestsPerSecond": 1, "concurrentSessions": 1}),
    refused(cel.PROFILE[0][1], planning__profile={"builtin": "a", "configMapRef": {"name": "b"}}),
    refused(cel.PLANNING[0][1], planning__mode="Manual"),
]
REFUSED_ON_UPDATE = [
    refused(cel.SPEC[8][1], name="immutable", model__name="other"),
    refused(cel.SPEC[9][1], name="immutable", gpus__resourceName="amd.com/gpu"),
]
