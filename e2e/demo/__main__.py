"""`make demo`: install RolloutPool on this machine, drive mixed rollouts, show the admission state."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rich.console import Console

import cluster as kit
from demo import steps

LOAD_SECONDS = 60.0
console = Console(highlight=False)


@contextmanager
def step(title: str, expected: str) -> Iterator[None]:
    """Say what is done and how long it takes, then how long it took."""
    console.print(f"\n[bold cyan]==> {title}[/] [dim](about {expected})[/]", soft_wrap=True)
    begun = time.monotonic()
    yield
    console.print(f"[green]    done[/] in {time.monotonic() - begun:.1f} s")


def say(text: str) -> None:
    """One line of a step's progress."""
    console.print(f"    {text}", markup=False, soft_wrap=True)


def show(text: str) -> None:
    """What a program printed, as it printed it."""
    console.print(text, markup=False, soft_wrap=True)


def kind_runs() -> bool:
    """Whether kind is there and a Docker engine answers."""
    if not shutil.which("kind"):
        return False
    try:
        done = subprocess.run(["docker", "info"], capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def reasons_against_a_cluster() -> list[str]:
    """Why no cluster can run here; empty where one can."""
    if "E2E_CLUSTER" not in os.environ and kind_runs():
        os.environ["E2E_CLUSTER"] = "kind"
    builtin = os.environ.get("E2E_CLUSTER", "builtin") == "builtin"
    return list(kit.missing()) if builtin else []


def in_cluster() -> None:
    """The demo on a cluster."""
    with kit.open_cluster(report=say) as cluster:
        with step("Load the images of operator, router and emulator", "10 s"):
            cluster.load_images()
        with step("helm install the chart: CRD, operator, RBAC", "10 s"):
            steps.install_chart(cluster)
            say(cluster.kubectl("get", "pods", "-n", steps.SYSTEM).rstrip().replace("\n", "\n    "))
        manifest = steps.example(cluster)
        name = manifest["metadata"]["name"]
        with step(f"kubectl apply -f {steps.EXAMPLE.relative_to(steps.ROOT)} and wait for Ready", "20 s"):
            steps.make_namespace(cluster)
            steps.apply(cluster, manifest)
            pool = steps.wait_condition(cluster, name, say=say)
            say(cluster.kubectl("get", "pods", "-n", steps.NAMESPACE).rstrip().replace("\n", "\n    "))
        port = pool["spec"]["router"]["service"]["port"]
        with (
            cluster.forward(steps.NAMESPACE, f"{name}-router", port) as url,
            step("Drive trainer-like mixed rollouts through the router's Service", f"{LOAD_SECONDS:.0f} s"),
        ):
            seen: list[str] = []

            def look() -> None:
                seen.append(steps.describe(cluster, name))
                seen.append(cluster.kubectl("get", "rolloutpool", "-n", steps.NAMESPACE, "-o", "wide"))

            steps.run_load(url, steps.EXAMPLE, seconds=LOAD_SECONDS, near_end=look)
        console.print(
            f"\n[bold cyan]==> kubectl describe rolloutpool {name}[/] [dim](as it was under load)[/]"
        )
        show("\n".join(seen))
        console.print("\n[bold cyan]==> Clean up[/]")


def without_cluster(reasons: list[str]) -> None:
    """The demo as local processes."""
    console.print("[yellow]No Kubernetes can run here, so this shows `rolloutpool local`:[/]")
    for reason in reasons:
        say(f"- {reason}")
    with tempfile.TemporaryDirectory(prefix="rolloutpool-demo-") as folder:
        common = ["--state-dir", folder]
        command = [str(steps.COMMAND), "local", "-f", str(steps.EXAMPLE), "--port", "0", *common]
        with subprocess.Popen(command) as pool:
            try:
                with step("Start the pool as local processes and wait for Ready", "10 s"):
                    url = _local_url(Path(folder), pool)
                with step("Drive trainer-like mixed rollouts through the router", f"{LOAD_SECONDS:.0f} s"):
                    status = partial(
                        subprocess.check_output, [str(steps.COMMAND), "local", "status", *common]
                    )
                    seen: list[str] = []
                    steps.run_load(
                        url,
                        steps.EXAMPLE,
                        seconds=LOAD_SECONDS,
                        near_end=lambda: seen.append(status(text=True)),
                    )
                console.print("\n[bold cyan]==> rolloutpool local status[/] [dim](as it was under load)[/]")
                show("\n".join(seen))
            finally:
                pool.send_signal(signal.SIGINT)


def _local_url(folder: Path, pool: subprocess.Popen[bytes], timeout: float = 60.0) -> str:
    """The router's address, once the pool is Ready."""
    deadline, stored = time.monotonic() + timeout, folder / "pool.json"
    while time.monotonic() < deadline and pool.poll() is None:
        found = json.loads(stored.read_text()) if stored.exists() else None
        if found and steps.condition(found)["status"] == "True":
            return str(found["status"]["endpoints"]["router"])
        time.sleep(0.5)
    raise steps.StepFailed(f"the local pool was not Ready within {timeout:.0f} s: its logs are in {folder}")


def main() -> int:
    """Choose where to run, run, and say what to look at when it fails."""
    begun = time.monotonic()
    reasons = reasons_against_a_cluster()
    console.print("[bold]RolloutPool demo[/]: one pool, three rollout classes, on this machine alone")
    try:
        if reasons:
            without_cluster(reasons)
        else:
            in_cluster()
    except (steps.StepFailed, kit.ClusterError) as error:
        console.print("\n[bold red]The demo failed:[/]")
        show(str(error))
        return 1
    except KeyboardInterrupt:
        console.print("\nStopped; everything it started has been ended.")
        return 130
    console.print(f"\n[bold green]The demo is over[/] after {time.monotonic() - begun:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
