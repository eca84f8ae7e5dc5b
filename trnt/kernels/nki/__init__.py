"""The mixture-of-experts kernels for Trainium, in NKI 0.7 style. Not run on hardware; docs/kernels.md says how tested.

`route` chooses experts, `experts_forward` and `experts_backward` compute them; `layout` sorts tokens into blocks;
`torch_ops` registers all three with torch.
"""
