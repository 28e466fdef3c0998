"""The engine model held to vLLM's own scheduler.

Run it from the checkout as `PYTHONPATH=e2e python -m vllm_oracle COMMAND`. The environment with vLLM is
made once and cached in ~/.cache/rolloutpool; it takes 3 GB and needs no GPU.
"""

import itertools
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from vllm_install import environment
from vllm_install.commands import doctor, install
from vllm_install.errors import InstallError
from vllm_oracle.difference import difference
from vllm_oracle.errors import OracleError
from vllm_oracle.model import run_model
from vllm_oracle.oracle import Oracle, open_oracle
from vllm_oracle.recording import RECORDED, record, write_recording
from vllm_oracle.shapes import SHAPES, make

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__, pretty_exceptions_enable=False)
console = Console(stderr=True)


app.command()(install)
app.command()(doctor)


@app.command()
def compare(
    shape: Annotated[str | None, typer.Option(help=f"One of {', '.join(SHAPES)}; all by default.")] = None,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    seconds: Annotated[float, typer.Option(help="Go on with further seeds for this long.")] = 0.0,
) -> None:
    """Run traces through both engines; at the first difference say what it is and exit with 1.

    For one trace give its shape and seed, for a search for differences give seconds.
    """
    if shape is not None and shape not in SHAPES:
        raise OracleError(f"there is no shape {shape}: choose one of {', '.join(SHAPES)}")
    with open_oracle(environment.installed()) as oracle:
        until = time.monotonic() + seconds
        compared = 0
        for each in itertools.count(seed):
            for name in [shape] if shape else SHAPES:
                _compare(oracle, name, each)
                compared += 1
            if time.monotonic() >= until:
                break
        console.print(f"{compared} traces, no difference (seeds {seed} to {each})")


def _compare(oracle: Oracle, shape: str, seed: int) -> None:
    trace = make(shape, seed)
    report = difference(trace, vllm=oracle.run(trace), model=run_model(trace))
    if report is not None:
        console.print(report, markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1)


@app.command(name="record")
def record_schedules(
    target: Annotated[Path, typer.Argument(help="The file to write.")] = RECORDED,
) -> None:
    """Record vLLM's schedules for the ordinary tests, which run without vLLM."""
    with open_oracle(environment.installed()) as oracle:
        recording = record(oracle)
    write_recording(target, recording, version=environment.vllm_version())
    console.print(f"{target}: {len(recording)} traces, {target.stat().st_size / 1000:.0f} kB")


def main() -> None:
    """Run the command; errors as one line."""
    try:
        app()
    except (InstallError, OracleError) as error:
        console.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
