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

    Checks types and bounds. Rules over several fields are the CRD's (`cel`), which the API server checks.

    Raises:
        InvalidPool: with one line per wrong field.
    """
    try:
        return RolloutPool.model_validate(body)
    except ValidationError as error:
        raise InvalidPool("\n".join(_line(item) for item in error.errors())) from None


def _line(item: Any) -> str:
    path = ".".join(str(part) for part in item["loc"])
    return f"{path}: {item['msg']}"
