"""Shapes of traces, ordinary and adversarial; each makes a different trace of each seed, always the same."""

import random
from collections.abc import Callable
from dataclasses import replace

from vllm_oracle.loads import conversations, groups, limits_for
from vllm_oracle.traces import Job, Limits, Segment, Trace

Shape = Callable[[random.Random], tuple[Limits, list[Job]]]


def make(shape: str, seed: int) -> Trace:
    """The trace of a shape (a key of `SHAPES`) and a seed."""
    limits, jobs = SHAPES[shape](random.Random(f"{shape} {seed}"))
    return Trace(name=f"{shape}-{seed}", limits=limits, jobs=tuple(jobs))


def _sessions(rng: random.Random) -> tuple[Limits, list[Job]]:
    jobs = conversations(rng, sessions=12)
    return limits_for(jobs, sequences=rng.uniform(1.5, 3), max_num_seqs=8, budget=64), jobs


def _groups(rng: random.Random) -> tuple[Limits, list[Job]]:
    jobs = groups(rng, prompts=5, samples=8)
    return limits_for(jobs, sequences=rng.uniform(2, 4)), jobs


def _groups_mid_prefill(rng: random.Random) -> tuple[Limits, list[Job]]:
    """The first sample of a prompt is still being computed, chunk by chunk, as the others come."""
    jobs = groups(rng, prompts=4, samples=6, prompt=(100, 300), answer=(1, 30), every=3)
    return limits_for(jobs, sequences=3, budget=rng.choice([24, 40, 100])), jobs


def _long_prompts(rng: random.Random) -> tuple[Limits, list[Job]]:
    jobs = conversations(rng, sessions=10, turns=(1, 3), prompt=(100, 400), answer=(1, 15))
    return limits_for(
        jobs, block_size=8, sequences=1.5, max_num_seqs=6, budget=rng.choice([17, 24, 48])
    ), jobs


def _preempted_mid_prefill(rng: random.Random) -> tuple[Limits, list[Job]]:
    """Long prompts in small chunks, last in the batch, behind answers that grow into their blocks."""
    growing = conversations(
        rng, sessions=6, turns=(1, 1), shared=0, prompt=(1, 15), answer=(150, 250), spread=2, name="a"
    )
    long = conversations(
        rng, sessions=8, turns=(1, 2), shared=50, prompt=(150, 280), answer=(1, 20), spread=200, name="p"
    )
    jobs = [*growing, *long]
    return limits_for(jobs, sequences=rng.uniform(1.5, 2.5), max_num_seqs=10, budget=16), jobs


def _burst(rng: random.Random) -> tuple[Limits, list[Job]]:
    jobs = conversations(rng, sessions=60, turns=(1, 1), spread=0, prompt=(1, 150), answer=(1, 40))
    return limits_for(jobs, sequences=rng.uniform(2, 6), max_num_seqs=32, budget=256), jobs


def _waves(rng: random.Random) -> tuple[Limits, list[Job]]:
    """Bursts of one class after bursts of another: each finds the cache as the other has left it."""
    jobs: list[Job] = []
    for wave in range(6):
        start = wave * rng.randint(20, 50)
        for index in range(8):
            long = wave % 2 == 0
            jobs.append(
                Job(
                    job_id=f"w{wave}.{index}",
                    prompt=((1 + wave % 2, 64), (100 + index, rng.randint(120, 160) if long else 16)),
                    output_tokens=rng.randint(5, 10) if long else rng.randint(40, 60),
                    output_stream=1000 + wave * 100 + index,
                    at=start,
                )
            )
    return limits_for(jobs, sequences=3, max_num_seqs=16, budget=128), jobs


def _thrash(rng: random.Random) -> tuple[Limits, list[Job]]:
    """Short prompts and long answers: all are admitted, none has room to end, preemptions cascade."""
    jobs = conversations(
        rng, sessions=12, turns=(1, 2), shared=0, prompt=(1, 20), answer=(60, 150), spread=4, gap=(0, 3)
    )
    return limits_for(jobs, sequences=rng.uniform(1, 2.5), max_num_seqs=16), jobs


def _one_fits(rng: random.Random) -> tuple[Limits, list[Job]]:
    """The cache holds the longest request and not a block more."""
    jobs = conversations(rng, sessions=6, turns=(1, 3), prompt=(5, 60), answer=(10, 60), spread=10)
    return limits_for(jobs, sequences=1, max_num_seqs=8, budget=rng.choice([8, 32, 512])), jobs


