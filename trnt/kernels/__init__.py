"""Attention, experts and loss: plain torch as the truth, and what runs fast on each device.

Shape suffixes, as in torchtitan: B batch, L sequence, D hidden size, H query heads, N key/value heads, K head size,
E experts, F expert hidden size, T tokens (B x L), R routed tokens (T x top_k, sorted by expert), V vocabulary.
"""
