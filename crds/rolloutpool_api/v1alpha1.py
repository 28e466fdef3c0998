"""RolloutPool v1alpha1: the whole object, and how to read one with errors that say what to change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationError

from rolloutpool_api import cel
from rolloutpool_api.base import ApiModel, StatusModel, rules
from rolloutpool_api.spec import RolloutPoolSpec
from rolloutpool_api.status import RolloutPoolStatus


class InvalidPool(ValueError):
    """An object that is no valid RolloutPool; the message lists every field and what is wrong with it."""


class Metadata(StatusModel):
    """The part of Kubernetes' metadata that the project reads."""

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    deletion_timestamp: str | None = None


class RolloutPool(ApiModel):
    """One pool of vLLM engines that serves mixed RL rollouts."""

    model_config = ConfigDict(
        extra="ignore",
        json_schema_extra=rules(cel.OBJECT),
    )

    api_version: Literal["rolloutpool.dev/v1alpha1"] = "rolloutpool.dev/v1alpha1"
    kind: Literal["RolloutPool"] = "RolloutPool"
    metadata: Metadata
    spec: RolloutPoolSpec
    status: RolloutPoolStatus = Field(default_factory=RolloutPoolStatus)


def parse_pool(body: Mapping[str, Any]) -> RolloutPool:
    """Read a RolloutPool from its JSON or YAML form.

    Also checks what CEL rules cannot reach here without an API server: shares and unique names.

    Raises:
        InvalidPool: with one line per wrong field.
    """
    try:
        pool = RolloutPool.model_validate(body)
    except ValidationError as error:
        raise InvalidPool("\n".join(_line(item) for item in error.errors())) from None
    problems = spec_problems(pool.spec)
    if problems:
        raise InvalidPool("\n".join(problems))
    return pool


def spec_problems(spec: RolloutPoolSpec) -> tuple[str, ...]:
    """What the API server's rules would refuse, for specs that did not pass through it; empty if nothing."""
    problems = []
    total = sum(workload.share for workload in spec.workloads)
    if not 0.999 < total < 1.001:
        problems.append(
            f"the shares of spec.workloads sum to {total:.3f}, not 1: change spec.workloads[].share"
        )
    names = [workload.name for workload in spec.workloads]
    if len(set(names)) < len(names):
        problems.append(f"spec.workloads names must be unique, got {', '.join(names)}: rename one")
    return tuple(problems)


def _line(item: Any) -> str:
    path = ".".join(str(part) for part in item["loc"])
    return f"{path}: {item['msg']}"
