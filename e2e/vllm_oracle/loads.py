"""Building blocks of traces: sessions of several turns, groups of samples, and limits to suit them."""

import random
from collections.abc import Sequence
from itertools import count

from vllm_oracle.traces import Job, Limits, Segment

Range = tuple[int, int]
"""Least and most, both included."""


def limits_for(
    jobs: Sequence[Job],
    *,
    block_size: int = 16,
    sequences: float = 2.0,
    max_num_seqs: int = 64,
    budget: int = 2048,
    caching: bool = True,
) -> Limits:
    """Limits in which each job fits and `sequences` of the longest fit at once.

    vLLM refuses a token budget below `max_num_seqs`, so the budget is raised to that.
    """
    longest = max(sum(length for _, length in job.prompt) + job.output_tokens for job in jobs)
    blocks = -(-longest // block_size)
    return Limits(
        num_blocks=1 + max(blocks, int(blocks * sequences)),
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max(budget, max_num_seqs),
        max_model_len=longest,
        enable_prefix_caching=caching,
    )


def conversations(
    rng: random.Random,
    *,
    sessions: int,
    turns: Range = (1, 4),
    shared: int = 40,
    prompt: Range = (5, 90),
    answer: Range = (1, 60),
    gap: Range = (0, 40),
    spread: int = 60,
    name: str = "s",
) -> list[Job]:
    """Sessions behind one shared system prompt of `shared` tokens; a turn follows the end of the one before.

    `gap` and `spread` (of the sessions' beginnings) are in steps, `prompt` (a turn's) and `answer` in tokens.
    """
    streams = count(1000)
    jobs: list[Job] = []
    for session in range(sessions):
        history: tuple[Segment, ...] = ((1, shared),) if shared else ()
        for turn in range(rng.randint(*turns)):
            history = (*history, (next(streams), rng.randint(*prompt)))
            job = Job(
                job_id=f"{name}{session}.{turn}",
                prompt=history,
                output_tokens=rng.randint(*answer),
                output_stream=next(streams),
                at=rng.randint(*gap) if turn else rng.randint(0, spread),
                after=f"{name}{session}.{turn - 1}" if turn else None,
            )
            history = (*history, (job.output_stream, job.output_tokens))
            jobs.append(job)
    return jobs


def groups(
    rng: random.Random,
    *,
    prompts: int,
    samples: int,
    prompt: Range = (20, 120),
    answer: Range = (5, 80),
    every: int = 10,
) -> list[Job]:
    """Samples of one prompt after another, `every` so many steps; each sample has its own answer."""
    return [
        Job(
            job_id=f"g{group}.{sample}",
            prompt=((2, 20), (100 + group, length)),
            output_tokens=rng.randint(*answer),
            output_stream=10_000 + group * 100 + sample,
            at=group * every,
        )
        for group, length in enumerate([rng.randint(*prompt) for _ in range(prompts)])
        for sample in range(samples)
    ]
