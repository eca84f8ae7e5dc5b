"""Experts computed one token at a time: slow, and the whole of what a kernel has to be."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torchtitan.models.common.moe import GroupedExperts, RoutedExperts

from trnt.kernels.moe import Router


class OneByOne(GroupedExperts):
    """SwiGLU of each row by its expert; rows come sorted, `num_tokens_per_expert_E` says how many each expert has."""

    @dataclass(kw_only=True, slots=True)
    class Config(GroupedExperts.Config):
        pass

    def forward(self, x_RD: torch.Tensor, num_tokens_per_expert_E: torch.Tensor) -> torch.Tensor:
        expert_R = torch.repeat_interleave(torch.arange(len(num_tokens_per_expert_E)), num_tokens_per_expert_E.long())
        rows = []
        for x_D, e in zip(x_RD, expert_R, strict=True):
            hidden_F = F.silu(self.w1_EFD[e] @ x_D) * (self.w3_EFD[e] @ x_D)
            rows.append(self.w2_EDF[e] @ hidden_F)
        return torch.stack(rows)


class Routed(RoutedExperts):
    """torchtitan's dispatch, these experts, and torchtitan's combine."""

    @dataclass(kw_only=True, slots=True)
    class Config(RoutedExperts.Config):
        pass


def parts() -> tuple[type, type, type]:
    """The config classes of routed experts, experts and router, which trnt puts into torchtitan's MoE layers."""
    return Routed.Config, OneByOne.Config, Router.Config