def _no_caching(rng: random.Random) -> tuple[Limits, list[Job]]:
    jobs = conversations(rng, sessions=15, answer=(10, 80), spread=20)
    return limits_for(jobs, sequences=rng.uniform(1, 3), max_num_seqs=12, budget=100, caching=False), jobs


def _no_caching_groups(rng: random.Random) -> tuple[Limits, list[Job]]:
    jobs = groups(rng, prompts=4, samples=8)
    return limits_for(jobs, sequences=2, caching=False), jobs


def _least_budget(rng: random.Random) -> tuple[Limits, list[Job]]:
    """As many tokens a step as sequences: decodes leave prefills next to nothing."""
    jobs = conversations(rng, sessions=6, turns=(1, 2), shared=16, prompt=(3, 40), answer=(5, 30), spread=20)
    return limits_for(jobs, max_num_seqs=rng.choice([1, 2, 3, 5]), budget=1), jobs


def _huge_budget(rng: random.Random) -> tuple[Limits, list[Job]]:
    jobs = conversations(rng, sessions=30, prompt=(50, 500), answer=(1, 40), spread=10)
    return limits_for(jobs, sequences=4, max_num_seqs=256, budget=1 << 20), jobs


def _few_sequences(rng: random.Random) -> tuple[Limits, list[Job]]:
    jobs = conversations(rng, sessions=12, spread=10)
    return limits_for(jobs, sequences=3, max_num_seqs=rng.choice([1, 2, 3]), budget=64), jobs


def _block_sizes(rng: random.Random) -> tuple[Limits, list[Job]]:
    jobs = conversations(rng, sessions=10, prompt=(1, 70), spread=20)
    size = rng.choice([1, 2, 4, 32, 64, 128])
    return limits_for(jobs, block_size=size, sequences=2, max_num_seqs=12, budget=96), jobs


def _block_edges(rng: random.Random) -> tuple[Limits, list[Job]]:
    """Prompts and answers that end on, one before or one after a block's end, and twins of them."""
    jobs: list[Job] = []
    for index in range(40):
        length = 16 * rng.randint(1, 5) + rng.choice([-1, 0, 1])
        stream = rng.randint(1, 3)
        jobs.append(
            Job(
                job_id=f"e{index}",
                prompt=((stream, length),),
                output_tokens=16 * rng.randint(0, 3) + rng.choice([1, 2, 16, 17]),
                output_stream=rng.choice([stream, 100 + index]),
                at=rng.randint(0, 60),
            )
        )
    return limits_for(jobs, sequences=rng.uniform(1.2, 3), max_num_seqs=10, budget=64), jobs


def _least_requests(rng: random.Random) -> tuple[Limits, list[Job]]:
    """Prompts of a token or two, answers of one."""
    jobs = conversations(
        rng, sessions=60, turns=(1, 3), shared=0, prompt=(1, 2), answer=(1, 2), gap=(0, 1), spread=10
    )
    return limits_for(jobs, block_size=rng.choice([1, 4, 16]), sequences=8, max_num_seqs=16, budget=20), jobs


