"""Opens the backend that E2E_CLUSTER names.

Everything else is imported when it is used: process 1 of a cell imports this package too, and stays small.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cluster.base import Cluster
from cluster.errors import ClusterError

if TYPE_CHECKING:
    from rich.console import Console

    from cluster.progress import Report


@contextmanager
def open_cluster(
    report: "Report | Console | None" = None,
    *,
    name: str | None = None,
    gpus: int = 8,
    keep: bool = False,
    node: bool = True,
) -> Iterator[Cluster]:
    """Open a cluster and end it, with all that was made for it, when the block ends in whatever way.

    `report` gets a line per step. The others are for the builtin cluster: `name` (random by default); `keep`
    keeps the logs; without `node` there is only a control plane (as there is without root).

    Raises:
        ClusterError: an unknown E2E_CLUSTER, or the cluster could not be brought up; logs are kept then.
    """
    from cluster.progress import Steps

    steps = Steps(report)
    match os.environ.get("E2E_CLUSTER") or "builtin":
        case "builtin":
            from cluster.lifetime import open_builtin

            with open_builtin(name=name, gpus=gpus, steps=steps, keep=keep, node=node) as builtin:
                yield builtin
        case "kind":
            from cluster.kind import open_kind

            with open_kind(name=name, gpus=gpus, steps=steps) as kind:
                yield kind
        case "current":
            from cluster.current import open_current

            with open_current() as current:
                yield current
        case other:
            raise ClusterError(f"E2E_CLUSTER={other}: expected builtin, kind or current")


def missing(*, node: bool = True) -> list[str]:
    """Why the builtin cluster cannot run pods (without `node`: at all) on this machine, one line each."""
    from cluster import doctor

    return doctor.missing(node=node)
