"""The shape of a dense decoder-only transformer, and what follows from it alone.

Parameters: of a gated (Llama-like) layer the matrices Wq, Wk, Wv, Wo and three of the MLP, two RMS
norms; embedding and output head apart (Touvron et al. 2023). Of a plain (GPT-like) layer the same
four, two of the MLP, biases and two layer norms; learned positions and a head that shares the
embedding, which for grouped-query-free models is the 12Lh^2 + 13Lh + (V+s)h of Narayanan et al.
2021. Limits: no mixture of experts, no encoder, no latent attention.
"""

from __future__ import annotations

from dataclasses import dataclass

ASPECT = 128
"""Hidden size over layers where only the number of parameters is given: GPT-3 has 128, Llama-2-70B
102.
"""
HEAD_SIZE = 128


@dataclass(frozen=True, slots=True)
class Architecture:
    """Sizes of a model.

    `kv_heads` below `heads` is grouped-query attention; `gated`: SwiGLU, RMS norm, no biases.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    mlp_hidden: int
    vocabulary: int
    gated: bool = True
    positions: int = 0
    """Learned positions, of plain models only."""
    assumed: bool = False
    """True where the sizes were derived from a number of parameters."""

    def __post_init__(self) -> None:
        sizes = (
            self.layers,
            self.hidden,
            self.heads,
            self.kv_heads,
            self.mlp_hidden,
            self.vocabulary,
        )
        if min(sizes) < 1:
            raise ValueError(
                "layers, hidden size, heads, MLP size and vocabulary must be at least 1"
            )
        if self.heads % self.kv_heads:
            raise ValueError(
                f"{self.heads} heads cannot share {self.kv_heads} key-value heads evenly"
            )

    @property
    def head_size(self) -> float:
        """Elements of one head."""
        return self.hidden / self.heads

    @property
    def kv_hidden(self) -> float:
        """Elements of all keys (or values) of a token in one layer."""
        return self.kv_heads * self.head_size

    @property
    def layer_parameters(self) -> float:
        """Parameters of one layer."""
        h, f, kv = self.hidden, self.mlp_hidden, self.kv_hidden
        attention = 2 * h * h + 2 * h * kv
        if self.gated:
            return attention + 3 * h * f + 2 * h
        return attention + 2 * h * f + (2 * h + 2 * kv) + (h + f) + 4 * h

    @property
    def parameters(self) -> float:
        """All parameters, with embedding and head."""
        ends = (
            2 * self.vocabulary * self.hidden + self.hidden
            if self.gated
            else ((self.vocabulary + self.positions) * self.hidden + 2 * self.hidden)
        )
        return self.layers * self.layer_parameters + ends


KNOWN = {
    "gpt-3-175b": Architecture(96, 12288, 96, 96, 49152, 50257, gated=False, positions=2048),
    "llama-2-7b": Architecture(32, 4096, 32, 32, 11008, 32000),
    "llama-2-13b": Architecture(40, 5120, 40, 40, 13824, 32000),
    "llama-2-70b": Architecture(80, 8192, 64, 8, 28672, 32000),
    "llama-3-8b": Architecture(32, 4096, 32, 8, 14336, 128256),
    "llama-3-70b": Architecture(80, 8192, 64, 8, 28672, 128256),
    "llama-3.1-405b": Architecture(126, 16384, 128, 8, 53248, 128256),
    "mistral-7b": Architecture(32, 4096, 32, 8, 14336, 32000),
}
"""Published shapes: Brown et al. 2020 table 2.1; the models' own config.json."""


def published_shape(name: str) -> Architecture:
    """The published shape of this name. Raises ValueError naming those that there are."""
    shape = KNOWN.get(name.strip().casefold())
    if shape is None:
        raise ValueError(f"{name!r} is none of the architectures known here: {', '.join(KNOWN)}")
    return shape


def assumed_from(parameters: float) -> Architecture:
    """A plausible shape for so many parameters: 12Lh^2 with h = 128 L, plain heads of 128, MLP of
    4h, 32,000 words.

    Good for activations and KV cache to a factor of two or so; grouped-query attention is not
    assumed.
    """
    if not parameters > 0:
        raise ValueError("a model has more than 0 parameters")
    layers = max(1, round((parameters / (12 * ASPECT**2)) ** (1 / 3)))
    hidden = max(1, round((parameters / (12 * layers)) ** 0.5))
    heads = max(1, round(hidden / HEAD_SIZE))
    return Architecture(layers, hidden, heads, heads, 4 * hidden, 32000, gated=False, assumed=True)
