"""A small valid RolloutPool, and ways to change one field of it."""

from __future__ import annotations

import copy
from typing import Any

Manifest = dict[str, Any]


def pool_manifest(name: str = "pool", **changes: Any) -> Manifest:
    """A valid RolloutPool as a dict.

    Args:
        name: metadata.name.
        changes: spec fields to replace; two underscores go one level down (`gpus__budget=3`), None removes.
    """
    manifest: Manifest = {
        "apiVersion": "rolloutpool.dev/v1alpha1",
        "kind": "RolloutPool",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "model": {"name": "llama"},
            "workloads": [
                {"name": "rlvr", "share": 0.5},
                {"name": "rlhf", "share": 0.3},
                {"name": "agentic", "share": 0.2, "priors": {"turns": 8, "toolGapSeconds": 2}},
            ],
            "gpus": {"budget": 4},
        },
    }
    for path, value in changes.items():
        _set(manifest["spec"], path.split("__"), copy.deepcopy(value))
    return manifest


def _set(target: Manifest, path: list[str], value: Any) -> None:
    for part in path[:-1]:
        target = target.setdefault(part, {})
    if value is None:
        target.pop(path[-1], None)
    else:
        target[path[-1]] = value
