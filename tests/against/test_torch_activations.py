"""Saved bytes of a layer against what PyTorch's autograd keeps for it, storage by storage.

Every tensor that a backward node saves is seen by a hook; storages count once, parameters and constant tables do not. What is left
over are the statistics of norms, which mpsim leaves out (4 to 8 bytes a token and norm). On a CPU torch takes ``rms_norm`` and
attention apart or lays their output out anew; `RmsNorm` and `Flash` keep what the fused CUDA kernels keep: the input and one
statistic; queries, keys, values, the output and the logsumexp.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from mpsim.workload import Experts, Lowering, Transformer, expand_layer

torch = pytest.importorskip("torch", reason="torch is not installed: pip install mpsim[validate]")
nn, functional = torch.nn, torch.nn.functional

pytestmark = pytest.mark.torch

B, S = 2, 64
STATISTICS = 2 * 4  # bytes a token that a norm keeps at most: mean and inverse deviation, float32


class RmsNorm(torch.autograd.Function):
    """The fused kernel: keeps its input, its weight and one float32 a token."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        """Normalise in float32."""
        inverse = (x.float().square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        ctx.save_for_backward(x, weight, inverse)
        return (x.float() * inverse).to(x.dtype) * weight

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, Any]:
        """Not needed to see what is kept; the gradient of the weight stands for both."""
        x, weight, inverse = ctx.saved_tensors
        return grad * weight, (grad * x * inverse).sum((0, 1)).to(weight.dtype)


class Flash(torch.autograd.Function):
    """The fused kernel, with an output that is (batch, sequence, heads, width) in memory as on a GPU."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any) -> Any:
        """Run torch's fused kernel for the CPU; q, k, v are (batch, heads, sequence, width)."""
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, is_causal=True
        )
        out = out.transpose(1, 2).contiguous()
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, Any, Any]:
        """Hand the gradient through; what is kept is the question here."""
        q, k, v, _, _ = ctx.saved_tensors
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)


def linear(into: int, out: int, dtype: Any, *, bias: bool = False) -> Any:
    """Build a projection."""
    return nn.Linear(into, out, bias=bias, dtype=dtype)


class Gpt(nn.Module):
    """A GPT layer without dropout: layer norms, biases, GELU, attention fused or one product at a time."""

    def __init__(self, model: Transformer, dtype: Any, *, fused: bool) -> None:
        super().__init__()
        h, self.heads, self.fused = model.hidden, model.heads, fused
        self.norm1, self.norm2 = (nn.LayerNorm(h, dtype=dtype) for _ in range(2))
        self.qkv = linear(h, 3 * h, dtype, bias=True)
        self.proj = linear(h, h, dtype, bias=True)
        self.fc1 = linear(h, model.ffn_hidden, dtype, bias=True)
        self.fc2 = linear(model.ffn_hidden, h, dtype, bias=True)
        mask = torch.full((S, S), float("-inf"), dtype=dtype).triu(1)
        self.register_buffer("mask", mask)

    def attend(self, x: Any) -> Any:
        """Attention of (batch, sequence, hidden)."""
        shape = (B, S, 3, self.heads, -1)
        q, k, v = self.qkv(x).view(shape).permute(2, 0, 3, 1, 4)
        if self.fused:
            return self.proj(Flash.apply(q, k, v).flatten(2))
        scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5 + self.mask
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

    def forward(self, x: Any) -> Any:
        """Run the layer."""
        x = x + self.attend(self.norm1(x))
        return x + self.fc2(functional.gelu(self.fc1(self.norm2(x))))


