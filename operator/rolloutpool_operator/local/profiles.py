"""The user's performance profile, where there is no ConfigMap: a file beside the manifest."""

from __future__ import annotations

from pathlib import Path

from rolloutpool_api.spec import RolloutPoolSpec
from rolloutpool_operator.core.observed import ProfileFacts


def profile_beside(manifest: Path, spec: RolloutPoolSpec) -> ProfileFacts:
    """The profile that spec.planning.profile.configMapRef names, read from the file of its key."""
    reference = spec.planning.profile.config_map_ref
    if reference is None:
        return ProfileFacts()
    path = manifest.parent / reference.key
    try:
        return ProfileFacts(text=path.read_text())
    except OSError as error:
        return ProfileFacts(
            error=f"without Kubernetes the profile of ConfigMap {reference.name} is read from {path}: {error}"
        )
