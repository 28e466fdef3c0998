"""Merging and comparing JSON objects: strategic overlays, merge patches, drift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

MERGE_KEYS: Mapping[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name",
}
"""Lists of a pod template that Kubernetes merges item by item, and an item's key; others are replaced."""

_SUFFIXES = {"m": Decimal("0.001"), "": Decimal(1)}
_SUFFIXES |= {suffix: Decimal(1000) ** power for power, suffix in enumerate(("k", "M", "G", "T", "P"), 1)}
_SUFFIXES |= {f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTP", 1)}


def strategic_merge(base: Any, overlay: Any, *, field: str = "") -> Any:
    """Lay a piece of a pod template over another as Kubernetes' strategic merge patch does.

    Objects merge; lists in `MERGE_KEYS` merge by key, others are replaced; None removes; an item with
    `$patch: delete` removes the item of its key.

    Args:
        base: what is laid over; it is left as it is.
        overlay: what wins.
        field: name of the field that holds both, which tells the key of a list.
    """
    if isinstance(base, Mapping) and isinstance(overlay, Mapping):
        return _merge_objects(base, overlay)
    key = MERGE_KEYS.get(field)
    if key and isinstance(base, list) and isinstance(overlay, list):
        return _merge_items(base, overlay, key)
    return overlay


def _merge_objects(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    if overlay.get("$patch") == "replace":
        return {name: value for name, value in overlay.items() if name != "$patch"}
    merged = dict(base)
    for name, value in overlay.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = strategic_merge(base.get(name), value, field=name)
    return merged


def _merge_items(base: Sequence[Any], overlay: Sequence[Any], key: str) -> list[Any]:
    merged = {item.get(key): item for item in base}
    for item in overlay:
        name = item.get(key)
        if item.get("$patch") == "delete":
            merged.pop(name, None)
        else:
            merged[name] = strategic_merge(merged.get(name, {}), item)
    return list(merged.values())


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON merge patch (RFC 7386) that turns `old` into `new`; empty if they are equal."""
    patch: dict[str, Any] = {name: None for name in old if name not in new}
    for name, value in new.items():
        before = old.get(name)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            if inner := merge_patch(before, value):
                patch[name] = inner
        elif before != value:
            patch[name] = value
    return patch


def drifted(desired: Any, live: Any, *, path: str = "") -> str | None:
    """Path of the first field of `desired` that `live` has otherwise ("." for the whole); None if none is.

    Fields that only `live` has (defaults, other managers') do not count, quantities compare by value, and a
    field that `live` lacks equals an empty one: the API server leaves those out.
    """
    if live is None and not desired:
        return None
    if isinstance(desired, Mapping):
        return _drifted_object(desired, live, path)
    if isinstance(desired, list):
        return _drifted_list(desired, live, path)
    return None if desired == live or _same_quantity(desired, live) else path or "."


def _drifted_object(desired: Mapping[str, Any], live: Any, path: str) -> str | None:
    if not isinstance(live, Mapping):
        return None if not desired and live is None else path or "."
    for name, value in desired.items():
        if found := drifted(value, live.get(name), path=f"{path}.{name}"):
            return found
    return None


def _drifted_list(desired: Sequence[Any], live: Any, path: str) -> str | None:
    if not isinstance(live, list) or len(live) != len(desired):
        return None if not desired and live is None else path or "."
    for index, (value, found) in enumerate(zip(desired, live, strict=True)):
        if inner := drifted(value, found, path=f"{path}[{index}]"):
            return inner
    return None


def _same_quantity(one: Any, other: Any) -> bool:
    first, second = quantity(one), quantity(other)
    return first is not None and first == second


def quantity(value: Any) -> Decimal | None:
    """The number that a Kubernetes quantity stands for (8Gi, 500m, 2); None where it is none."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Decimal(str(value))
    if not isinstance(value, str):
        return None
    number = value.rstrip("mkMGTPKi")
    try:
        return Decimal(number) * _SUFFIXES[value[len(number) :]]
    except (InvalidOperation, KeyError):
        return None
