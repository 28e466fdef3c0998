"""What is to be done about the children of a pool: desired against seen.

Level-triggered: the answer depends on what is there now alone (and on what was there before only for the
word that explains it), so doing it twice does no harm, and once it is done nothing is left to do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rolloutpool_operator.core.children import Action, ApplyChild, Child, DeleteChild, Reason, config_hash
from rolloutpool_operator.core.merging import drifted
from rolloutpool_operator.core.observed import ChildFacts

IMMUTABLE: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "StatefulSet": (("spec", "selector"), ("spec", "serviceName"), ("spec", "podManagementPolicy")),
    "Deployment": (("spec", "selector"),),
    "RoleBinding": (("roleRef",),),
    "Service": (("spec", "clusterIP"),),
}
"""Fields that the API server refuses to change, by kind: a change of one needs a new object."""

Known = Collection[tuple[str, str]]
"""Kind and name of children that were there before."""


def decide(desired: Sequence[Child], seen: Sequence[ChildFacts], *, known: Known = ()) -> tuple[Action, ...]:
    """Actions that turn what is seen into what is desired, deletions first: they free the GPUs.

    Children that are being deleted are waited for.

    Args:
        desired: what should exist.
        seen: what exists and belongs to the pool.
        known: children that were there before; one of them that is missing is restored, not new.
    """
    live = {(child.kind, child.name): child for child in seen}
    wanted = {(child.kind, child.name) for child in desired}
    deletions = [
        _delete(child, Reason.OBSOLETE)
        for key, child in live.items()
        if key not in wanted and not child.deleting
    ]
    changes = [
        action for child in desired if (action := _change(child, live.get((child.kind, child.name)), known))
    ]
    return (
        *deletions,
        *(action for action in changes if isinstance(action, DeleteChild)),
        *(action for action in changes if isinstance(action, ApplyChild)),
    )


def _change(child: Child, live: ChildFacts | None, known: Known) -> Action | None:
    if live is None:
        restored = (child.kind, child.name) in known
        return ApplyChild(child=child, reason=Reason.RESTORE if restored else Reason.CREATE)
    if live.deleting:
        return None
    if _needs_new_object(child, live.body):
        return _delete(live, Reason.RECREATE)
    if config_hash(child.body) != config_hash(live.body):
        return ApplyChild(child=child, reason=Reason.CHANGE, before=live.body)
    if drifted(child.body, live.body):
        return ApplyChild(child=child, reason=Reason.RESTORE, before=live.body)
    return None


def _needs_new_object(child: Child, live: Mapping[str, Any]) -> bool:
    for path in IMMUTABLE.get(child.kind, ()):
        wanted, found = _at(child.body, path), _at(live, path)
        if wanted is not None and drifted(wanted, found):
            return True
    return False


def _at(body: Mapping[str, Any], path: Sequence[str]) -> Any:
    value: Any = body
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _delete(child: ChildFacts, reason: Reason) -> DeleteChild:
    return DeleteChild(kind=child.kind, name=child.name, uid=child.uid, reason=reason)
