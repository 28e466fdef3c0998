"""This project's engine model, driven through traces."""

from functools import partial

from rolloutpool_sim.engine import Engine, EngineConfig, EngineRequest, FinishedRequest
from rolloutpool_sim.profile import load_builtin
from vllm_oracle.driving import Run, Step, Summary, drive
from vllm_oracle.traces import Job, Limits, Trace, token


class ModelEngine:
    """`rolloutpool_sim.engine.Engine` as `drive` uses it; its profile only sets times, which play no part."""

    def __init__(self, limits: Limits) -> None:
        self.engine = Engine(
            EngineConfig(
                num_blocks=limits.num_blocks,
                block_size=limits.block_size,
                max_num_seqs=limits.max_num_seqs,
                max_num_batched_tokens=limits.max_num_batched_tokens,
                max_model_len=limits.max_model_len,
                enable_prefix_caching=limits.enable_prefix_caching,
            ),
            load_builtin("emulated-8b-h100").at(1),
        )
        self._held: dict[str, int] = {}
        self._ended: dict[str, FinishedRequest] = {}

    def add(self, job: Job, number: int) -> None:
        """Queue a job."""
        self.engine.add(
            EngineRequest(
                request_id=job.job_id,
                prompt=job.prompt_tokens(),
                max_tokens=job.output_tokens,
                next_token=partial(token, job.output_stream),
                cache_salt=job.salt,
            ),
            float(number),
        )

    def abort(self, job_id: str, number: int) -> None:
        """End a job."""
        self._note(self.engine.abort([job_id], float(number)))

    def step(self, number: int) -> Step:
        """Run one step."""
        evicted = self.engine.pool.evicted
        result = self.engine.step(float(number))
        for job_id in result.preempted:
            self._held.pop(job_id, None)
        self._note(result.finished)
        return Step(
            number=number,
            scheduled=result.scheduled,
            preempted=list(result.preempted),
            finished=[end.request_id for end in result.finished],
            evicted=self.engine.pool.evicted - evicted,
            free=self.engine.pool.free_blocks,
            new_blocks={job_id: new for job_id in result.scheduled if (new := self._new_blocks(job_id))},
        )

    def summary(self) -> Summary:
        """Totals of the run."""
        return Summary(
            cached={job_id: end.cached_tokens for job_id, end in self._ended.items()},
            preempted={job_id: end.preemptions for job_id, end in self._ended.items() if end.preemptions},
            prefix_queries=self.engine.counters.prefix_cache_queries,
            prefix_hits=self.engine.counters.prefix_cache_hits,
            blocks_stored=self.engine.pool.stored,
            blocks_evicted=self.engine.pool.evicted,
            eviction_order=list(self.engine.pool.eviction_order()),
        )

    def _new_blocks(self, job_id: str) -> list[int]:
        table = self.engine.block_table(job_id)
        new = list(table[self._held.get(job_id, 0) :])
        self._held[job_id] = len(table)
        return new

    def _note(self, ended: tuple[FinishedRequest, ...]) -> None:
        for end in ended:
            self._ended[end.request_id] = end
            self._held.pop(end.request_id, None)


def run_model(trace: Trace) -> Run:
    """Run a trace through the engine model."""
    return drive(trace, ModelEngine(trace.limits))
