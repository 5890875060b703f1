"""Adam on the host's own cores: Ren et al., ZeRO-Offload (2021), table 4 (recalled), two Xeon 8168 of a DGX-2."""

from __future__ import annotations

import pytest

from mpsim.framework import framework
from mpsim.hardware import system
from mpsim.hardware.host import host_of

BILLIONS = (1, 2, 4, 8, 10)
SECONDS = {
    "torch-fsdp2": (1.39, 2.75, 5.71, 11.93, 14.76),
    "deepspeed-zero3": (0.22, 0.51, 1.03, 2.41, 2.57),
}


@pytest.mark.parametrize("stack", sorted(SECONDS))
def test_host_steps_of_adam_take_what_was_measured(stack: str) -> None:
    """Traffic a parameter over the host's sustained memory rate is within a quarter of every size, and torch's loop takes five times DeepSpeed's kernel."""
    host = host_of(system("dgx-2", nodes=1))
    traffic = framework(stack).optimizer.host_optimizer_traffic
    for billions, seconds in zip(BILLIONS, SECONDS[stack], strict=True):
        assert traffic * billions * 1e9 / host.memory_bandwidth == pytest.approx(seconds, rel=0.25)
