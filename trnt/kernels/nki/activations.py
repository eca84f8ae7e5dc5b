"""The experts' activations on tiles [F 128, B], as plain functions that the kernels inline: forward, kept, derivatives.

silu:     h = silu(g) u
clamped:  h = g sigmoid(1.702 g) (u + 1),  g = min(gate, limit),  u = clamp(up, -limit, limit)    as GPT-OSS has it;
          1.702 is also what the hardware's gelu_apprx_sigmoid multiplies by
"""

from __future__ import annotations

from trnt.kernels.nki.api import nisa, nl


def activate(h, gate, up, bias_gate, bias_up, act, limit, has_bias):
    """h [f, B] from gate and up in PSUM."""
    shape = (h.shape[0], h.shape[1])
    if act == "silu":
        s = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
        if has_bias:
            nisa.activation(dst=s, op=nl.silu, data=gate, bias=bias_gate)
            nisa.scalar_tensor_tensor(dst=h, data=up, op0=nl.add, operand0=bias_up, op1=nl.multiply, operand1=s)
        else:
            nisa.activation(dst=s, op=nl.silu, data=gate)
            nisa.tensor_tensor(dst=h, data1=up, data2=s, op=nl.multiply)
        return
    g = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    u = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    if has_bias:
        nisa.tensor_scalar(dst=g, data=gate, op0=nl.add, operand0=bias_gate, op1=nl.minimum, operand1=limit)
        nisa.tensor_scalar(dst=u, data=up, op0=nl.add, operand0=bias_up, op1=nl.minimum, operand1=limit)
    else:
        nisa.tensor_scalar(dst=g, data=gate, op0=nl.minimum, operand0=limit)
        nisa.tensor_scalar(dst=u, data=up, op0=nl.minimum, operand0=limit)
    nisa.tensor_scalar(dst=u, data=u, op0=nl.maximum, operand0=-limit, op1=nl.add, operand1=1.0)
    nisa.activation(dst=g, op=nl.gelu_apprx_sigmoid, data=g)
    nisa.tensor_tensor(dst=h, data1=g, data2=u, op=nl.multiply)


def keep(saved, value, bias, act, limit, has_bias, below):
    """What the backward needs of gate or up [f, B]: the value with its bias, on its own side of the clamp.

    Rounding to bf16 may put a value just outside the limit onto it, and the backward would think it inside: what is
    outside is moved away by 1 (the backward asks only on which side it is). below: up has a lower limit, gate has none.
    """
    if act == "silu" and has_bias:
        nisa.tensor_scalar(dst=saved, data=value, op0=nl.add, operand0=bias)
        return
    if act == "silu":
        nisa.tensor_copy(dst=saved, src=value)
        return
    exact = nl.ndarray((saved.shape[0], saved.shape[1]), dtype=nl.float32, buffer=nl.sbuf)
    outside = nl.ndarray((saved.shape[0], saved.shape[1]), dtype=nl.float32, buffer=nl.sbuf)
    if has_bias:
        nisa.tensor_scalar(dst=exact, data=value, op0=nl.add, operand0=bias)
    else:
        nisa.tensor_copy(dst=exact, src=value)
    nisa.tensor_scalar(dst=outside, data=exact, op0=nl.greater, operand0=limit)
    nisa.tensor_tensor(dst=saved, data1=exact, data2=outside, op=nl.add)
    if below:
        nisa.tensor_scalar(dst=outside, data=exact, op0=nl.less, operand0=-limit)
        nisa.tensor_tensor(dst=saved, data1=saved, data2=outside, op=nl.subtract)


def derivatives(hT, dg, du, phT, g, u, p, act, limit):
    """h, p h, and dg and du without the affinity, all [f, B], from the saved g and u and p = dy W2 in PSUM."""
    shape = (hT.shape[0], hT.shape[1])
    slope = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    value = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    if act == "silu":
        nisa.activation(dst=slope, op=nl.silu_dx, data=g)
        nisa.activation(dst=value, op=nl.silu, data=g)
        nisa.tensor_tensor(dst=hT, data1=value, data2=u, op=nl.multiply)
        nisa.tensor_tensor(dst=slope, data1=slope, data2=u, op=nl.multiply)
    else:
        other = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=other, data=g, op0=nl.minimum, operand0=limit)
        nisa.activation(dst=slope, op=nl.gelu_apprx_sigmoid_dx, data=other)
        nisa.activation(dst=value, op=nl.gelu_apprx_sigmoid, data=other)
        nisa.tensor_scalar(dst=other, data=g, op0=nl.less_equal, operand0=limit)
        nisa.tensor_tensor(dst=slope, data1=slope, data2=other, op=nl.multiply)
        nisa.tensor_scalar(dst=other, data=u, op0=nl.minimum, operand0=limit, op1=nl.maximum, operand1=-limit)
        nisa.tensor_scalar(dst=other, data=other, op0=nl.add, operand0=1.0)
        nisa.tensor_tensor(dst=hT, data1=value, data2=other, op=nl.multiply)
        nisa.tensor_tensor(dst=slope, data1=slope, data2=other, op=nl.multiply)
        for inside in ((nl.less_equal, limit), (nl.greater_equal, -limit)):
            nisa.tensor_scalar(dst=other, data=u, op0=inside[0], operand0=inside[1])
            nisa.tensor_tensor(dst=value, data1=value, data2=other, op=nl.multiply)
    nisa.tensor_tensor(dst=phT, data1=p, data2=hT, op=nl.multiply)
    nisa.tensor_tensor(dst=dg, data1=p, data2=slope, op=nl.multiply)
    nisa.tensor_tensor(dst=du, data1=p, data2=value, op=nl.multiply)
