"""Peak memory as torch's allocator counts it, from the memory of a simulated rank."""

from __future__ import annotations

from collections.abc import Mapping

from mpsim.measured.records import Measurement
from mpsim.result import Result

__all__ = ["allocated_bytes"]


def allocated_bytes(result: Result, one: Measurement) -> float:
    """Most that tensors of the fullest rank take at a time in the step that was measured [B].

    Parameters
    ----------
    result : Result
        Of the step.
    one : Measurement
        The step.

    Notes
    -----
    The allocator counts tensors alone: neither the driver's context nor what is lost between them. Without a pipeline there are no gradients
    before the first backward of a step, because ``zero_grad`` drops them: one microbatch is fullest either when its loss is
    differentiated, with every activation and no gradient, or at the end of its backward, with every gradient and no activation. DDP has its
    buckets beside them all the time.
    """
    memory = result.summary["memory"]
    assert isinstance(memory, Mapping)
    parts = {name: float(memory[name]) for name in _PARTS}
    states = parts["parameters"] + parts["optimizer"]
    held = parts["activations"] + parts["logits"]
    way = one.variant.get("data_parallel", "none")
    if one.shape.get("pp", 1) > 1 or way == "fsdp2":
        return float(memory["total"]) - float(memory["overhead"])
    buckets = parts["gradients"] if way == "ddp" else 0.0
    if one.shape.get("microbatches", 1) > 1:
        return states + buckets + parts["gradients"] + held
    return states + buckets + max(parts["gradients"], held)


_PARTS = ("parameters", "gradients", "optimizer", "activations", "logits")
