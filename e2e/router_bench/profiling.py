"""Where our router spends its time under load: py-spy's samples, ranked by line and by function."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from router_bench import wrk
from router_bench.contestants import OURS, started
from router_bench.engines import fixed_engines
from router_bench.environment import PROFILER, location
from router_bench.errors import BenchError
from router_bench.figures import Table
from router_bench.parts.bench import Bench

SAMPLES_PER_SECOND = 400
SHOWN = 45


def profile(bench: Bench, load: wrk.Load) -> list[Table]:
    """Load our router with wrk, sample its stacks, and rank them."""
    raw = bench.folder / "stacks.txt"
    with (
        fixed_engines(bench.folder, bench.cpus.load) as engines,
        started(OURS, engines, folder=bench.folder, cpus=bench.cpus.router, build=bench.build) as router,
    ):
        wrk.run(
            router.port, wrk.Load(load.mode, load.prompt_bytes, name="warm"), seconds=1, cpus=bench.cpus.load
        )
        options = ["--rate", str(SAMPLES_PER_SECOND), "--duration", f"{bench.seconds:.0f}", "--format", "raw"]
        if bench.build.compiled:
            options.append("--native")  # compiled functions are no frames of Python
        spy = [
            str(location(PROFILER) / "bin" / "py-spy"),
            "record",
            "--pid",
            str(router.process.popen.pid),
        ]
        with subprocess.Popen(
            [*spy, *options, "--output", str(raw)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as sampler:
            wrk.run(router.port, load, seconds=bench.seconds + 1, cpus=bench.cpus.load)
            words, _ = sampler.communicate(timeout=60)
    if not raw.exists():
        raise BenchError(f"py-spy failed: {words.strip()[-1000:]}")
    return ranking(raw.read_text().splitlines())


def ranking(lines: Sequence[str]) -> list[Table]:
    """Functions by the part of the time that was spent in them, and in them and what they called.

    Args:
        lines: py-spy's raw format: frames from the outermost in, joined by ";", and a number of samples.
    """
    own: Counter[str] = Counter()
    files: Counter[str] = Counter()
    within: Counter[str] = Counter()
    total = 0
    for line in lines:
        stack, _, count = line.rpartition(" ")
        frames = [_frame(frame) for frame in stack.split(";")]
        samples = int(count)
        total += samples
        own[frames[-1]] += samples
        files[frames[-1].rpartition("(")[2].rstrip(")")] += samples
        for frame in set(frames):
            within[frame] += samples
    return [
        _table("Time in the functions of a file", files, total),
        _table("Time in a function itself", own, total),
        _table("Time in a function and what it calls", within, total),
    ]


def _table(title: str, counts: Counter[str], total: int) -> Table:
    rows = [[name, f"{samples / total:.1%}"] for name, samples in counts.most_common(SHOWN)]
    return Table(f"{title} ({total} samples)", ["function", "part"], rows)


def _frame(text: str) -> str:
    """`function (file:line)` without the line and the way to the file's package."""
    name, _, place = text.rpartition(" (")
    file = place.rstrip(")").rpartition(":")[0] or place.rstrip(")")
    return f"{name} ({'/'.join(Path(file).parts[-2:])})" if name else text