class Llama(nn.Module):
    """A Llama layer: RMS norms, rotary positions, grouped queries, SwiGLU; projections apart or merged."""

    def __init__(self, model: Transformer, dtype: Any, *, merged: bool, normed: bool) -> None:
        super().__init__()
        self.model, self.merged, self.normed = model, merged, normed
        h, q, kv = model.hidden, model.query_features, model.kv_features
        self.weights = nn.ParameterList(torch.ones(h, dtype=dtype) for _ in range(2))
        head = [torch.ones(model.head_dim, dtype=dtype) for _ in range(2)]
        self.head_weights = nn.ParameterList(head)
        self.qkv = linear(h, q + 2 * kv, dtype) if merged else None
        self.q, self.k, self.v = (linear(h, width, dtype) for width in (q, kv, kv))
        self.proj = linear(q, h, dtype)
        self.gate, self.up = (linear(h, model.ffn_hidden, dtype) for _ in range(2))
        self.down = linear(model.ffn_hidden, h, dtype)
        angle = torch.arange(S)[:, None, None] * torch.ones(model.head_dim)
        self.register_buffer("cos", angle.cos().to(dtype))
        self.register_buffer("sin", angle.sin().to(dtype))

    def rotate(self, x: Any) -> Any:
        """Rotate halves of (batch, sequence, heads, width)."""
        first, second = x.chunk(2, -1)
        return x * self.cos + torch.cat((-second, first), -1) * self.sin

    def heads(self, x: Any) -> tuple[Any, Any, Any]:
        """Queries, keys and values of every head."""
        model = self.model
        if self.qkv is not None:
            sizes = [model.query_features, model.kv_features, model.kv_features]
            parts = self.qkv(x).split(sizes, -1)
        else:
            parts = (self.q(x), self.k(x), self.v(x))
        q, k, v = (one.unflatten(-1, (-1, model.head_dim)) for one in parts)
        if self.normed:
            q, k = (
                RmsNorm.apply(one, weight)
                for one, weight in zip((q, k), self.head_weights, strict=True)
            )
        return q, k, v

    def forward(self, x: Any) -> Any:
        """Run the layer."""
        q, k, v = self.heads(RmsNorm.apply(x, self.weights[0]))
        turned = (one.transpose(1, 2) for one in (self.rotate(q), self.rotate(k), v))
        x = x + self.proj(Flash.apply(*turned).flatten(2))
        y = RmsNorm.apply(x, self.weights[1])
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Mixture(nn.Module):
    """Routed experts and a shared one behind a norm, dropless, weights after the experts."""

    def __init__(self, model: Transformer, dtype: Any) -> None:
        super().__init__()
        assert model.moe is not None
        self.moe, h, inner = model.moe, model.hidden, model.moe.ffn_hidden
        self.weight = nn.Parameter(torch.ones(h, dtype=dtype))
        self.router = linear(h, model.moe.experts, dtype)
        experts = range(model.moe.experts)
        self.gate = nn.ModuleList(linear(h, inner, dtype) for _ in experts)
        self.up = nn.ModuleList(linear(h, inner, dtype) for _ in experts)
        self.down = nn.ModuleList(linear(inner, h, dtype) for _ in experts)
        shared = model.moe.shared_features
        self.shared = nn.ModuleList(linear(h, shared, dtype) for _ in range(2))
        self.shared_down = linear(shared, h, dtype)

    def forward(self, x: Any) -> Any:
        """Route, run every expert on its rows, weigh and sum."""
        y = RmsNorm.apply(x, self.weight)
        rows = y.flatten(0, 1)
        scores = self.router(rows).float().softmax(-1)
        weights, chosen = scores.topk(self.moe.top_k, -1)
        order = chosen.flatten().argsort(stable=True)
        token = order // self.moe.top_k
        counts = chosen.flatten().bincount(minlength=self.moe.experts).tolist()
        outputs = [
            down(functional.silu(gate(part)) * up(part))
            for part, gate, up, down in zip(
                rows[token].split(counts), self.gate, self.up, self.down, strict=True
            )
        ]
        weighed = torch.cat(outputs) * weights.flatten()[order].to(x.dtype)[:, None]
        place = token[:, None].expand_as(weighed)
        routed = torch.zeros_like(rows).scatter_add(0, place, weighed).view_as(x)
        gate, up = self.shared
        return x + routed + self.shared_down(functional.silu(gate(y)) * up(y))


