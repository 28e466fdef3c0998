"""A Kubernetes cluster on this machine, without Docker, for tests, demos and a look around.

Run it from the checkout as `PYTHONPATH=e2e python -m cluster COMMAND`. What it needs is made once and
cached in ~/.cache/rolloutpool (see `prepare`); from then on a cluster is up in 15 seconds, takes 0.8 GB of
memory and leaves nothing. Without root there is only a control plane: no pods.

KUBEBUILDER_ASSETS may name a folder whose etcd, kube-apiserver, kubectl... are used. E2E_CLUSTER=kind uses
kind, E2E_CLUSTER=current the cluster of the current kubeconfig.
"""

import contextlib
import os
import signal
import subprocess
import sys
from typing import Annotated

import typer
from rich.console import Console

from cluster import binaries, images
from cluster.base import Cluster
from cluster.cache import cache_root
from cluster.errors import ClusterError
from cluster.lifetime import sweep
from cluster.opening import missing, open_cluster
from cluster.progress import Steps

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__, pretty_exceptions_enable=False)
console = Console(stderr=True)

Name = Annotated[str | None, typer.Option(help="Name of the cluster; random by default.")]
Gpus = Annotated[int, typer.Option(min=0, help="GPUs (nvidia.com/gpu) that its node has.")]
Keep = Annotated[
    bool, typer.Option("--keep", help="Keep the components' logs at the end, also without a failure.")
]
Load = Annotated[bool, typer.Option(help="Build this checkout's images and load them.")]


@app.command()
def up(name: Name = None, gpus: Gpus = 8, keep: Keep = False, load: Load = True) -> None:
    """Bring a cluster up, say how to use it, and end it at Ctrl-C."""
    with open_cluster(console, name=name, gpus=gpus, keep=keep) as cluster:
        if load and cluster.can_run_pods:
            cluster.load_images()
        _usage(cluster)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run(
    command: Annotated[list[str], typer.Argument(help="Program and arguments, after `--`.")],
    name: Name = None,
    gpus: Gpus = 8,
    keep: Keep = False,
    load: Load = True,
) -> None:
    """Bring a cluster up, run a command against it (KUBECONFIG and PATH are set), end the cluster.

    Exits with the command's exit code.
    """
    with open_cluster(console, name=name, gpus=gpus, keep=keep) as cluster:
        if load and cluster.can_run_pods:
            cluster.load_images()
        if code := subprocess.run(command, env=cluster.environment(), check=False).returncode:
            raise typer.Exit(code)  # inside the block: a failed command keeps the logs


@app.command()
def prepare() -> None:
    """Fill the cache: build Kubernetes, fetch the rest, pack the images' layers (ten minutes, once)."""
    steps = Steps(console)
    node = os.geteuid() == 0
    binaries.resolve(steps, node=node)
    if node:
        images.prepare(steps)
    steps.say(f"ready: everything is in {cache_root()}")


@app.command()
def doctor() -> None:
    """Say what works on this machine and what not, and remove what a killed cluster may have left.

    Exits with 1 where the builtin cluster cannot run pods.
    """
    steps = Steps(console)
    for swept in sweep():
        steps.say(f"removed what cluster {swept} left")
    for reason in missing(node=False):
        steps.say(f"cannot run here: {reason}")
    for reason in missing():
        steps.say(f"cannot run pods here: {reason}")
    for gap in binaries.missing_from_cache(node=os.geteuid() == 0):
        steps.say(f"not in the cache yet, made at the first use or by `prepare`: {gap}")
    if missing():
        raise typer.Exit(1)
    steps.say("the builtin cluster runs here")


def _usage(cluster: Cluster) -> None:
    folder = cluster.environment()["PATH"].split(os.pathsep)[0]
    console.print(f"\nexport KUBECONFIG={cluster.kubeconfig}\nexport PATH={folder}:$PATH", soft_wrap=True)
    console.print("kubectl get pods -A\n", highlight=False)
    if cluster.can_run_pods:
        console.print(f"{_install(cluster)}\nkubectl apply -f examples/mixed-rollouts.yaml\n", soft_wrap=True)
    console.print("Ctrl-C ends it.")


def _install(cluster: Cluster) -> str:
    """How to install the chart with the images that were loaded."""
    parts = [(name, *cluster.image(name).rsplit(":", 1)) for name in ("operator", "router")]
    flags = (f"--set {n}.image.repository={repo} --set {n}.image.tag={tag}" for n, repo, tag in parts)
    return (
        "helm install rolloutpool charts/rolloutpool -n rolloutpool-system --create-namespace --wait "
        + " ".join(flags)
    )


def main() -> None:
    """Run the command; errors as one line, SIGTERM as an orderly end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except ClusterError as error:
        console.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
