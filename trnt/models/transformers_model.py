"""`AutoModelForCausalLM` behind torchtitan's model protocol: built on meta, laid out, then filled.

Weights come from transformers itself (`from_pretrained`, or its own random initialisation), on process 0, and go to the
others one tensor at a time; on one process they are taken over without a second copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trnt import device

device.ensure()

import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.tensor import DTensor
from torchtitan.protocols.model import BaseModel

from trnt.errors import TrntError
from trnt.models import transformers as family
from trnt.models.transformers_probe import Traits, look, run
from trnt.parallel.parts import bare


class Given(nn.Module):
    """The head of a model whose forward gives finished logits: it changes nothing, and has the vocabulary's size."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.weight = torch.empty(vocab_size, 0, device="meta")

    def forward(self, logits_BLV: torch.Tensor) -> torch.Tensor:
        return logits_BLV


class HFModel(BaseModel):
    """One transformers model. Its parameters' names begin with `hf.`."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseModel.Config):
        hf_config: dict[str, Any]
        attn_implementation: str | None = None
        weights: str | None = None
        """A folder for `from_pretrained`; None: random weights."""

        def update_from_config(self, *, config: Any, **options: Any) -> None:
            """Nothing is changed; what this backend cannot do is refused.

            Raises TrntError for tensor, context, pipeline and expert parallelism.
            """
            del options
            for kind in ("tensor", "context", "pipeline", "expert"):
                if getattr(config.parallelism, f"{kind}_parallel_degree") > 1:
                    raise TrntError(
                        f"the transformers backend has no {kind} parallelism",
                        "use data parallelism, or --backend native",
                    )

        def get_nparams_and_flops(self, model: nn.Module, seq_len: int) -> tuple[int, int]:
            """(parameters, FLOPs of forward and backward per token)."""
            size = family.from_config(self.hf_config)
            return sum(p.numel() for p in model.parameters()), family.flops_per_token(size, seq_len)

    _skip_lm_head = False  # torchtitan's trainer sets it when the loss makes the logits

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.weight_dtype = torch.get_default_dtype()  # the trainer's, while it builds
        self.hf = self._model(None)
        self.traits = Traits()

    def _model(self, weights: str | None) -> Any:
        """transformers' model in the trained dtype, where torch makes tensors now. Raises TrntError in its words."""
        from transformers import AutoModelForCausalLM

        config = family.parsed(self.config.hf_config)
        options: dict[str, Any] = {"dtype": self.weight_dtype}
        if self.config.attn_implementation is not None:
            options["attn_implementation"] = self.config.attn_implementation
        try:
            if weights is None:
                return AutoModelForCausalLM.from_config(config, **options)
            model, info = AutoModelForCausalLM.from_pretrained(
                weights, config=config, output_loading_info=True, local_files_only=True, **options
            )
        except (ImportError, OSError, ValueError, RuntimeError) as error:
            said = str(error).strip().splitlines()
            raise TrntError(
                f"transformers: {said[0] if said else type(error).__name__}", "change --model or --attn-implementation"
            ) from error
        wrong = sorted([*info["missing_keys"], *(str(key) for key in info["mismatched_keys"])])
        if wrong:
            raise TrntError(
                f"{weights} lacks {len(wrong)} of the model's tensors: {', '.join(wrong[:5])}", "download it again"
            )
        return model

    def verify_module_protocol(self) -> None:
        """transformers' modules are plain `nn.Module`s."""

    @property
    def layers(self) -> nn.ModuleList:
        """The decoder's layers: the list that is as long as config.json says. Raises TrntError when there is none."""
        wanted = self.hf.config.get_text_config().num_hidden_layers
        for module in self.hf.modules():
            if isinstance(module, nn.ModuleList) and len(module) == wanted:
                return module
        raise TrntError(f"{type(self.hf).__name__} has no list of {wanted} layers", "use another model")

    @property
    def head(self) -> nn.Module | None:
        """transformers' output layer."""
        return self.hf.get_output_embeddings()

    @property
    def lm_head(self) -> nn.Module:
        """What the loss turns this model's output into logits with."""
        if self.traits.plain_head and self.head is not None:
            return self.head
        return Given(self.hf.config.get_text_config().vocab_size)

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor | None = None, attention_masks: Any = None
    ) -> torch.Tensor:
        """Logits (B, L, V), or what stands before the head (B, L, D) when the loss makes them from that."""
        del attention_masks
        return run(self.hf, tokens, positions, self.traits, hidden=self._skip_lm_head and self.traits.plain_head)

    @torch.no_grad()
    def init_states(self, *, buffer_device: torch.device | None = None) -> None:
        """Fill all parameters and buffers from transformers' own model, once it has been looked at."""
        del buffer_device
        several = dist.is_initialized() and dist.get_world_size() > 1
        full = None
        if not several or dist.get_rank() == 0:
            with torch.device("cpu"):
                full = self._model(self.config.weights)
        self.traits = self._look(full, several)
        if several or any(isinstance(parameter, DTensor) for parameter in self.parameters()):
            options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=several, strict=False)
            set_model_state_dict(self.hf, dict(full.state_dict()) if full is not None else {}, options=options)
        elif full is not None:
            held = dict(full.named_parameters(remove_duplicate=False))
            for name, parameter in self.hf.named_parameters(remove_duplicate=False):
                parameter.data = held[bare(name)].data.to(parameter.device)
        self.hf.tie_weights()
        self._fill_buffers(full, several)
        left = [name for name, value in (*self.named_parameters(), *self.named_buffers()) if value.is_meta]
        if left:
            raise TrntError(
                f"nothing filled {', '.join(left[:5])}", "report this: the transformers backend misses them"
            )

    def _look(self, full: Any, several: bool) -> Traits:
        """What process 0 found out of the model, on every process; what it refuses is refused by all."""
        found: list[Any] = [None]
        if full is not None:
            try:
                found = [look(full)]
            except TrntError as error:
                found = [(error.cause, error.fix)]
        if several:
            dist.broadcast_object_list(found, 0)
        if isinstance(found[0], tuple):
            raise TrntError(*found[0])
        assert isinstance(found[0], Traits)
        return found[0]

    def _fill_buffers(self, full: Any, several: bool) -> None:
        """Buffers, those that no checkpoint holds too (RoPE's frequencies), from the full model or from process 0."""
        held = dict(full.named_buffers()) if full is not None else {}
        for name, buffer in self.hf.named_buffers():
            if full is not None:
                buffer.copy_(held[bare(name)])
            if several:
                dist.broadcast(buffer, 0)
