"""What one process sends in a step, by arithmetic: the formula of `docs/parallelism.md`, held to what is counted.

Every term is a collective of one mesh: how often it runs, and the bytes that one process hands in; `SENT` says what it
sends of them. tests/parallel/test_layouts.py compares with `traffic.Counting` for every layout.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trnt.parallel.degrees import Degrees


@dataclass
class Count:
    """How often, and how many bytes this process sent in all."""

    calls: int = 0
    sent_bytes: int = 0

    def add(self, sent_bytes: int, calls: int = 1) -> None:
        self.calls += calls
        self.sent_bytes += sent_bytes


Traffic = dict[tuple[str, str], Count]
"""By (mesh, kind of collective)."""
# Bytes that one of n processes sends, s being its input: every algorithm that wastes nothing sends as many (Thakur et
# al., 2005: ring and recursive halving), an all-reduce being a reduce-scatter and an all-gather.
SENT: dict[str, Callable[[int, int], int]] = {
    "all-gather": lambda s, n: s * (n - 1),
    "reduce-scatter": lambda s, n: s * (n - 1) // n,
    "all-reduce": lambda s, n: 2 * s * (n - 1) // n,
    "all-to-all": lambda s, n: s * (n - 1) // n,
    "send": lambda s, n: s,
    "receive": lambda s, n: 0,
    "broadcast": lambda s, n: s * (n - 1) // n,
}
Shapes = Mapping[str, tuple[int, ...]]
# Dimension along which tensor parallelism cuts a parameter, by the end of its name; the others are whole everywhere.
CUT = {
    "tok_embeddings.weight": 0, "lm_head.weight": 0, "sinks": 0, "wo.weight": 1, "w2.weight": 1,
    **{f"{name}.{kind}": 0 for name in ("wq", "wk", "wv", "wq_b", "wkv_b", "w1", "w3") for kind in ("weight", "bias")},
    "w1_EFD": 1, "w3_EFD": 1, "w2_EDF": 2, "mlp1_weight_EGD": 1, "mlp1_bias_EG": 1, "mlp2_weight_EDF": 2,
}  # fmt: skip
# Whole parameters that see a part of the tokens or heads: their gradients are added up over the tensor-parallel mesh.
ADDED = re.compile(r"(norm|gate|wq_a|wkv_a)\.(weight|bias)$")
BUFFERS = ("expert_bias_E",)  # in the native checkpoint, but never gathered
LAYER = re.compile(r"^layers\.(\d+)\.")
QUERIES = ("attention.qkv_linear.wq.weight", "attention.wq_b.weight", "attention.wq.weight")  # a family has one
FUSED = re.compile(r"qkv_linear\.w[qkv]\.")  # torchtitan holds the three as one parameter


@dataclass(frozen=True)
class Setting:
    """How a model is run, beside its size."""

    degrees: Degrees
    seq_len: int
    rows: int
    """Rows of one forward pass of one process (`--batch-size`)."""
    passes: int = 1
    """Forward passes of a step (gradient accumulation)."""
    simple: bool = False
    """SimpleFSDP in place of FSDP2."""
    recompute: str = "none"
    sequence_parallel: bool = True
    gathered_bytes: int = 4
    """Of a weight as it is gathered, and of an activation."""
    reduced_bytes: int = 4
    """Of a gradient as it is added up."""

    @property
    def known(self) -> bool:
        """Whether there is a formula: torch's DTensor arranges the backward by sizes where tokens are not shared."""
        return self.degrees.tp == 1 or self.sequence_parallel

    @property
    def microbatches(self) -> int:
        return self.rows if self.degrees.pp > 1 else 1

    @property
    def forwards(self) -> int:
        """Forward passes of a step through one stage."""
        return self.passes * self.microbatches

    @property
    def tokens(self) -> int:
        """Of one process in one of them, whole over the tensor-parallel mesh."""
        return self.rows // self.microbatches * (self.seq_len // self.degrees.cp)


@dataclass(frozen=True)
class Term:
    """A kind of collective of one mesh, for one purpose, in one step of one process."""

    what: str
    mesh: str
    kind: str
    calls: int
    handed_bytes: int
    """In each call, by this process."""
    processes: int

    @property
    def sent_bytes(self) -> int:
        """In all calls."""
        return self.calls * SENT[self.kind](self.handed_bytes, self.processes)


def sent(size: Any, shapes: Shapes, setting: Setting) -> list[Term]:
    """Every term of a process that holds the parameters of these names and whole shapes (a pipeline's: its stages').

    Left out are sums of single numbers (losses, norms, counts). What experts exchange depends on the router: the term
    is the mean over the processes that share them; of a loss the calls of one chunk. Raises ValueError where the
    setting is not `known`.
    """
    if not setting.known:
        raise ValueError("no formula for tensor parallelism without sequence parallelism")
    held = {name: shape for name, shape in shapes.items() if not name.endswith(BUFFERS)}
    sharing = _simple(size, held, setting) if setting.simple else _fsdp2(size, held, setting)
    terms = [*sharing, *_tensor(size, held, setting), *_context(size, held, setting)]
    terms += [*_expert(size, held, setting), *_pipeline(size, held, setting)]
    return [term for term in terms if term.calls and term.processes > 1]


