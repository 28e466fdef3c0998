"""Commands that `vllm_oracle` and `vllm_serving` both have."""

import typer
from rich.console import Console

from cluster.progress import Steps
from vllm_install import environment


def install() -> None:
    """Install vLLM into the cache, unless it is there (two to five minutes, once)."""
    steps = Steps(Console(stderr=True))
    steps.say(f"ready: vLLM {environment.vllm_version()} is in {environment.install(steps)}")


def doctor() -> None:
    """Say whether vLLM is installed, and if not, what keeps it from being installed on this machine.

    Exits with 1 where it cannot be.
    """
    steps = Steps(Console(stderr=True))
    if environment.location().exists():
        steps.say(f"vLLM {environment.vllm_version()} is in {environment.location()}")
        return
    faults = environment.reasons(environment.gather())
    for fault in faults:
        steps.say(f"cannot install vLLM here: {fault}")
    if faults:
        raise typer.Exit(1)
    steps.say("vLLM is not installed; `install` will do so")
