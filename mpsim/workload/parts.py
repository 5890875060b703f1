"""The kernels that layers are made of, for one model, one lowering and the tokens of one rank."""

from __future__ import annotations

from collections.abc import Iterator

from mpsim import structs
from mpsim.workload.builders import STATISTIC_BYTES, linear, streaming
from mpsim.workload.expansion import Lowering, Step, Tokens
from mpsim.workload.operators import Module, Role, Split
from mpsim.workload.transformer import Transformer


@structs.dataclass(frozen=True, slots=True)
class Part:
    """Model, lowering and tokens of one expansion, with methods that build its kernels."""

    model: Transformer
    lowering: Lowering
    tokens: Tokens
    document: int = 0
    """Tokens that attend to each other where several samples share a sequence; 0 for all."""

    @property
    def attending(self) -> Tokens:
        """The same tokens as sequences of those that attend to each other."""
        if not self.document:
            return self.tokens
        count = max(round(self.tokens.count / self.document), 1)
        return Tokens(count, self.document, self.document)

    def size(self, features: int, *, stream: bool = False) -> float:
        """Bytes of a tensor of so many features a token: kept, or of the residual `stream` [B]."""
        # autocast leaves residuals as the embedding is
        wide = stream and self.lowering.autocast
        element = STATISTIC_BYTES if wide else self.lowering.activation_bytes
        return float(element * self.tokens.count * features)

    def norm(
        self,
        module: Module,
        name: str,
        features: int = 0,
        *,
        role: Role = Role.NORM,
        split: Split = Split.SEQUENCE,
        keeps: bool = True,
        feeds: bool = True,
    ) -> Step:
        """Build a norm of the hidden width, or of `features`.

        It `keeps` its input, unless what made it has, and where it `feeds` a GEMM its output for
        that weight gradient. A chain of kernels keeps tensors of its own in any case.
        """
        width = features or self.model.hidden
        wide = self.lowering.wide_norms and self.model.norm == "rmsnorm"
        kept = self.size(width, stream=True) if keeps or wide else 0.0
        kept += float(wide * STATISTIC_BYTES * self.tokens.count * width)
        # autocast casts what comes out for each product that reads it
        apart = self.lowering.autocast and self.lowering.separate_projections
        readers = {Module.ATTENTION: 3, Module.MLP: 1 + self.model.gated_mlp}
        fed = self.size(width) * (readers.get(module, 1) if apart else 1)
        return streaming(
            "wide_norm" if wide else "norm",
            split,
            elements=self.tokens.count * width,
            lowering=self.lowering,
            role=role,
            module=module,
            name=name,
            saved=kept,
            saved_for_weight=fed if feeds else 0.0,
        )

    def stream(
        self,
        passes: str,
        module: Module,
        elements: int,
        name: str = "",
        *,
        role: Role | None = None,
        split: Split = Split.TENSOR,
        masked: bool = True,
        saved: float = 0.0,
    ) -> Step:
        """Build a memory-bound kernel of so many elements, as `streaming` does."""
        return streaming(
            passes,
            split,
            elements=elements,
            lowering=self.lowering,
            role=role,
            module=module,
            name=name,
            masked=masked,
            saved=saved,
        )

    def column(
        self,
        place: tuple[Module, Role],
        name: str,
        features: int,
        saved: int,
        *,
        features_in: int = 0,
        weights: int = 1,
    ) -> Step:
        """Build a GEMM from the hidden width, or `features_in`; it saves `saved` output features.

        Where projections are separate it stands for as many as there are `weights`.
        """
        sizes, kept = (features, features_in or self.model.hidden), self.size(saved)
        weights = weights if self.lowering.separate_projections else 1
        return self._linear(Split.COLUMN, place, name, sizes, weights=weights, saved=kept)

    def row(self, place: tuple[Module, Role], name: str, features: int) -> Step:
        """Build a GEMM back to the hidden width; it saves its input."""
        sizes, kept = (self.model.hidden, features), self.size(features)
        return self._linear(Split.ROW, place, name, sizes, saved_for_weight=kept)

    def replicated(
        self, place: tuple[Module, Role], name: str, features: int, *, features_in: int = 0
    ) -> Step:
        """Build a narrow GEMM whose weight every tensor-parallel rank has; with sequence
        parallelism each does its tokens.

        From the hidden width, or from `features_in`.
        """
        sizes = features, features_in or self.model.hidden
        return self._linear(Split.SEQUENCE, place, name, sizes)

    def _linear(
        self,
        split: Split,
        place: tuple[Module, Role],
        name: str,
        sizes: tuple[int, int],
        *,
        weights: int = 1,
        saved: float = 0.0,
        saved_for_weight: float = 0.0,
    ) -> Step:
        """Build a GEMM to and from so many features."""
        return linear(
            place[1],
            split,
            tokens=self.tokens.count,
            features_out=sizes[0],
            features_in=sizes[1],
            lowering=self.lowering,
            module=place[0],
            name=name,
            weights=weights,
            saved=saved,
            saved_for_weight=saved_for_weight,
        )

    def add(self, module: Module, suffix: str) -> Iterator[Step]:
        """Build bias, dropout and residual, in one kernel or one each; a norm before, if any."""
        model = self.model
        if model.post_norm:
            yield self.norm(module, f"post_norm{suffix}", role=Role.POST_NORM, feeds=False)
        kernels = {"bias_dropout_add": Role.BIAS_DROPOUT_ADD}
        if not self.lowering.fused_bias_dropout_add:
            kernels = {"bias": Role.RESIDUAL_BIAS} if model.bias else {}
            kernels |= {"dropout": Role.RESIDUAL_DROPOUT} if model.dropout > 0 else {}
            kernels["residual_add"] = Role.RESIDUAL_ADD
        elements, masked = self.tokens.count * model.hidden, model.dropout > 0
        for passes, role in kernels.items():
            name, split = passes + suffix, Split.SEQUENCE
            yield self.stream(passes, module, elements, name, role=role, split=split, masked=masked)