def total(terms: list[Term]) -> Traffic:
    """Calls and bytes by (mesh, kind)."""
    found: Traffic = {}
    for term in terms:
        found.setdefault((term.mesh, term.kind), Count()).add(term.sent_bytes, term.calls)
    return found


def layers(held: Shapes) -> dict[int, list[str]]:
    """The names of each layer."""
    found: dict[int, list[str]] = {}
    for name in held:
        if match := LAYER.match(name):
            found.setdefault(int(match[1]), []).append(name)
    return found


def stages(held: Shapes) -> list[list[int]]:
    """The layers of each pipeline stage: neighbouring stages lie on different processes, so a stage is a run."""
    runs: list[list[int]] = []
    for layer in sorted(layers(held)):
        if not runs or layer != runs[-1][-1] + 1:
            runs.append([])
        runs[-1].append(layer)
    return runs


def moe_layers(held: Shapes) -> list[int]:
    return [layer for layer, names in layers(held).items() if any(is_expert(name) for name in names)]


def is_expert(name: str) -> bool:
    """Whether expert parallelism shares it out."""
    return ".inner_experts." in name


def part(name: str, shape: tuple[int, ...], setting: Setting, size: Any) -> tuple[str, int, int, int]:
    """(mesh that shares a parameter, processes of it, values of the padded share of one, values that are whole)."""
    degrees = setting.degrees
    rows, fsdp, mesh, dimension = list(shape), degrees.dp_shard * degrees.cp, "fsdp", 0
    if is_expert(name) and degrees.ep > 1:
        rows[0] //= degrees.ep
        fsdp, mesh = fsdp * degrees.tp // degrees.ep, "efsdp"
    elif (cut := next((cut for end, cut in CUT.items() if name.endswith(end)), None)) is not None:
        rows[cut] //= degrees.tp
    if is_expert(name):
        dimension = int(fsdp * degrees.ep > size.num_experts)
    share = -(-rows[dimension] // fsdp) * math.prod(rows) // rows[dimension]
    return mesh, fsdp, share, math.prod(rows)


def _units(held: Shapes, tied: bool) -> list[tuple[str, list[str], int, bool]]:
    """What FSDP2 gathers at once: (what, names, gathers of a pass, whether the loss reduces a part on its own)."""
    found = [("layers", names, 2, False) for names in layers(held).values()]
    if "tok_embeddings.weight" in held and not tied:
        found.append(("embedding", ["tok_embeddings.weight"], 2, False))
    if "lm_head.weight" in held:
        found.append(("embedding and head" if tied else "head", ["norm.weight", "lm_head.weight"], 1, True))
    return found


def _fsdp2(size: Any, held: Shapes, setting: Setting) -> Iterator[Term]:
    """A unit is gathered for the forward and, but for the head, again for the backward; its gradient is reduced.

    torchtitan's loss reduces the head's gradient before the backward of the norm, of the same unit, begins: a tied
    head's once more with the embedding's. A pipeline keeps what is gathered, and reduces once a step.
    """
    replicas, pipelined, times = setting.degrees.dp_replicate, setting.degrees.pp > 1, setting.passes
    for what, names, gathers, loss in _units(held, size.tied):
        by_mesh: dict[str, list[tuple[str, int, int]]] = {}
        for name in names:
            mesh, n, share, _ = part(name, held[name], setting, size)
            by_mesh.setdefault(mesh, []).append((name, n, share))
        for mesh, members in by_mesh.items():
            n, share = members[0][1], sum(share for *_, share in members)
            head = sum(share for name, _, share in members if name == "lm_head.weight")
            # under tensor parallelism torchtitan ties them after `fully_shard`, which gathers both
            twice = head if size.tied and setting.degrees.tp > 1 else 0
            handed = (share + twice) * setting.gathered_bytes
            yield Term(what, mesh, "all-gather", times * (1 if pipelined else gathers), handed, n)
            reduced = [share]
            if loss and not pipelined:
                reduced = [head, share if size.tied else share - head]
            for values in reduced:
                handed = values * setting.reduced_bytes
                yield Term(what, mesh, "reduce-scatter", times, handed * n, n)
                yield Term(what, "dp_replicate", "all-reduce", times, handed, replicas)


def _simple(size: Any, held: Shapes, setting: Setting) -> Iterator[Term]:
    """Every parameter on its own, in every forward; a gradient is added up over the replicas before it is cut."""
    replicas, fused = setting.degrees.dp_replicate, dict[str, list[str]]()
    for name in held:
        fused.setdefault(FUSED.sub("qkv_linear.wqkv.", name), []).append(name)
    for name, members in fused.items():
        what = "layers" if LAYER.match(name) else "embedding and head"
        parts = [part(member, held[member], setting, size) for member in members]
        mesh, n = parts[0][:2]
        share, whole = sum(each[2] for each in parts), sum(each[3] for each in parts)
        again = what == "layers" and setting.recompute == "full"
        again |= name == "tok_embeddings.weight" and setting.degrees.tp > 1  # torchtitan's looks at it twice
        yield Term(what, mesh, "all-gather", setting.forwards * (1 + again), share * setting.gathered_bytes, n)
        yield Term(what, mesh, "reduce-scatter", setting.forwards, share * n * setting.reduced_bytes, n)
        yield Term(what, "dp_replicate", "all-reduce", setting.forwards, whole * setting.reduced_bytes, replicas)


def _tensor(size: Any, held: Shapes, setting: Setting) -> Iterator[Term]:
    """Each half of a layer gathers its tokens and scatters its sums; the backward does the reverse.

    The forward's gathers run again in any recomputation, its reductions in the full one: torchtitan's selective
    recomputation keeps the results of reductions.
    """
    t, degrees = setting.degrees.tp, setting.degrees
    whole = setting.tokens * size.hidden_size * setting.gathered_bytes
    moe, every = len(moe_layers(held)), len(layers(held))
    shared = moe if any(".shared_experts." in name for name in held) else 0
    first, last = "tok_embeddings.weight" in held, "lm_head.weight" in held
    by_ep = degrees.ep > 1  # experts get their tokens by the expert mesh, and shared experts gather their own
    gathers = 2 * every + by_ep * (shared - moe)
    scatters = 2 * every + shared - by_ep * moe
    n = setting.forwards
    gather = n * (gathers * (1 + (setting.recompute != "none")) + scatters + first + last)
    scatter = n * (scatters * (1 + (setting.recompute == "full")) + gathers + first + last)
    if not by_ep:
        scores = setting.tokens * size.top_k * 4
        yield Term("router's scores", "tp", "reduce-scatter", n * moe, scores, t)
        if setting.rows // setting.microbatches > 1:  # DTensor cuts rows there, and the way back cuts tokens
            gather += n * moe
    yield Term("tokens", "tp", "all-gather", gather, whole // t, t)
    yield Term("tokens", "tp", "reduce-scatter", scatter, whole, t)
    times = setting.passes if degrees.pp == 1 else 1
    for name, shape in held.items():
        if ADDED.search(name):
            yield Term("whole weights", "tp", "all-reduce", times, math.prod(shape) * setting.reduced_bytes, t)
    if last:
        yield Term("loss", "tp", "all-reduce", 3 * n, setting.tokens * 4, t)
    if by_ep:
        yield Term("counts", "tp", "all-reduce", 2 * n * moe, size.num_experts * 4, t)


def _context(size: Any, held: Shapes, setting: Setting) -> Iterator[Term]:
    """Queries, keys and values to heads, and results to tokens; the backward takes the same ways back."""
    cp, tp, n = setting.degrees.cp, setting.degrees.tp, setting.forwards
    repeated = max(1, cp // (getattr(size, "num_kv_heads", size.num_heads) // tp))
    ways = 3 if setting.recompute == "full" else 2
    for names in layers(held).values():
        rows = {name.split(".", 2)[2]: held[name] for name in names}
        q, out = next(rows[name][0] for name in QUERIES if name in rows), rows["attention.wo.weight"][1]
        k, v = q, out  # DeepSeek's latent attention: as many heads of keys as of queries, of values as of results
        if "attention.qkv_linear.wk.weight" in rows:
            k, v = (rows[f"attention.qkv_linear.{name}.weight"][0] * repeated for name in ("wk", "wv"))
        for what, width in (("queries", q), ("keys", k), ("values", v), ("results", out)):
            handed = setting.tokens * width // tp * setting.gathered_bytes
            yield Term(what, "cp", "all-to-all", n * ways, handed, cp)
    if setting.degrees.pp > 1:  # a stage makes its own document boundaries
        yield Term("positions", "cp", "all-gather", n * len(stages(held)), setting.tokens * 8, cp)


def _expert(size: Any, held: Shapes, setting: Setting) -> Iterator[Term]:
    """Counts, tokens to experts, results back; the backward the two ways of the tokens."""
    ep, n = setting.degrees.ep, setting.forwards * len(moe_layers(held))
    forwards = 2 if setting.recompute == "full" else 1
    tokens = setting.tokens // setting.degrees.tp * size.top_k * size.hidden_size * setting.gathered_bytes
    yield Term("tokens of experts", "ep", "all-to-all", n * (2 * forwards + 2), tokens, ep)
    yield Term("counts of experts", "ep", "all-to-all", n * forwards, size.num_experts * 8, ep)


def _pipeline(size: Any, held: Shapes, setting: Setting) -> Iterator[Term]:
    """Activations to the next stage, their gradients to the one before."""
    ends = 2 * len(stages(held)) - ("tok_embeddings.weight" in held) - ("lm_head.weight" in held)
    handed = setting.tokens // setting.degrees.tp * size.hidden_size * setting.gathered_bytes
    yield Term("activations", "pp", "send", setting.forwards * ends, handed, setting.degrees.pp)
