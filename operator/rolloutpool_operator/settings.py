"""Settings of the operator, from ROLLOUTPOOL_* environment variables; nothing else reads the environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rolloutpool_operator.core.manifests.context import Install

PREFIX = "ROLLOUTPOOL_"


class InvalidSettings(ValueError):
    """A setting cannot be read; the message names the variable."""


class Settings(BaseModel):
    """One attribute per variable: ROLLOUTPOOL_ROUTER_IMAGE sets `router_image`, and so on."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    router_image: Annotated[str, Field(min_length=1)] = Install().router_image
    """Image of routers, where a pool names none."""
    router_pull_policy: Annotated[str, Field(pattern="^(Always|IfNotPresent|Never)$")] = "IfNotPresent"
    """When the router's image is pulled."""
    namespaces: str = ""
    """Namespaces to watch, separated by commas; empty: all."""
    watch_nodes: bool = True
    """False where nodes may not be read: plans then count the budget alone."""
    network_policies: bool = True
    """Whether pools get NetworkPolicies."""
    operator_namespace: str = ""
    """Namespace that the operator runs in; empty: it runs outside and keeps no heartbeat."""
    monitoring_namespace: str = ""
    """Namespace that may reach metrics of engines and routers; empty: none."""
    identity: str = "rolloutpool-operator"
    """Name of this process (its pod), for the heartbeat."""
    host: str = "0.0.0.0"
    """Address of /healthz and /metrics."""
    port: int = Field(default=8080, ge=0, le=65_535)
    """Port of /healthz and /metrics."""
    log_level: Annotated[str, Field(pattern="^(debug|info|warning|error)$")] = "info"
    """Least severe messages that are logged."""
    workers: int = Field(default=16, ge=1, le=64)
    """Pools reconciled at once; more than plan at once, so that others go on while some plan."""
    resync_seconds: float = Field(default=120.0, ge=1, le=3600)
    """Every pool is reconciled at least this often."""
    admission_seconds: float = Field(default=2.0, ge=0.1, le=60)
    """Period of the admission loop: least time between two status writes of a pool."""
    heartbeat_seconds: float = Field(default=20.0, ge=0.2, le=300)
    """How often the heartbeat is renewed."""
    deaf_seconds: float = Field(default=180.0, ge=1, le=3600)
    """How late a watch may deliver before the operator counts as not alive. Longer than `quiet_seconds`."""
    quiet_seconds: float = Field(default=70.0, ge=1, le=600)
    """Silence after which a watch is opened anew; the API server sends bookmarks every 60 s."""

    @property
    def watched_namespaces(self) -> tuple[str, ...]:
        """Namespaces to watch; empty: all."""
        return tuple(name.strip() for name in self.namespaces.split(",") if name.strip())

    @property
    def heartbeat_namespace(self) -> str:
        """Namespace of the heartbeat: one that is watched; empty: there is none."""
        watched = self.watched_namespaces
        if self.operator_namespace and watched and self.operator_namespace not in watched:
            return watched[0]
        return self.operator_namespace

    @property
    def install(self) -> Install:
        """What manifests depend on."""
        return Install(
            router_image=self.router_image,
            router_pull_policy=self.router_pull_policy,
            network_policies=self.network_policies,
            operator_namespace=self.operator_namespace,
            monitoring_namespace=self.monitoring_namespace,
        )


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Read the settings from an environment.

    Raises:
        InvalidSettings: where a variable has no meaning or cannot be read.
    """
    given = {
        name.removeprefix(PREFIX).lower(): value for name, value in environ.items() if name.startswith(PREFIX)
    }
    unknown = [f"{PREFIX}{name.upper()}" for name in given if name not in Settings.model_fields]
    if unknown:
        known = ", ".join(f"{PREFIX}{name.upper()}" for name in Settings.model_fields)
        raise InvalidSettings(f"unknown settings {', '.join(unknown)}; known are {known}")
    try:
        return Settings.model_validate(given)
    except ValidationError as error:
        lines = [f"{PREFIX}{str(item['loc'][0]).upper()}: {item['msg']}" for item in error.errors()]
        raise InvalidSettings("; ".join(lines)) from None
