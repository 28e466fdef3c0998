# mypy: disable-error-code="import-not-found"
"""A trainer's side of a weight update; runs inside the environment that `install` makes.

    python -m vllm_serving.trainer STORE ENGINES SEED

STORE is a file through which the group's members find each other. It says in one line of JSON which random
tensors it is about to send (`names`, `shapes`), joins the group as rank 0, and sends them to all engines.
"""

import json
import sys
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import BroadcastOptions, FileStore, ProcessGroupGloo

from vllm_serving.tiny_model import model

TIMEOUT = timedelta(seconds=60)


def join(store: str, *, rank: int, size: int) -> Any:
    """Join the group of `size` members; returns when all are there."""
    return ProcessGroupGloo(FileStore(store, size), rank, size, TIMEOUT)


def broadcast(group: Any, tensor: torch.Tensor) -> None:
    """Send a tensor from rank 0, or fill it with what rank 0 sends."""
    options = BroadcastOptions()
    options.rootRank = 0
    group.broadcast([tensor], options).wait()


def main() -> None:
    """Send weights once."""
    store, engines, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    weights = {name: tensor.detach().float() for name, tensor in model(seed).named_parameters()}
    told = {"names": list(weights), "shapes": [list(tensor.shape) for tensor in weights.values()]}
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()
    group = join(store, rank=0, size=engines + 1)
    for tensor in weights.values():
        broadcast(group, tensor)


if __name__ == "__main__":
    main()
