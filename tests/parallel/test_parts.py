"""Parts of tensors that are not sharded; of sharded ones see test_layouts.py and checkpoint/test_start.py."""

from __future__ import annotations

import torch

from trnt.parallel.parts import bare, box, local


def test_a_plain_tensor_is_its_own_part() -> None:
    tensor = torch.zeros(3, 4)
    assert box(tensor) == (tensor, (0, 0))
    assert local(tensor) is tensor
    assert bare("layers.0._checkpoint_wrapped_module.x") == "layers.0.x"
