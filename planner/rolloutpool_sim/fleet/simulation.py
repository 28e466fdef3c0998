"""The event loop of a run: a heap of things to happen on the virtual clock.

A sample is submitted, arrives at its router and waits or enters; its engine answers a turn; a tool gap
passes; the next turn arrives; and so on to its end, which the trainer answers with new samples. Beside that
the operator looks every few seconds, and once a second everything is looked at.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rolloutpool_router.core.outcomes import Refusal
from rolloutpool_router.core.requests import Entered
from rolloutpool_router.core.sessions import Usage
from rolloutpool_sim.engine import FinishedRequest
from rolloutpool_sim.fleet.control_loop import ControlLoop
from rolloutpool_sim.fleet.engines import Engines
from rolloutpool_sim.fleet.gate import SessionGate
from rolloutpool_sim.fleet.measures import FleetTotals, Measures
from rolloutpool_sim.fleet.opened import OpenSample
from rolloutpool_sim.fleet.oracle import Oracle
from rolloutpool_sim.fleet.pool import pool_object, pool_spec
from rolloutpool_sim.fleet.program_gate import ProgramScheduler
from rolloutpool_sim.fleet.residency import Residency
from rolloutpool_sim.fleet.result import FleetResult
from rolloutpool_sim.fleet.routers import Routers
from rolloutpool_sim.fleet.sampling import ClassSource, Sample
from rolloutpool_sim.fleet.scenario import Gate
from rolloutpool_sim.fleet.timeline import Timeline
from rolloutpool_sim.fleet.trainer import Order, Trainer

if TYPE_CHECKING:
    from rolloutpool_api.v1alpha1 import RolloutPool
    from rolloutpool_sim.fleet.events import Event
    from rolloutpool_sim.fleet.sampling import Randoms
    from rolloutpool_sim.fleet.scenario import Scenario

LOOK_SECONDS = 1.0
"""Time between two looks at everything: sessions expire, engines come back, blocks are counted."""
TELL_SECONDS = 30.0
"""Time between two tellings of the oracle, since the engines' pace changes; shifts are told at once."""
RETRY_SECONDS = 1.0
"""How long a client waits before it repeats a failed request, in seconds."""


