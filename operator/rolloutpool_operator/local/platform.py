"""The Platform of a local pool: facts from processes and files, actions on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from rolloutpool_api import labels
from rolloutpool_api.planning import Role
from rolloutpool_api.status import PlanGroup
from rolloutpool_api.v1alpha1 import RolloutPool
from rolloutpool_operator.core.children import Action, ApplyChild, Child
from rolloutpool_operator.core.engine_args import engine_revision
from rolloutpool_operator.core.observed import (
    EngineFacts,
    NodeFacts,
    Observed,
    PoolKey,
    ProfileFacts,
    RouterFacts,
    read_pool,
)
from rolloutpool_operator.local import children
from rolloutpool_operator.local.events import EventRecord
from rolloutpool_operator.local.folder import TOKEN_FILE
from rolloutpool_operator.local.options import GivenEngine, LocalOptions
from rolloutpool_operator.local.ports import LOOPBACK, PortBook
from rolloutpool_operator.local.probes import Prober
from rolloutpool_operator.local.processes import Exit
from rolloutpool_operator.local.profiles import profile_beside
from rolloutpool_operator.local.sets import ProcessSets
from rolloutpool_operator.local.store import PoolStore
from rolloutpool_operator.local.supervisor import Running, Supervisor
from rolloutpool_operator.platform import Outcome, PoolGone, Report, StatusConflict

NODE = "localhost"
STARTING, EXITED, UNREACHABLE = "Starting", "Exited", "Unreachable"
ENGINE_EXITED, ROUTER_EXITED = "EngineExited", "RouterExited"


class Listener(Protocol):
    """Who wants to know what happens."""

    def status_changed(self, body: Mapping[str, Any]) -> None:
        """The object has a new status."""

    def event(self, record: EventRecord) -> None:
        """Something happened."""


class LocalPlatform:
    """One pool, its processes and its files."""

    def __init__(
        self, options: LocalOptions, store: PoolStore, *, listener: Listener, mark_dirty: Callable[[], None]
    ) -> None:
        """Stand between the operator's core and this machine.

        Args:
            options: what the run was asked to do.
            store: keeps the object.
            listener: told of every status and event.
            mark_dirty: called when something changed that the operator should look at.
        """
        self._options = options
        self._store = store
        self._listener = listener
        self._mark_dirty = mark_dirty
        metadata = store.body["metadata"]
        self.key = PoolKey(metadata["namespace"], metadata["name"])
        self._ports = PortBook()
        self.supervisor = Supervisor(
            options.folder / "logs", on_change=self._process_changed, on_exit=self._process_exited
        )
        self.prober = Prober(self._probe_targets, on_change=mark_dirty)
        self._sets = ProcessSets(self.supervisor, is_ready=self.prober.ready)

    async def gather(self, key: PoolKey) -> Observed | None:
        """Facts of the pool; None for any other."""
        if key != self.key:
            return None
        self._sets.sync()
        body = self._store.body
        pool, invalid = read_pool(body)
        pool = _with_one_router(pool) if pool else None
        return Observed(
            key=key,
            body=body,
            pool=pool,
            invalid=invalid,
            nodes=(_node(pool),) if pool else (),
            children=self._sets.facts(),
            engines=self._given_engines(pool) if self._options.engines else self._engines(),
            routers=self._routers(),
            profile=profile_beside(self._options.manifest, pool.spec) if pool else ProfileFacts(),
            router_url=f"http://{LOOPBACK}:{self._options.router_port}",
            weights_url=self._weights_url(pool),
        )

    def build(self, observed: Observed, groups: Sequence[PlanGroup]) -> tuple[Child, ...]:
        """The sets of processes that the pool should have."""
        if observed.pool is None:
            return ()
        return children.build_children(
            observed.pool,
            () if self._options.engines else groups,
            python=self._options.python,
            pool_file=self._store.pool_file,
            token_file=self._options.folder / TOKEN_FILE,
            port_of=self._port_of,
        )

    async def apply(self, observed: Observed, actions: Sequence[Action]) -> Outcome:
        """Start, replace and end processes."""
        for action in actions:
            if isinstance(action, ApplyChild):
                self._sets.apply(action.child)
            else:
                self._sets.delete(action.kind, action.name, action.uid)
        self._sets.sync()
        return Outcome(done=tuple(actions))

    async def report(self, report: Report) -> str:
        """Write status and events.

        Raises:
            PoolGone: another pool.
            StatusConflict: the object changed since it was observed.
        """
        if report.key != self.key:
            raise PoolGone(str(report.key))
        if report.resource_version != self._store.resource_version:
            raise StatusConflict(str(report.key))
        version = self._store.patch_status(report.patch) if report.patch else report.resource_version
        for event in report.events:
            self.note(event.type, event.reason, event.message)
        if report.patch:
            self._listener.status_changed(self._store.body)
        return version

    def note(self, type_: str, reason: str, message: str) -> None:
        """Keep an event and tell the listener."""
        self._listener.event(self._store.add_event(type_, reason, message))

    def _engines(self) -> tuple[EngineFacts, ...]:
        return tuple(self._engine(running) for running in self._sets.running(children.ENGINES))

    def _engine(self, running: Running) -> EngineFacts:
        spec = running.spec
        reason, message = self._trouble(running)
        return EngineFacts(
            name=spec.name,
            group=spec.labels[labels.GROUP_NAME],
            role=Role(spec.labels[labels.ROLE]),
            ready=not reason,
            revision=spec.labels[labels.REVISION],
            url=spec.url,
            scrape_url=spec.url,
            kv_ports=spec.kv_ports,
            reason=reason,
            message=message,
        )

    def _given_engines(self, pool: RolloutPool | None) -> tuple[EngineFacts, ...]:
        return tuple(self._given_engine(pool, name, engine) for name, engine in self._given().items())

    def _given_engine(self, pool: RolloutPool | None, name: str, engine: GivenEngine) -> EngineFacts:
        is_ready = self.prober.ready(name)
        why_not = UNREACHABLE if self.prober.silent(name) else STARTING
        return EngineFacts(
            name=name,
            group=labels.group_name(engine.role, 1, 1),
            role=engine.role,
            ready=is_ready,
            revision=engine_revision(pool.spec) if pool else "",
            url=engine.url,
            scrape_url=engine.url,
            reason="" if is_ready else why_not,
            message="" if is_ready else f"{engine.url}/v1/models does not answer 200",
        )

    def _given(self) -> dict[str, GivenEngine]:
        """The given engines by the names that the plan's replicas would have."""
        count: dict[Role, int] = {}
        named = {}
        for engine in self._options.engines:
            ordinal = count.setdefault(engine.role, 0)
            count[engine.role] += 1
            group = labels.group_name(engine.role, 1, 1)
            named[f"{labels.engine_set_name(self.key.name, group)}-{ordinal}"] = engine
        return named

    def _routers(self) -> tuple[RouterFacts, ...]:
        return tuple(self._router(running) for running in self._sets.running(children.ROUTER))

    def _router(self, running: Running) -> RouterFacts:
        reason, message = self._trouble(running)
        return RouterFacts(
            name=running.spec.name, ready=not reason, url=running.spec.url, reason=reason, message=message
        )

    def _trouble(self, running: Running) -> tuple[str, str]:
        """Reason and message of a process that is not ready; empty for one that is."""
        spec, end = running.spec, running.process.last_exit
        if self.prober.ready(spec.name):
            return "", ""
        if running.process.pid is None and end is not None:
            return EXITED, end.cause
        return STARTING, f"{spec.ready_url} does not answer 200 yet; log: {running.process.log}"

    def _probe_targets(self) -> dict[str, str]:
        running = {
            item.spec.name: item.spec.ready_url
            for item in self.supervisor.all()
            if item.process.pid is not None and not item.deleting
        }
        return running | {name: f"{engine.url}/v1/models" for name, engine in self._given().items()}

    def _port_of(self, name: str) -> int:
        if name == labels.router_name(self.key.name):
            return self._options.router_port
        if name == children.weights_name(self.key.name) and self._options.weights_port:
            return self._options.weights_port
        return self._ports.port_of(name)

    def _weights_url(self, pool: RolloutPool | None) -> str:
        if pool is None or not pool.spec.engine.rl.enabled:
            return ""
        return f"http://{LOOPBACK}:{self._port_of(children.weights_name(self.key.name))}"

    def _process_changed(self, name: str) -> None:
        self.prober.forget(name)
        self._mark_dirty()

    def _process_exited(self, end: Exit) -> None:
        self.prober.forget(end.name)
        reason = ROUTER_EXITED if self._sets.kind_of(end.name) == children.ROUTER else ENGINE_EXITED
        self.note("Warning", reason, f"{end.name} ended and is started again: {end.cause}")
        self._mark_dirty()


def _with_one_router(pool: RolloutPool) -> RolloutPool:
    """One router is all that a local pool has: there is no other machine that it could outlive."""
    router = pool.spec.router.model_copy(update={"replicas": 1})
    return pool.model_copy(update={"spec": pool.spec.model_copy(update={"router": router})})


def _node(pool: RolloutPool) -> NodeFacts:
    """This machine as a node that has what the pool asks for: emulated GPUs cost nothing."""
    gpus = pool.spec.gpus
    return NodeFacts(
        name=NODE,
        gpus_allocatable=gpus.budget,
        gpus_free=gpus.budget,
        product=gpus.product or "",
        labels={**gpus.node_selector, **({labels.GPU_PRODUCT: gpus.product} if gpus.product else {})},
    )