def kept(layer: Any, x: Any) -> dict[int, Any]:
    """Tensors that the backward pass of `layer` keeps, one a storage; parameters and buffers excepted."""
    own = {one.untyped_storage().data_ptr() for one in [*layer.parameters(), *layer.buffers()]}
    found: dict[int, Any] = {}

    def see(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = tensor  # held, so that its address is not given out again
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(see, lambda tensor: tensor):
        output = layer(x)
    output.sum().backward()
    return found


def size(tensors: Any) -> int:
    """Bytes of the storages behind tensors."""
    return sum(one.untyped_storage().nbytes() for one in tensors)


def predicted(model: Transformer, lowering: Lowering) -> float:
    """Saved bytes of its only layer."""
    kind = model.layer_kinds[0]
    return expand_layer(model, lowering, kind=kind, sequences=B, sequence_length=S).saved_bytes()


def gpt(heads: int, width: int) -> Transformer:
    """Build a GPT layer."""
    hidden = heads * width
    return Transformer(
        name="gpt",
        layers=1,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=width,
        ffn_hidden=4 * hidden,
        vocab=1000,
    )


def llama(heads: int, kv_heads: int, *, normed: bool = False, moe: Any = None) -> Transformer:
    """Build a Llama layer."""
    return Transformer(
        name="llama",
        layers=1,
        hidden=256,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=32,
        ffn_hidden=704,
        vocab=1000,
        gated_mlp=True,
        norm="rmsnorm",
        bias=False,
        positions="rotary",
        qk_norm=normed,
        moe=moe,
    )


@pytest.mark.parametrize(
    ("shape", "fused", "element"),
    [*itertools.product([(4, 32), (8, 32), (2, 64)], [True, False], [2, 4])],
)
def test_a_gpt_layer_keeps_what_autograd_keeps(
    shape: tuple[int, int], fused: bool, element: int
) -> None:
    """Fused or not, in bf16 and fp32: to the byte but for the statistics of two norms."""
    dtype = torch.bfloat16 if element == 2 else torch.float32
    model = gpt(*shape)
    x = torch.randn(B, S, model.hidden, dtype=dtype, requires_grad=True)
    measured = size(kept(Gpt(model, dtype, fused=fused), x).values())
    lowering = Lowering(fused_attention=fused, activation_bytes=element)
    assert 0 < measured - predicted(model, lowering) <= 2 * STATISTICS * B * S


@pytest.mark.parametrize(
    ("kv_heads", "merged", "normed", "element"),
    [*itertools.product([1, 2, 8], [True, False], [True, False], [2, 4])],
)
def test_a_llama_layer_keeps_what_autograd_keeps(
    kv_heads: int, merged: bool, normed: bool, element: int
) -> None:
    """One, some or all key-value heads; a merged projection is kept whole because the values are a view of it."""
    dtype = torch.bfloat16 if element == 2 else torch.float32
    model = llama(8, kv_heads, normed=normed)
    x = torch.randn(B, S, model.hidden, dtype=dtype, requires_grad=True)
    measured = size(kept(Llama(model, dtype, merged=merged, normed=normed), x).values())
    lowering = Lowering(merged_qkv=merged, fused_bias_activation=False, activation_bytes=element)
    norms = 2 + (model.heads + model.kv_heads if normed else 0)
    assert 0 < measured - predicted(model, lowering) <= norms * STATISTICS * B * S


@pytest.mark.parametrize(("experts", "top_k"), [(4, 1), (8, 2), (8, 8), (16, 3)])
@pytest.mark.parametrize("element", [2, 4])
def test_experts_keep_what_autograd_keeps(experts: int, top_k: int, element: int) -> None:
    """Routed rows, activations and outputs of the experts, a shared one, and float32 scores; indices count apart."""
    dtype = torch.bfloat16 if element == 2 else torch.float32
    moe = Experts(experts=experts, top_k=top_k, ffn_hidden=96, shared_experts=1)
    model = llama(8, 8, moe=moe)
    x = torch.randn(B, S, model.hidden, dtype=dtype, requires_grad=True)
    found = kept(Mixture(model, dtype), x).values()
    floats = size(one for one in found if one.dtype.is_floating_point)
    lowering = Lowering(fused_bias_activation=False, activation_bytes=element)
    layer = expand_layer(model, lowering, kind="moe", sequences=B, sequence_length=S)
    names = [one.name for one in layer.forward]
    mine = layer.forward[names.index("norm2") :]
    places, weights = 8 * B * S * top_k, 4 * B * S * top_k  # int64 and float32, which topk keeps
    expected = sum(one.saved + one.saved_for_weight for one in mine) - places - weights
    # besides the statistics of the norm, torch keeps the weights in the type of what they multiply
    assert expected < floats <= expected + STATISTICS * B * S + weights
    assert size(one for one in found if not one.dtype.is_floating_point) >= places