class Simulation:
    """One run of a scenario."""

    def __init__(self, scenario: Scenario, *, randoms: Randoms, seed: int) -> None:
        """Set everything up at time 0.

        Args:
            scenario: what to run.
            randoms: makes generators by name, from the seed.
            seed: for the record.
        """
        fleet = scenario.fleet
        self._scenario, self._seed = scenario, seed
        self.now = 0.0
        self._heap: list[tuple[float, bool, int, Callable[[Any], None], Any]] = []
        self._pushed = 0
        self._spec = pool_spec(scenario, randoms)
        self.engines = Engines(scenario)
        self._due: dict[str, float | None] = dict.fromkeys(self.engines.names)
        self.routers = Routers([randoms(f"router/{index}") for index in range(fleet.routers)])
        self.gate: SessionGate = self.routers
        if scenario.gate is Gate.PROGRAM:
            tokens = self.engines.capacity_blocks * fleet.block_size
            self.gate = ProgramScheduler(scenario.program_gate, self.engines.names, tokens)
        self._loop = ControlLoop(scenario.operator, self._spec, self.engines)
        self.oracle = Oracle(scenario, randoms) if scenario.oracle else None
        """Knows the classes, where the scenario has one."""
        self.trainer = Trainer(scenario)
        self._sources = {
            workload.name: ClassSource(workload, max_model_len=fleet.max_model_len, randoms=randoms)
            for workload in scenario.workloads
        }
        self._growth = dict.fromkeys(self._sources, 0.0)
        self.open: dict[str, OpenSample] = {}
        """Samples under way, by session."""
        self._waiting_since: dict[str, float] = {}
        self._resting: dict[str, OpenSample] = {}
        """Those in a tool gap, as far as they are resident."""
        shares = {workload.name: workload.share for workload in scenario.workloads}
        self._shares = shares
        self.measures = Measures(shares, began=0.0, totals=FleetTotals())
        self._timeline = Timeline(shares, scenario.seconds)
        self.residency = Residency()

    def run(self, progress: Callable[[float], None] | None = None) -> FleetResult:
        """Run to the end; `progress` is told the part done, 0 to 1, now and then."""
        self._start()
        end, told = self._scenario.seconds, 0.0
        while self._heap and self._heap[0][0] <= end and not self.trainer.done:
            self.now, _, _, handle, about = heapq.heappop(self._heap)
            handle(about)
            if progress is not None and self.now - told >= end / 100:
                told = self.now
                progress(self.now / end)
        if not self.trainer.done:
            self.now = end
        return self._result()

    def _start(self) -> None:
        """Everything that happens by itself is put on the heap."""
        scenario = self._scenario
        if scenario.warmup_seconds > 0:
            self._at(scenario.warmup_seconds, self._end_warmup, None)
        self._at(LOOK_SECONDS, self._look, None)
        if self.gate is self.routers:
            names = self.engines.names
            self._apply(pool_object(self._spec, engines=names, ready=[True] * len(names)))
            self._at(self._loop.period, self._operate, None)
            if self.oracle is not None:
                self._at(0.0, self._tell, None)
        for event in scenario.events:
            self._at(event.at, self._happen, event)
        self._submit(self.trainer.start())

    def _at(self, when: float, handle: Callable[[Any], None], about: Any, *, last: bool = False) -> None:
        """Something will happen; `last`: after all else at that time."""
        self._pushed += 1
        heapq.heappush(self._heap, (when, last, self._pushed, handle, about))

    # The life of a sample.

    def _submit(self, orders: list[Order]) -> None:
        for order in orders:
            source = self._sources[order.class_name]
            for _ in range(order.groups):
                for sample in source.next_group():
                    self._open(sample)

    def _open(self, sample: Sample) -> None:
        opened = OpenSample(sample, self.now, self._scenario.fleet.block_size, counted_to=self.now)
        self.open[sample.name] = opened
        self._arrive(opened)

    def _arrive(self, opened: OpenSample) -> None:
        """A turn comes to its router."""
        name = opened.sample.name
        self._resting.pop(name, None)
        if not self.gate.is_resident(name):
            self.residency.leave(opened, self.now)
            self._waiting_since.setdefault(name, self.now)
        self._go(opened, self.gate.arrive(opened, self.now))

    def _go(self, opened: OpenSample, answer: list[Entered] | Refusal) -> None:
        if isinstance(answer, Refusal):
            self._at(self.now + max(1.0, answer.retry_after_seconds), self._arrive, opened)
        else:
            self._dispatch(answer)

    def _dispatch(self, entered: list[Entered]) -> None:
        """Turns go to their engines."""
        for entry in entered:
            opened = self.open[entry.session]
            if not self.engines.is_up(entry.engine):
                self.gate.engine_failed(entry.session, entry.engine, self.now)
                other = self.gate.reroute(entry.session, self.now)
                if isinstance(other, Refusal):
                    self.gate.end_turn(entry.session, self.now, usage=None)
                self._go(opened, other)
                continue
            since = self._waiting_since.pop(entry.session, None)
            if since is not None:
                self.measures.entered(opened, self.now - since, first=opened.entered_at is None)
            if opened.entered_at is None:
                opened.entered_at = self.now
            self.residency.enter(opened, entry.engine, self.now)
            turn = opened.next_turn
            own = opened.history_tokens + turn.added_tokens + turn.output_tokens / 2
            self.residency.resize(opened, own, self.now)
            opened.in_flight = True
            self.engines.add(entry.engine, opened.request(), self.now)
            self._schedule(entry.engine)

    def _schedule(self, engine: str) -> None:
        """See to it that an engine is looked at when it has something to tell."""
        due = self.engines.next_event(engine)
        if due is not None and due != self._due[engine]:
            # Last, so that a step that begins then sees every request that has come by then.
            self._at(due, self._advance, engine, last=True)
        self._due[engine] = due

    def _advance(self, engine: str) -> None:
        if self._due[engine] != self.now:
            return
        self._due[engine] = None
        finished = self.engines.advance(engine, self.now)
        self._schedule(engine)
        for request in finished:
            self._answered(self.open[request.request_id], request)

    def _answered(self, opened: OpenSample, finished: FinishedRequest) -> None:
        """A turn was answered: the next one comes after a tool gap, or the sample has completed."""
        name = opened.sample.name
        opened.in_flight = False
        self.measures.answered(opened, finished)
        usage = Usage(
            finished.prompt_tokens, finished.output_tokens, finished.cached_tokens + finished.remote_tokens
        )
        self.gate.end_turn(name, self.now, usage=usage)
        if self.oracle is not None:
            self.oracle.answered(finished)
        more = opened.end_turn()
        self.residency.resize(opened, opened.history_tokens, self.now)
        if more:
            self._resting[name] = opened
            self._at(self.now + opened.next_turn.gap_seconds, self._arrive, opened)
            self._dispatch(self.gate.admit(name, self.now))
            return
        self.gate.finish(name, self.now)
        self._complete(opened)

    def _complete(self, opened: OpenSample) -> None:
        sample = opened.sample
        self.residency.leave(opened, self.now)
        del self.open[sample.name]
        self.measures.completed(opened)
        self._timeline.completed(sample.class_name)
        orders, iterated = self.trainer.completed(sample.class_name, self.now)
        if iterated:
            self._grow()
        self._dispatch(self.gate.admit(sample.name, self.now))
        self.gate.forget(sample.name)
        self._submit(orders)

    # What happens by itself.

    def _look(self, _: None) -> None:
        """Once a second."""
        self._at(self.now + LOOK_SECONDS, self._look, None)
        self._dispatch(self.gate.tick(self.now))
        self._note_parked()
        used = self.engines.used_fraction()
        capacity = self.engines.capacity_blocks * len(self.engines.names)
        resident = self.residency.blocks / capacity
        self.measures.look(used=used, resident=resident)
        if self._timeline.look(used=used, resident=resident):
            self._timeline.point(self.now, self.gate, self.engines.totals())

    def _note_parked(self) -> None:
        """Sessions whose place was taken in their tool gap are resident no more."""
        for name in [name for name in self._resting if not self.gate.is_resident(name)]:
            self.residency.leave(self._resting.pop(name), self.now)

    def _operate(self, _: None) -> None:
        """The operator looks at routers and engines."""
        self._at(self.now + self._loop.period, self._operate, None)
        pool = self._written()
        if pool is not None:
            self._at(self.now + self._loop.delay, self._apply, pool)

    def _written(self) -> RolloutPool | None:
        """The object that the operator writes after a look now, if any."""
        if not self._loop.works(self.now):
            return None
        return self._loop.look(self.routers.snapshots(self.now), self.engines.readings(), self.now)

    def _tell(self, _: None) -> None:
        """The oracle tells what it knows, again and again."""
        self._at(self.now + TELL_SECONDS, self._tell, None)
        self._tell_now()

    def _tell_now(self) -> None:
        """The oracle tells the routers, and the operator follows without a delay."""
        if self.oracle is None or self.gate is not self.routers:
            return
        self.routers.tell(self.oracle.estimators(self.now), self.now)
        pool = self._written()
        if pool is not None:
            self._apply(pool)

    def _changed(self, class_name: str) -> None:
        """A class's sessions look different from now on."""
        if self.oracle is not None:
            self.oracle.changed(self._sources[class_name])
            self._tell_now()

    def _grow(self) -> None:
        """An iteration is over: outputs of some classes grow."""
        for class_name, growth in self._growth.items():
            if growth:
                self._sources[class_name].grow_outputs(1 + growth)
                self._changed(class_name)

    def _apply(self, pool: RolloutPool) -> None:
        """The routers read the object."""
        capacities = dict.fromkeys(self.engines.names, self.engines.capacity_blocks)
        self._dispatch(self.routers.apply(pool, capacities, self.now))

    def _end_warmup(self, _: None) -> None:
        self.measures = Measures(self._shares, began=self.now, totals=self.engines.totals())

    def _happen(self, event: Event) -> None:
        if event.workload is not None:
            self._sources[event.workload.class_name].change(event.workload.replace)
            self._changed(event.workload.class_name)
        elif event.output_growth is not None:
            growth = event.output_growth
            self._growth[growth.class_name] = growth.percent_per_iteration / 100
        elif event.class_silent is not None:
            silent = event.class_silent
            self.trainer.silence(silent.class_name)
            self._at(self.now + silent.for_seconds, self._unsilence, silent.class_name)
        elif event.burst is not None:
            self._submit(self.trainer.burst(event.burst.class_name, event.burst.samples))
        elif event.engine_lost is not None:
            self._lose(self.engines.name(event.engine_lost))
        elif event.engine_back is not None:
            self.engines.bring_back(self.engines.name(event.engine_back))

    def _unsilence(self, class_name: str) -> None:
        self._submit(self.trainer.unsilence(class_name))

    def _lose(self, engine: str) -> None:
        """An engine dies: its requests fail and are repeated by their clients."""
        if not self.engines.is_up(engine):
            return
        self.engines.lose(engine)
        self._due[engine] = None
        lost = [opened for opened in self.open.values() if opened.in_flight and opened.engine == engine]
        for opened in lost:
            opened.in_flight = False
            self.measures.failed_turns += 1
            self.gate.end_turn(opened.sample.name, self.now, usage=None)
            self._at(self.now + RETRY_SECONDS, self._arrive, opened)
        for opened in lost:
            self._dispatch(self.gate.admit(opened.sample.name, self.now))

    def _result(self) -> FleetResult:
        measures = self.measures
        for name, since in self._waiting_since.items():
            measures.waits_still(self.open[name].sample.class_name, self.now - since)
        seconds = max(self.now - measures.began, 1e-9)
        submitted = self.trainer.submitted
        classes = {
            name: found.result(submitted=submitted[name], seconds=seconds)
            for name, found in measures.classes.items()
        }
        engines = measures.since(self.engines.totals())
        return FleetResult(
            scenario=self._scenario.name,
            seed=self._seed,
            seconds=seconds,
            classes=classes,
            samples_per_minute=sum(found.per_minute for found in classes.values()),
            in_mixture_per_minute=min(
                found.per_minute / self._shares[name] for name, found in classes.items()
            ),
            drift_max=measures.drift.worst,
            drift_end=measures.drift.now,
            drift_total=measures.drift.overall,
            prefix_hit_rate=engines.hit_rate,
            recomputed_tokens=engines.recomputed,
            loaded_tokens=engines.loaded,
            evicted_history_tokens=measures.evicted_history_tokens,
            preemptions=engines.preemptions,
            used_fraction=measures.used_fraction,
            resident_fraction=measures.resident_fraction,
            failed_turns=measures.failed_turns,
            open_at_end=len(self.open),
            iterations=tuple(self.trainer.iterations),
            series=self._timeline.series(),
        )
