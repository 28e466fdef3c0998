"""Which plan is worked towards, with the real planner."""

from typing import Any

from rolloutpool_api.status import PlanStatus
from rolloutpool_operator.memory import PoolMemory
from rolloutpool_operator.planning import make_choice, run_planner
from rolloutpool_operator.testing import FakePlatform
from rolloutpool_testkit.manifests import pool_manifest


def demanding(requests_per_second: float) -> dict[str, Any]:
    slo = {"ttftMilliseconds": 5000, "demand": {"requestsPerSecond": requests_per_second}}
    return pool_manifest("pool", gpus__budget=8, planning__objective="MinimizeGPUs", slo=slo)


async def chosen(platform: FakePlatform, memory: PoolMemory) -> PlanStatus:
    observed = await platform.gather(platform.key)
    assert observed is not None
    assert observed.pool is not None
    choice = await make_choice(observed, observed.pool.spec, memory, planner=run_planner, now=0.0)
    assert choice.plan is not None, choice.message
    return choice.plan


async def test_a_stored_plan_that_no_longer_serves_the_demand_is_not_held() -> None:
    """Also where its status passes for the present spec's, as after an infeasible one or a restart."""
    small = await chosen(FakePlatform(demanding(5)), PoolMemory())
    platform = FakePlatform(demanding(40))
    assert platform.body is not None
    generation = platform.body["metadata"]["generation"]
    platform.body["status"] = {"plan": small.to_wire(), "observedGeneration": generation}
    grown = await chosen(platform, PoolMemory())
    assert grown.gpus_used > small.gpus_used
