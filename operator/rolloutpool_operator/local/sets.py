"""The sets of processes that exist, and what keeps their processes as the sets say: as StatefulSets do it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rolloutpool_operator.core.children import Child
from rolloutpool_operator.core.observed import ChildFacts
from rolloutpool_operator.local.children import ENGINES, ProcessSpec, processes_of
from rolloutpool_operator.local.supervisor import Running, Supervisor


@dataclass
class _Set:
    kind: str
    name: str
    uid: str
    body: Mapping[str, Any]
    names: set[str]
    """Processes that were made for it and may still be there."""
    deleting: bool = False


class ProcessSets:
    """All sets of one pool."""

    def __init__(self, supervisor: Supervisor, *, is_ready: Callable[[str], bool]) -> None:
        """Keep no set yet.

        Args:
            supervisor: runs the processes.
            is_ready: whether the process of a name serves.
        """
        self._supervisor = supervisor
        self._is_ready = is_ready
        self._sets: dict[tuple[str, str], _Set] = {}

    def facts(self) -> tuple[ChildFacts, ...]:
        """Every set as the operator sees it."""
        return tuple(
            ChildFacts(kind=item.kind, name=item.name, uid=item.uid, body=item.body, deleting=item.deleting)
            for item in self._sets.values()
        )

    def running(self, kind: str) -> tuple[Running, ...]:
        """Processes of the sets of a kind that are wanted, in the order of the sets."""
        names = [
            spec.name
            for item in self._sets.values()
            if item.kind == kind and not item.deleting
            for spec in processes_of(item.body)
        ]
        found = [self._supervisor.find(name) for name in names]
        return tuple(running for running in found if running is not None and not running.deleting)

    def kind_of(self, process: str) -> str:
        """Kind of the set that a process was made for; empty if there is none any more."""
        return next((item.kind for item in self._sets.values() if process in item.names), "")

    def apply(self, child: Child) -> None:
        """Make or change a set; its processes follow with `sync`."""
        known = self._sets.get((child.kind, child.name))
        if known is not None:
            known.body = child.body
        else:
            self._sets[child.kind, child.name] = _Set(
                kind=child.kind, name=child.name, uid=str(uuid.uuid4()), body=child.body, names=set()
            )

    def delete(self, kind: str, name: str, uid: str) -> None:
        """Begin to delete a set, if it is still the same one; it is there until its processes are gone."""
        known = self._sets.get((kind, name))
        if known is not None and known.uid == uid:
            known.deleting = True

    def sync(self) -> None:
        """Bring the processes closer to their sets; due after a change of a set or a process."""
        for key, item in list(self._sets.items()):
            wanted = {} if item.deleting else {spec.name: spec for spec in processes_of(item.body)}
            item.names = {name for name in item.names if self._supervisor.find(name)} | set(wanted)
            for name in item.names - set(wanted):
                self._supervisor.delete(name)
            for spec in wanted.values():
                if item.kind != ENGINES or self._may_apply(spec):
                    self._supervisor.apply(spec)
            if item.deleting and not item.names:
                del self._sets[key]

    def _may_apply(self, spec: ProcessSpec) -> bool:
        """Whether an engine may be started or replaced now: engines that serve are replaced one by one."""
        running = self._supervisor.find(spec.name)
        if running is None or running.spec.command == spec.command or not self._is_ready(spec.name):
            return True
        others = {other.spec.name for other in self.running(ENGINES)} - {spec.name}
        return all(self._is_ready(name) for name in others)