def _cut_at_model_length(rng: random.Random) -> tuple[Limits, list[Job]]:
    """Answers that would run past the model's length."""
    jobs = conversations(rng, sessions=12, turns=(1, 1), prompt=(10, 60), answer=(200, 400), spread=20)
    limits = limits_for(jobs, sequences=1)
    length = rng.randint(101, 180)
    blocks = 1 + -(-length // 16) * rng.choice([1, 2, 3])
    return Limits(
        num_blocks=blocks,
        block_size=16,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_model_len=length,
    ), jobs


def _forks(rng: random.Random) -> tuple[Limits, list[Job]]:
    """Prompts that share prefixes of all lengths, on and between the ends of blocks, as in tree search."""
    prompts: list[tuple[Segment, ...]] = [((1, 50),)]
    jobs: list[Job] = []
    for index in range(45):
        parent = rng.choice(prompts)
        stream, length = parent[-1]
        prompt = (*parent[:-1], (stream, rng.randint(1, length)), (100 + index, rng.randint(1, 60)))
        if sum(tokens for _, tokens in prompt) < 300:
            prompts.append(prompt)
            jobs.append(
                Job(
                    job_id=f"f{index}",
                    prompt=prompt,
                    output_tokens=rng.randint(1, 30),
                    output_stream=1000 + index,
                    at=rng.randint(0, 120),
                )
            )
    return limits_for(jobs, sequences=rng.uniform(1, 3), max_num_seqs=8, budget=96), jobs


def _twins(rng: random.Random) -> tuple[Limits, list[Job]]:
    """Equal prompts with equal answers at once: every block has copies, which are evicted one by one."""
    jobs: list[Job] = []
    for index in range(40):
        kind = rng.randint(0, 2)
        jobs.append(
            Job(
                job_id=f"t{index}",
                prompt=((1, 30), (10 + kind, 40 + 10 * kind)),
                output_tokens=rng.choice([20, 40]),
                output_stream=50 + kind,
                at=rng.choice([0, 0, 1, 25, 26, 60]),
            )
        )
    return limits_for(jobs, sequences=rng.uniform(2, 5), max_num_seqs=24, budget=300), jobs


def _salts(rng: random.Random) -> tuple[Limits, list[Job]]:
    """Requests share prefixes only within one cache salt."""
    jobs = [replace(job, salt=rng.choice(["", "a", "b"])) for job in groups(rng, prompts=5, samples=8)]
    return limits_for(jobs, sequences=4, budget=256), jobs


def _aborts(rng: random.Random) -> tuple[Limits, list[Job]]:
    """Clients that go away: before their first step, while they prefill, decode, or wait preempted."""
    jobs = [
        replace(job, abort_after=rng.choice([None, None, 0, 1, 2, 5, 15, 40, 90]))
        for job in conversations(rng, sessions=16, turns=(1, 3), answer=(10, 80), spread=20, gap=(0, 5))
    ]
    return limits_for(jobs, sequences=rng.uniform(1, 2.5), max_num_seqs=10, budget=48), jobs


def _rollouts(rng: random.Random) -> tuple[Limits, list[Job]]:
    """Groups with long answers, many short requests and sessions of many turns at once."""
    short = conversations(
        rng, sessions=15, turns=(1, 1), shared=8, prompt=(30, 90), answer=(5, 25), spread=150, name="r"
    )
    jobs = [
        *groups(rng, prompts=4, samples=6, prompt=(10, 40), answer=(40, 160), every=30),
        *short,
        *conversations(rng, sessions=5, turns=(4, 7), shared=90, prompt=(10, 60), answer=(5, 25)),
    ]
    return limits_for(jobs, sequences=rng.uniform(1.5, 3), max_num_seqs=24, budget=192), jobs


def _large(rng: random.Random) -> tuple[Limits, list[Job]]:
    """Sizes nearer to those of a real engine."""
    jobs = conversations(
        rng, sessions=60, turns=(1, 5), shared=300, prompt=(20, 600), answer=(20, 300), spread=300
    )
    return limits_for(jobs, sequences=rng.uniform(4, 10), max_num_seqs=128, budget=512), jobs


def _anything(rng: random.Random) -> tuple[Limits, list[Job]]:
    """All limits and lengths drawn wide apart."""
    longest = rng.choice([4, 30, 120, 300])
    jobs = conversations(
        rng,
        sessions=rng.randint(1, 40),
        turns=(1, rng.randint(1, 4)),
        shared=rng.choice([0, 3, 16, 100]),
        prompt=(1, longest),
        answer=(1, rng.choice([1, 10, 80])),
        gap=(0, rng.choice([0, 5, 50])),
        spread=rng.choice([0, 10, 100]),
    )
    if rng.random() < 0.3:
        jobs = [replace(job, abort_after=rng.choice([None, None, 3, 30])) for job in jobs]
    limits = limits_for(
        jobs,
        block_size=rng.choice([1, 3, 8, 16, 16, 16, 50]),
        sequences=rng.choice([1, 1.1, 1.5, 2, 4, 20]),
        max_num_seqs=rng.choice([1, 2, 4, 8, 16, 64]),
        budget=rng.choice([1, 10, 33, 64, 512, 8192]),
        caching=rng.random() < 0.85,
    )
    return limits, jobs


SHAPES: dict[str, Shape] = {
    "sessions": _sessions,
    "groups": _groups,
    "groups-mid-prefill": _groups_mid_prefill,
    "long-prompts": _long_prompts,
    "preempted-mid-prefill": _preempted_mid_prefill,
    "burst": _burst,
    "waves": _waves,
    "thrash": _thrash,
    "one-fits": _one_fits,
    "no-caching": _no_caching,
    "no-caching-groups": _no_caching_groups,
    "least-budget": _least_budget,
    "huge-budget": _huge_budget,
    "few-sequences": _few_sequences,
    "block-sizes": _block_sizes,
    "block-edges": _block_edges,
    "least-requests": _least_requests,
    "cut-at-model-length": _cut_at_model_length,
    "forks": _forks,
    "twins": _twins,
    "salts": _salts,
    "aborts": _aborts,
    "rollouts": _rollouts,
    "large": _large,
    "anything": _anything,
}
