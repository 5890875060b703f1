"""A small GPT for tensor parallelism: the same weights however it is cut, to check cuts.

Shapes: B batch, S sequence, D model, H heads of this rank, V vocabulary of this rank.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend
from torch.utils.checkpoint import checkpoint

from mpsim import structs
from mpsim.workload import attention_flops, gemm_flops

INIT = 0.02
"""Standard deviation of the weights (Radford et al. 2019, GPT-2)."""


@structs.dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the model and its microbatch."""

    layers: int
    hidden: int
    heads: int
    ffn_hidden: int
    vocab: int
    sequence: int
    micro_batch: int

    def shape(self, *names: str) -> dict[str, int]:
        """Some of them by name; all if none is named."""
        return {name: getattr(self, name) for name in names or self.__slots__}

    @property
    def tokens(self) -> int:
        """Tokens of a microbatch."""
        return self.sequence * self.micro_batch

    @property
    def parameters(self) -> int:
        """Parameters of the whole model."""
        layer = 4 * self.hidden**2 + 2 * self.hidden * self.ffn_hidden
        layer += 9 * self.hidden + self.ffn_hidden
        ends = (2 * self.vocab + self.sequence + 2) * self.hidden
        return self.layers * layer + ends

    @property
    def flops(self) -> float:
        """Work of one microbatch's forward, products only, every query against every key [FLOP]."""
        head = gemm_flops(self.tokens, self.vocab, self.hidden)
        return self.layers * layer_flops(self) + head


def layer_flops(sizes: Sizes) -> float:
    """FLOPs of one layer's forward [FLOP]."""
    products = 4 * sizes.hidden**2 + 2 * sizes.hidden * sizes.ffn_hidden
    pairs = sizes.micro_batch * sizes.sequence**2  # of one head as wide as the layer
    attention = attention_flops(pairs, sizes.hidden, sizes.hidden)
    return gemm_flops(sizes.tokens, 1, products) + attention


@structs.dataclass(frozen=True, slots=True)
class Place:
    """Which part of each weight a rank holds."""

    rank: int  # rank, size: in the tensor-parallel group
    size: int
    group: dist.ProcessGroup | None  # none for one rank alone
    device: torch.device
    dtype: torch.dtype

    def weight(self, name: str, *shape: int, dim: int | None = None) -> nn.Parameter:
        """Part of this rank, along `dim`, of the weight `name`, whose values depend on the name."""
        generator = torch.Generator(self.device).manual_seed(zlib.crc32(name.encode()))
        whole = torch.empty(*shape, device=self.device)
        whole.normal_(0.0, INIT, generator=generator)
        if name.endswith("norm"):
            whole += 1.0
        part = whole if dim is None else whole.chunk(self.size, dim)[self.rank]
        return nn.Parameter(part.to(self.dtype, copy=True).contiguous())


