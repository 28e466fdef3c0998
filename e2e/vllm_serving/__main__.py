"""Real vLLM engines behind the router.

Run it from the checkout as `PYTHONPATH=e2e python -m vllm_serving COMMAND`. The environment with vLLM is made
once and cached in ~/.cache/rolloutpool; it takes 3 GB and needs no GPU.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from vllm_install.commands import doctor, install
from vllm_install.errors import InstallError
from vllm_serving import recording
from vllm_serving.engines import Engine, settings
from vllm_serving.errors import ServingError
from vllm_serving.model import NAME

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__, pretty_exceptions_enable=False)
console = Console(stderr=True)
app.command()(install)
app.command()(doctor)


@app.command()
def engines(count: Annotated[int, typer.Option(min=1, max=8, help="How many.")] = 2) -> None:
    """Run engines on this machine until Ctrl-C; each takes about 1 GB of memory."""
    with tempfile.TemporaryDirectory() as folder:
        started = [Engine(each, Path(folder)) for each in settings(*(f"e{n}" for n in range(count)))]
        try:
            for engine in started:
                engine.wait()
                console.print(f"{engine.name} serves {NAME} at {engine.url}", highlight=False)
            while all(engine.alive for engine in started):
                time.sleep(0.5)
        finally:
            for engine in started:
                engine.stop()


@app.command()
def record() -> None:
    """Record what an engine says for the ordinary tests, which run without vLLM."""
    with tempfile.TemporaryDirectory() as folder:
        kv_events, weight_sync = recording.record(Path(folder))
    for target, recorded in ((recording.KV_EVENTS, kv_events), (recording.WEIGHT_SYNC, weight_sync)):
        recording.write(target, recorded)
        console.print(f"{target}: {target.stat().st_size / 1000:.0f} kB", highlight=False, soft_wrap=True)


def main() -> None:
    """Run the command; errors as one line."""
    try:
        app()
    except (InstallError, ServingError) as error:
        console.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
