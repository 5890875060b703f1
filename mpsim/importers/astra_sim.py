"""ASTRA-sim's machine: its network YAML and its system JSON, as the cluster of a scenario.

The innermost dimension of the network is the scale-up domain, one NPU of it a NIC's owner; the others are the network between nodes. What NPUs are called stands in neither file, so
the accelerator is asked for.

References
----------
astra-sim/astra-sim 518bd51, ``Sys.cc`` and the examples of its analytical network.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mpsim.formats.words import table
from mpsim.hardware import system, system_names
from mpsim.importers.configs import json_config, yaml_config
from mpsim.importers.imported import Imported
from mpsim.importers.ledger import Ledger, flat, shortened
from mpsim.importers.source import Format, Head, Options

__all__ = ["ASTRA_NETWORK", "ASTRA_SYSTEM"]

_TABLE: Final = ("mpsim.formats.data", "astra-sim")
_GIB: Final = 2**30
_LISTS: Final = ("npus_count", "bandwidth", "latency")
_TOPOLOGIES: Final = ("Ring", "FullyConnected", "Switch")
MOST: Final = 16  # dimensions


def _is_network(head: Head) -> bool:
    return not head.is_object and all(
        re.search(rf"^{word}:", head.text, re.MULTILINE) for word in ("topology", "npus_count")
    )


def _is_system(head: Head) -> bool:
    return head.is_object and (
        '"scheduling-policy"' in head.text or '"all-reduce-implementation"' in head.text
    )


def _read_network(head: Head, options: Options) -> Imported:
    """Read a network of the analytical backend.

    Raises
    ------
    FormatError
        If its dimensions do not match, a number is none, or a topology has no counterpart; it is named.
    """
    data, lines = yaml_config(head)
    ledger = Ledger(str(head.path), flat(data), lines)
    kinds = [str(word) for word in _listed(ledger, "topology", data)]
    numbers = {key: _numbers(ledger, key, data) for key in _LISTS}
    odd = [word for word in kinds if word not in _TOPOLOGIES]
    if odd:
        ledger.refuse(
            f"{ledger.place('topology')}: got {shortened(odd[0])}; needed {', '.join(_TOPOLOGIES)}"
        )
    counts = {key: len(values) for key, values in numbers.items()} | {"topology": len(kinds)}
    if len(set(counts.values())) != 1 or not 1 <= len(kinds) <= MOST:
        words = ", ".join(f"{key} {count}" for key, count in counts.items())
        ledger.refuse(f"dimensions differ ({words}); needed as many of each, 1 to {MOST}")
    elif not odd and not _is_refused(numbers):
        _put_network(ledger, kinds, numbers)
    _needs_machine(ledger, options)
    _ignore(ledger)
    return ledger.close("astra-network", tool="ASTRA-sim, analytical network")


def _listed(ledger: Ledger, key: str, data: Mapping[str, Any]) -> list[Any]:
    value = data.get(key)
    if isinstance(value, list):
        return value
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return [value]
    ledger.refuse(f"{ledger.place(key)}: got {shortened(value)}; needed a list, one a dimension")
    return []


def _numbers(ledger: Ledger, key: str, data: Mapping[str, Any]) -> list[float]:
    """Numbers of a list; empty where one is none."""
    numbers: list[float] = []
    for value in _listed(ledger, key, data):
        number = value if isinstance(value, int | float) and not isinstance(value, bool) else -1.0
        whole = key != "npus_count" or number == int(number if math.isfinite(number) else -1)
        if not (0 < number < 1e9 or (key == "latency" and number == 0)) or not whole:
            ledger.refuse(f"{ledger.place(key)}: got {shortened(value)}; needed numbers above 0")
            return []
        numbers.append(number)
    return numbers


def _is_refused(numbers: Mapping[str, Sequence[float]]) -> bool:
    """Whether a list was refused: it is empty then."""
    return any(not values for values in numbers.values())


def _put_network(
    ledger: Ledger, kinds: Sequence[str], numbers: Mapping[str, Sequence[float]]
) -> None:
    counts = [int(count) for count in numbers["npus_count"]]
    rates, delays = numbers["bandwidth"], numbers["latency"]
    ledger.put("npus_count", "cluster.nodes", math.prod(counts[1:]))
    ledger.put("npus_count", "cluster.accelerators_per_node", counts[0])
    ledger.put("npus_count", "cluster.domain", counts[0])
    ledger.put("bandwidth", "cluster.scale_up.bandwidth", f"{rates[0] * _GIB:.12g} B/s")
    ledger.put("latency", "cluster.scale_up.latency", f"{delays[0]:.12g} ns")
    ledger.note(
        "cluster.scale_up", f"{kinds[0]}; which pairs share a link is the link's of the catalog"
    )
    if len(counts) == 1:
        return
    ledger.put("npus_count", "cluster.nics_per_node", counts[0])
    ledger.put("bandwidth", "cluster.nic.bandwidth", f"{rates[1] * _GIB:.12g} B/s")
    ledger.put("latency", "cluster.nic.latency", f"{delays[1]:.12g} ns")
    outer = set(kinds[1:])
    if outer == {"Ring"} and len(kinds) > 2:
        ledger.put("topology", "cluster.fabric.kind", "torus")
        ledger.put("npus_count", "cluster.fabric.shape", counts[1:])
        ledger.put("topology", "cluster.fabric.axes", len(counts) - 1)
        ledger.put("bandwidth", "cluster.fabric.widths", [rate / rates[1] for rate in rates[1:]])
    elif len(kinds) == 2:
        kind = "torus" if kinds[1] == "Ring" and counts[1] > 2 else "single-switch"
        ledger.put("topology", "cluster.fabric.kind", kind)
        if kind == "torus":
            ledger.put("npus_count", "cluster.fabric.shape", counts[1:])
            ledger.put("topology", "cluster.fabric.axes", 1)
    elif len(kinds) == 3 and "Ring" not in outer and rates[1] >= rates[2]:
        ledger.put("topology", "cluster.fabric.kind", "fat-tree")
        ledger.put("bandwidth", "cluster.fabric.oversubscription", rates[1] / rates[2])
        # a leaf has ports for its nodes' NICs and, thinned, for those upwards
        down = counts[0] * counts[1]
        radix = down + math.ceil(down * rates[2] / rates[1])
        ledger.put("npus_count", "cluster.fabric.radix", radix)
        hop = max(0.0, delays[2] - delays[1])
        ledger.put("latency", "cluster.fabric.hop_latency", f"{hop:.12g} ns")
    else:
        ledger.refuse(
            f"{ledger.place('topology')}: {' x '.join(kinds)} has no counterpart; needed a domain and one dimension, rings, or two of switches that thin out"
        )


def _read_system(head: Head, options: Options) -> Imported:
    """Read a system: how fast an NPU and its memory are.

    Raises
    ------
    FormatError
        If a number is none; it is named.
    """
    data, lines = json_config(head)
    ledger = Ledger(str(head.path), flat(data), lines)
    for key, to, unit, scale in (
        ("peak-perf", "cluster.accelerator.peak_flops", "TFLOP/s", 1.0),
        ("local-mem-bw", "cluster.accelerator.memory_bandwidth", "B/s", float(_GIB)),
    ):
        value = ledger.get(key)
        if value is None:
            continue
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e9:
            ledger.refuse(f"{ledger.place(key)}: got {shortened(value)}; needed a number above 0")
            continue
        text = f"{value * scale:.12g} {unit}"
        formats = ("bf16", "fp16") if key == "peak-perf" else ()
        ledger.put(key, to, dict.fromkeys(formats, text) if formats else text)
    if options.cluster in system_names():
        chip = system(str(options.cluster)).accelerator.name
        ledger.assume("cluster.accelerator.preset", chip, f"of {options.cluster}")
    _needs_machine(ledger, options)
    _ignore(ledger)
    return ledger.close("astra-system", tool="ASTRA-sim, system")


def _needs_machine(ledger: Ledger, options: Options) -> None:
    if options.cluster is None:
        ledger.ask("cluster.preset")


def _ignore(ledger: Ledger) -> None:
    for key in ledger.values:
        for rule in table(*_TABLE)["ignored"]:
            if re.fullmatch(rule["pattern"], key):
                ledger.ignore(key, rule["why"], matters=rule.get("matters", False))
                break


ASTRA_NETWORK: Final = Format(
    "astra-network", "network of ASTRA-sim (YAML)", "scenario", _is_network, _read_network
)
ASTRA_SYSTEM: Final = Format(
    "astra-system", "system of ASTRA-sim (JSON)", "scenario", _is_system, _read_system
)
