"""Scenario files: the rollout classes, and what may change about them while a run goes on."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rolloutpool_api.base import ApiModel
from rolloutpool_api.workloads import ClassName
from rolloutpool_sim.fleet.dist import Distribution


class Workload(ApiModel):
    """One rollout class: what the trainer wants of it, and what its sessions look like.

    A session's first prompt is the system prompt (shared by the class) and the group's prompt (shared by the
    group). Each later turn adds the environment's answer behind the last output.
    """

    name: ClassName
    """Name of the class."""
    share: float = Field(gt=0, le=1)
    """Part of the samples that the trainer wants from this class; all shares sum to 1."""
    group_size: int = Field(default=1, ge=1, le=1024)
    """Samples of one prompt, submitted together."""
    system_tokens: int = Field(default=0, ge=0, le=1_000_000)
    """Leading prompt tokens that all sessions of the class share (system prompt and tools), in tokens."""
    prompt_tokens: Distribution
    """Prompt tokens behind the system prompt, the same for a whole group, in tokens."""
    output_tokens: Distribution
    """Generated tokens of one turn, in tokens."""
    turns: Distribution = Distribution(constant=1)
    """Requests of one session."""
    turn_tokens: Distribution = Distribution(constant=0)
    """Tokens that the environment adds before each later turn, in tokens."""
    tool_gap_seconds: Distribution = Distribution(constant=0)
    """Time between an answer and the session's next request, in seconds."""
    group_correlation: float = Field(default=0.0, ge=0, le=1)
    """Correlation within a group of the normal scores of output tokens and of turns: what the prompt asks for
    decides how long its answers get."""
    session_idle_seconds: Annotated[float, Field(ge=0, le=86_400)] | None = None
    """Idle time after which routers take a session for ended, in seconds. Default: 0 (ends with its answer)
    where turns is the constant 1, else an hour, since the simulated trainer ends each session itself."""

    @property
    def single_turn(self) -> bool:
        """Whether all its sessions have one turn."""
        return self.turns == Distribution(constant=1)


class WorkloadChange(ApiModel):
    """Fields of a class that take new values, for samples submitted from then on."""

    prompt_tokens: Distribution | None = None
    output_tokens: Distribution | None = None
    turns: Distribution | None = None
    turn_tokens: Distribution | None = None
    tool_gap_seconds: Distribution | None = None
    group_correlation: Annotated[float, Field(ge=0, le=1)] | None = None

    def apply(self, workload: Workload) -> Workload:
        """The class with these values in place of its own."""
        given = {
            name: value for name in type(self).model_fields if (value := getattr(self, name)) is not None
        }
        return workload.model_copy(update=given)
