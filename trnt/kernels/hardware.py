"""What each NeuronCore generation has: the one table of limits that the interpreter enforces and the kernels plan with.

Sources: the NKI architecture guides of the AWS Neuron SDK (trainium_inferentia2_arch, trainium2_arch, trainium3_arch)
and `nki.language.tile_size`. Sizes are bytes per partition unless said otherwise. Not run on hardware.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

KIB = 1024


@dataclass(frozen=True)
class Core:
    """One physical NeuronCore."""

    name: str
    generation: int
    sbuf_bytes: int
    """State buffer per partition, as the guides print it."""
    sbuf_usable: int
    """What a kernel may hold: on trn2 212,464, what the vendor's own backward kernel allocates; elsewhere assumed."""
    partitions: int = 128
    psum_banks: int = 8
    psum_bank_bytes: int = 2 * KIB
    stationary_max: int = 128
    """Most columns of a stationary matmul operand."""
    moving_max: int = 512
    """Most columns of a moving matmul operand."""


RESERVED = 16 * KIB + 528  # what the compiler keeps of trn2's 224 KiB, by the vendor's kernel

CORES = {
    "trn1": Core("trn1", 2, 192 * KIB, 192 * KIB - RESERVED),
    "trn2": Core("trn2", 3, 224 * KIB, 224 * KIB - RESERVED),
    "trn3": Core("trn3", 4, 256 * KIB, 256 * KIB - RESERVED),
}
PLATFORM = "NEURON_PLATFORM_TARGET_OVERRIDE"  # the environment variable that takes either name
ALIASES = {"gen2": "trn1", "inf2": "trn1", "gen3": "trn2", "gen4": "trn3"}
DEFAULT = "trn2"


def core(name: str) -> Core:
    """The core of a platform name or its alias. Raises KeyError for one that does not exist."""
    return CORES[ALIASES.get(name, name)]


def present() -> Core:
    """The core that the environment names, else trn2's. Raises KeyError for one that does not exist."""
    return core(os.environ.get(PLATFORM, DEFAULT))
