# mypy: disable-error-code="import-not-found,misc"
"""An engine's side of a weight update without a GPU: as vLLM's own over NCCL, but over Gloo.

vLLM's backends need GPUs; it takes others at `WeightTransferEngineFactory`. This one takes part in one
collective with the trainer and all other engines, as NCCL's does: it gets nowhere unless each engine is told
its own rank and all are asked at the same time.
"""

from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from vllm_serving.trainer import broadcast, join


@dataclass
class GlooInit(WeightTransferInitInfo):
    """Named as NCCL's where they mean the same; `store` is a file that all members share."""

    store: str
    rank_offset: int
    world_size: int


@dataclass
class GlooUpdate(WeightTransferUpdateInfo):
    """The tensors that come, in this order."""

    names: list[str]
    shapes: list[list[int]]


class GlooEngine(WeightTransferEngine):
    """Receives weights from rank 0."""

    init_info_cls = GlooInit
    update_info_cls = GlooUpdate
    _group: Any = None

    def init_transfer_engine(self, init_info: GlooInit) -> None:
        """Join the group; one worker per engine, so the offset is the rank."""
        self._group = join(init_info.store, rank=init_info.rank_offset, size=init_info.world_size)

    def start_weight_update(self) -> None:
        """Make room for weights as in a checkpoint."""
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receive and load; the base class would wait for an accelerator as well."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: GlooUpdate) -> None:
        """Take part in one broadcast per tensor."""
        if self._group is None:
            raise RuntimeError("call init_weight_transfer_engine first")
        for name, shape in zip(update_info.names, update_info.shapes, strict=True):
            tensor = torch.empty(shape)
            broadcast(self._group, tensor)
            self.model.load_weights([(name, tensor.to(torch.bfloat16))])

    def finish_weight_update(self) -> None:
        """Put the weights into the form that the engine computes with."""
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Leave the group."""
        self._group = None
