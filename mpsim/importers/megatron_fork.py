"""Megatron-DeepSpeed: options that the fork has beside Megatron's flags.

References
----------
microsoft/Megatron-DeepSpeed f4157bea and bigscience-workshop/Megatron-DeepSpeed 8387ae17, ``megatron/arguments.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mpsim.formats.words import table
from mpsim.importers.ledger import Ledger

__all__ = ["FORKED", "put_fork"]

FORKED: Final = "23.04"
"""The version of Megatron-LM whose defaults the fork has."""


def put_fork(ledger: Ledger, given: Mapping[str, Any]) -> None:
    """Put the fork's own options into the ledger of a launch script; the rest of its ds_config is to be laid over it.

    Parameters
    ----------
    ledger : Ledger
    given : mapping of str to object
        Every option by its name, without dashes.
    """
    known: Mapping[str, str | None] = table("mpsim.formats.data", "megatron")["fork"]
    ledger.put("--deepspeed", "framework.preset", "megatron-deepspeed-2023")
    for name in known.keys() & given.keys():
        key, to = f"--{name}", known[name]
        if name in ("deepspeed_config", "deepspeed-config"):
            ledger.ignore(key, "a file of DeepSpeed: import it and lay it over this with --onto")
        elif to is None:
            why = "of DeepSpeed: not simulated apart from the preset"
            ledger.ignore(key, why, matters=name in _MATTERS)
        elif name in _SWITCHES:
            ledger.put(key, to, _SWITCHES[name])
        elif name != "deepspeed":
            _put_number(ledger, key, to)


def _put_number(ledger: Ledger, key: str, to: str) -> None:
    """A degree, a stage or heads."""
    number = ledger.integer(key, least=0 if to == "parallelism.zero" else 1)
    if number is None:
        return
    if to == "parallelism.zero" and number > 3:
        ledger.refuse(f"{ledger.place(key)}: got {number}; needed 0 to 3")
    elif to == "parallelism.cp" and number == 1:
        ledger.ignore(key, "1: not divided")
    else:
        ledger.put(key, to, number)
    if to == "parallelism.cp" and number > 1:
        ledger.put(key, "framework.context_exchange", "ulysses")


_SWITCHES: Final[Mapping[str, object]] = {"embed-layernorm": True, "cpu-optimizer": "optimizer"}
_MATTERS: Final = frozenset(
    {"partition-activations", "checkpoint-in-cpu", "use-tutel", "pp-partition-method"}
)
