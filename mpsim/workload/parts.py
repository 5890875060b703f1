"""The kernels that layers are made of, for one model, one lowering and the tokens of one rank."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from mpsim.workload.expansion import Step, Tokens
from mpsim.workload.kernels import gemm, streaming
from mpsim.workload.operators import OperatorKind, Split
from mpsim.workload.transformer import Lowering, Transformer

__all__ = ["Part"]


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """What an expansion is about; its methods build the kernels.

    Parameters
    ----------
    model : Transformer
    lowering : Lowering
    tokens : Tokens
    """

    model: Transformer
    lowering: Lowering
    tokens: Tokens

    def size(self, features: int) -> float:
        """Bytes of a tensor of so many features a token, as activations are kept [B]."""
        return float(self.lowering.activation_bytes * self.tokens.count * features)

    def norm(
        self,
        name: str,
        features: int = 0,
        *,
        split: Split = Split.SEQUENCE,
        keeps: bool = True,
        feeds: bool = True,
    ) -> Step:
        """Build a norm of the hidden width, or of `features`.

        It `keeps` its input, unless what made it has kept it, and where it `feeds` a GEMM its output for the weight gradient of that.
        """
        width = features or self.model.hidden
        return streaming(
            name,
            "norm",
            split,
            elements=self.tokens.count * width,
            lowering=self.lowering,
            kind=OperatorKind.NORM,
            saved=self.size(width) if keeps else 0.0,
            saved_for_weight=self.size(width) if feeds else 0.0,
        )

    def column(
        self, name: str, features: int, kept: int, *, features_in: int = 0, weights: int = 1
    ) -> Step:
        """Build a GEMM from the hidden width, or from `features_in`; it saves `kept` features of its output.

        Where projections are separate it stands for as many as there are `weights`.
        """
        step = gemm(
            name,
            Split.COLUMN,
            tokens=self.tokens.count,
            features_out=features,
            features_in=features_in or self.model.hidden,
            lowering=self.lowering,
            saved=self.size(kept),
        )
        if weights == 1 or not self.lowering.separate_projections:
            return step
        forward, *backward = (
            dataclasses.replace(one, weights=weights) for one in (step.forward, *step.backward)
        )
        return Step(forward, tuple(backward))

    def row(self, name: str, features: int) -> Step:
        """Build a GEMM back to the hidden width; it saves its input."""
        return gemm(
            name,
            Split.ROW,
            tokens=self.tokens.count,
            features_out=self.model.hidden,
            features_in=features,
            lowering=self.lowering,
            saved_for_weight=self.size(features),
        )

    def replicated(self, name: str, features: int, *, features_in: int = 0) -> Step:
        """Build a narrow GEMM whose weight every tensor-parallel rank has; with sequence parallelism each does its tokens.

        From the hidden width, or from `features_in`.
        """
        step = gemm(
            name,
            Split.COLUMN,
            tokens=self.tokens.count,
            features_out=features,
            features_in=features_in or self.model.hidden,
            lowering=self.lowering,
        )
        tokens = ("m", "m", "k")  # where they are in the product and in those of its two gradients
        forward, *backward = (
            dataclasses.replace(one, split=Split.SEQUENCE, sharded_dim=dim)
            for one, dim in zip((step.forward, *step.backward), tokens, strict=True)
        )
        return Step(dataclasses.replace(forward, saved_split=Split.SEQUENCE), tuple(backward))

    def add(self, suffix: str) -> Iterator[Step]:
        """Build bias, dropout and residual addition, in one kernel or in one each; a norm before them where there is one."""
        model = self.model
        if model.post_norm:
            yield self.norm(f"post_norm{suffix}", feeds=False)
        kernels = ["bias_dropout_add"]
        if not self.lowering.fused_bias_dropout_add:
            asked = (("bias", model.bias), ("dropout", model.dropout > 0), ("residual_add", True))
            kernels = [name for name, present in asked if present]
        for name in kernels:
            yield streaming(
                name + suffix,
                name,
                Split.SEQUENCE,
                elements=self.tokens.count * model.hidden,
                lowering=self.lowering,
                masked=model.dropout > 0,
            )
