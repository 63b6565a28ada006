"""Data-sheet figures of GPU models: memory, dense 16-bit tensor throughput, memory bandwidth, MIG slices.

Sources: NVIDIA's data sheets of T4, V100, A10, L4, L40S, A100, H100 (SXM) and H200, dense figures without sparsity; MIG
profiles of the MIG user guide (a slice has so many of seven compute parts and so many of eight memory parts).
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger_collector.accounting.pricing import model_tokens

GIB = 2.0**30


@dataclass(frozen=True, slots=True)
class Card:
    """A model: memory in GiB, teraflops (dense BF16 or FP16), gigabytes a second."""

    word: str
    memory_gib: int
    teraflops: float
    bandwidth: float
    mig: bool = False


CARDS = (
    Card("t4", 16, 65, 320),
    Card("v100", 32, 125, 900),
    Card("a10", 24, 125, 600),
    Card("l4", 24, 121, 300),
    Card("l40s", 48, 362, 864),
    Card("a100", 80, 312, 2039, mig=True),
    Card("h100", 80, 989, 3350, mig=True),
    Card("h200", 141, 989, 4800, mig=True),
)
MIG = ((1, 1), (2, 2), (3, 4), (4, 4))
"""Compute sevenths and memory eighths of the slices that are smaller than the card."""
A100_SMALL_GIB = 40


def card_of(model: str) -> Card | None:
    """The data sheet of a model, None where it is not known."""
    tokens = model_tokens(model)
    found = next((card for card in CARDS if card.word in tokens), None)
    if found is not None and found.word == "a100" and "40gb" in tokens:
        return Card("a100", A100_SMALL_GIB, found.teraflops, 1555, mig=True)
    return found