class _Enter(torch.autograd.Function):
    """Into the divided part: nothing forward, a sum of gradients backward."""

    @staticmethod
    def forward(ctx: SimpleNamespace, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        """Nothing."""
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: SimpleNamespace, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Sum over the group."""
        grad = grads[0].contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class _Leave(torch.autograd.Function):
    """Out of the divided part: a sum forward, nothing backward."""

    @staticmethod
    def forward(_: object, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        """Sum over the group."""
        total = x.contiguous()
        dist.all_reduce(total.data, group=group)  # in place: what made it does not need it again
        return total.view_as(total)

    @staticmethod
    def backward(_: object, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Nothing."""
        return grads[0], None


def _enter(x: torch.Tensor, place: Place) -> torch.Tensor:
    apply: Callable[..., torch.Tensor] = _Enter.apply
    return x if place.size == 1 else apply(x, place.group)


def _leave(x: torch.Tensor, place: Place) -> torch.Tensor:
    apply: Callable[..., torch.Tensor] = _Leave.apply
    return x if place.size == 1 else apply(x, place.group)


class Layer(nn.Module):
    """A pre-norm layer of GPT-2 without dropout, divided (Shoeybi et al. 2019, figure 3)."""

    def __init__(self, sizes: Sizes, place: Place, index: int, *, recompute: bool = False) -> None:
        super().__init__()
        d, f, name = sizes.hidden, sizes.ffn_hidden, f"layer{index}."
        self.place, self.recompute = place, recompute
        self.heads, self.head_dim = sizes.heads // place.size, d // sizes.heads
        self.norm1 = place.weight(name + "1.norm", d)
        self.norm1_bias = place.weight(name + "1.norm.bias", d)
        # heads of this rank: q, k and v of each head together, so that a cut keeps heads whole
        self.qkv = place.weight(name + "qkv", 3 * d, d, dim=0)
        self.qkv_bias = place.weight(name + "qkv.bias", 3 * d, dim=0)
        self.proj = place.weight(name + "proj", d, d, dim=1)
        self.proj_bias = place.weight(name + "proj.bias", d)
        self.norm2 = place.weight(name + "2.norm", d)
        self.norm2_bias = place.weight(name + "2.norm.bias", d)
        self.fc1 = place.weight(name + "fc1", f, d, dim=0)
        self.fc1_bias = place.weight(name + "fc1.bias", f, dim=0)
        self.fc2 = place.weight(name + "fc2", d, f, dim=1)
        self.fc2_bias = place.weight(name + "fc2.bias", d)

    def forward(self, x_BSD: torch.Tensor) -> torch.Tensor:
        """Attention, then the feed-forward part, each added to what came in."""
        if self.recompute and torch.is_grad_enabled():
            again: torch.Tensor = checkpoint(self._layer, x_BSD, use_reentrant=False)
            return again
        return self._layer(x_BSD)

    def _layer(self, x_BSD: torch.Tensor) -> torch.Tensor:
        x_BSD = x_BSD + self._attention(x_BSD)
        return x_BSD + self._feed_forward(x_BSD)

    def _attention(self, x_BSD: torch.Tensor) -> torch.Tensor:
        batch, sequence, width = x_BSD.shape
        y = _enter(functional.layer_norm(x_BSD, (width,), self.norm1, self.norm1_bias), self.place)
        qkv = functional.linear(y, self.qkv, self.qkv_bias)
        q, k, v = (
            qkv.view(batch, sequence, self.heads, 3, self.head_dim).permute(3, 0, 2, 1, 4).unbind(0)
        )
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out = out.transpose(1, 2).reshape(batch, sequence, self.heads * self.head_dim)
        return _leave(functional.linear(out, self.proj), self.place) + self.proj_bias

    def _feed_forward(self, x_BSD: torch.Tensor) -> torch.Tensor:
        y = functional.layer_norm(x_BSD, x_BSD.shape[-1:], self.norm2, self.norm2_bias)
        wide = functional.linear(_enter(y, self.place), self.fc1, self.fc1_bias)
        narrow = functional.linear(functional.gelu(wide, approximate="tanh"), self.fc2)
        return _leave(narrow, self.place) + self.fc2_bias


def attention_backend(sizes: Sizes, place: Place) -> str:
    """Kernel that torch picks for attention: flash, cudnn, efficient, math; empty if unsaid."""
    shape = (sizes.micro_batch, sizes.sequence, sizes.heads // place.size, 3, -1)
    packed = torch.empty(
        *shape[:2], 3 * sizes.hidden // place.size, device=place.device, dtype=place.dtype
    )
    q, k, v = packed.requires_grad_().view(shape).permute(3, 0, 2, 1, 4).unbind(0)
    choose = getattr(torch, "_fused_sdp_choice", None)
    if choose is None:
        return ""
    try:
        number = int(choose(q, k, v, is_causal=True))
    except (RuntimeError, TypeError):  # a private name, whose arguments may change
        return ""
    members = SDPBackend.__members__.items()
    known = {int(value): name for name, value in members}  # type: ignore[call-overload]
    return known.get(number, "").removesuffix("_ATTENTION").lower()


def _own_ids(ids: torch.Tensor, count: int, place: Place) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids within this rank's part of the vocabulary, 0 for others, and which are others."""
    local = ids - place.rank * count
    outside = (local < 0) | (local >= count)
    return local.masked_fill(outside, 0), outside


class Embedding(nn.Module):
    """Token and learned position embedding; each rank has a part of the vocabulary."""

    def __init__(self, sizes: Sizes, place: Place) -> None:
        super().__init__()
        self.place = place
        self.words = place.weight("words", sizes.vocab, sizes.hidden, dim=0)
        self.positions = place.weight("positions", sizes.sequence, sizes.hidden)

    def forward(self, ids_BS: torch.Tensor) -> torch.Tensor:
        """Ids to vectors."""
        if self.place.size == 1:
            return functional.embedding(ids_BS, self.words) + self.positions
        local, outside = _own_ids(ids_BS, self.words.shape[0], self.place)
        part = functional.embedding(local, self.words)
        part = part.masked_fill(outside.unsqueeze(-1), 0.0)
        return _leave(part, self.place) + self.positions


class Head(nn.Module):
    """Final norm and logits; each rank has a part of the vocabulary."""

    def __init__(self, sizes: Sizes, place: Place) -> None:
        super().__init__()
        self.place = place
        self.norm = place.weight("final.norm", sizes.hidden)
        self.norm_bias = place.weight("final.norm.bias", sizes.hidden)
        self.logits = place.weight("logits", sizes.vocab, sizes.hidden, dim=0)

    def forward(self, x_BSD: torch.Tensor) -> torch.Tensor:
        """Vectors to logits of this rank's part."""
        y = functional.layer_norm(x_BSD, x_BSD.shape[-1:], self.norm, self.norm_bias)
        return functional.linear(_enter(y, self.place), self.logits)


class Gpt(nn.Module):
    """Layers `first` up to `last`, after the embedding if first of all, before the head if last."""

    def __init__(
        self,
        sizes: Sizes,
        place: Place,
        *,
        first: int = 0,
        last: int | None = None,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        end = sizes.layers if last is None else last
        self.embedding = Embedding(sizes, place) if first == 0 else None
        layers = [Layer(sizes, place, i, recompute=recompute) for i in range(first, end)]
        self.layers = nn.ModuleList(layers)
        self.head = Head(sizes, place) if end == sizes.layers else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Ids or vectors to vectors or logits."""
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return x if self.head is None else self.head(x)


def loss_of(place: Place) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Cross entropy of logits whose vocabulary is divided; takes logits and targets."""

    def alone(logits_BSV: torch.Tensor, ids_BS: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits_BSV.flatten(0, 1).float(), ids_BS.flatten())

    def divided(logits_BSV: torch.Tensor, ids_BS: torch.Tensor) -> torch.Tensor:
        logits = logits_BSV.flatten(0, 1).float()
        local, outside = _own_ids(ids_BS.flatten(), logits.shape[-1], place)
        top = logits.detach().max(-1).values
        dist.all_reduce(top, op=dist.ReduceOp.MAX, group=place.group)
        logits = logits - top.unsqueeze(-1)
        mine = logits.gather(-1, local.unsqueeze(-1)).squeeze(-1)
        target = _leave(mine.masked_fill(outside, 0.0), place)
        total = _leave(logits.exp().sum(-1), place)
        return (total.log() - target).mean()

    return alone if place.size == 1 else divided
