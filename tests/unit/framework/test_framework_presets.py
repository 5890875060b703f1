"""Framework presets: each builds, says where it was read, runs a step, and gives way to every override."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import mpsim
from mpsim.errors import ScenarioError
from mpsim.framework import (
    AREAS,
    framework,
    framework_aliases,
    framework_names,
    mark_of,
    settled_keys,
)
from mpsim.nouns import Quantity
from mpsim.scenario.sections import Parallelism, ScheduleChoice, Training
from mpsim.units import Dimension

PRESETS = tuple(name for name in framework_names() if name not in framework_aliases())
GPUS_PER_NODE = 4
FIELDS = {"parallelism": Parallelism, "schedule": ScheduleChoice, "training": Training}
REQUIRED = {"training": {"global_batch": 8, "sequence_length": 2048}}


def _scenario(name: str, **overrides: object) -> dict[str, object]:
    """Two nodes of four A100, laid out as the preset says it was written for, as far as two nodes allow."""
    suits = framework(name).suits
    pp = 2 if suits.get("parallelism.pp") is None else 1
    zero = suits.get("parallelism.zero", 0)
    tp = 1 if zero == 3 or pp == 1 else 2
    training = {
        key.removeprefix("training."): value
        for key, value in suits.items()
        if key.startswith("training.")
    }
    return {
        "schema": 1,
        "model": {"hidden": 1024, "layers": 8, "heads": 16, "vocab": 32000},
        "cluster": {"preset": "dgx-a100-80gb", "accelerators_per_node": GPUS_PER_NODE, "nodes": 2},
        "parallelism": {
            "pp": pp,
            "tp": tp,
            "zero": zero,
            "sequence_parallel": bool(suits.get("parallelism.sequence_parallel")) and tp > 1,
        },
        "schedule": _schedule(str(suits.get("schedule.name", "1f1b"))) if pp > 1 else "1f1b",
        "training": {"global_batch": 32, "sequence_length": 1024, **_runnable(training)},
        "framework": {"preset": name, **overrides},
    }


def _schedule(name: str) -> dict[str, object]:
    return {"name": name, "virtual_stages": 2} if name == "interleaved-1f1b" else {"name": name}


def _runnable(training: dict[str, object]) -> dict[str, object]:
    """A100 has no format of 8 bits."""
    narrow = str(training.get("precision", "")).startswith("fp8")
    return {**training, "precision": "bf16"} if narrow else training


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_says_what_it_is_and_where_it_was_read(name):
    """A title, a source and a date make it checkable; what it leaves open is listed."""
    software = framework(name)
    assert software.name == name
    assert len(software.title) > 10
    assert "/" in software.source or "recalled" in software.source or "torch" in software.source
    assert software.as_of[:4].isdigit()
    assert software.notes


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_runs_a_step(name):
    """Every preset is a working description, not a name."""
    summary = mpsim.simulate(mpsim.Scenario.from_mapping(_scenario(name))).summary
    assert 0 < summary["step_time_s"] < 60


def test_every_field_can_be_replaced_and_an_unknown_one_names_the_nearest():
    """A field is written under the name it is shown by; a slip of the finger costs one look."""
    software = framework("megatron-core")
    units = {Dimension.TIME: "s", Dimension.BYTES: "B"}
    for field, value in software.fields().items():
        mark = mark_of(field)
        written = f"{value} {units[mark.dimension]}" if isinstance(mark, Quantity) else value
        assert framework("megatron-core", {field: written}).fields() == software.fields()
        with pytest.raises(ScenarioError, match=f"'{field}'"):
            framework("megatron-core", {f"{field}x": written})


def test_a_replaced_field_is_what_the_framework_then_has():
    """Quantities take units, choices take words."""
    changed = framework(
        "torch-ddp", {"bucket_bytes": "50 MB", "gradient_overlap": "never", "launch_cost": "7 us"}
    )
    assert changed.data.bucket_bytes == 50e6
    assert changed.data.gradient_overlap == "never"
    assert changed.host.launch_cost == pytest.approx(7e-6)


def test_what_a_preset_suits_is_a_key_of_a_scenario_with_a_value_it_takes():
    """A layout nobody can write would help nobody."""
    for name in PRESETS:
        for key, value in framework(name).suits.items():
            section, _, field = key.partition(".")
            parsed = FIELDS[section].model_validate({field: value, **REQUIRED.get(section, {})})
            assert getattr(parsed, field) == value


@pytest.mark.parametrize("name", PRESETS)
def test_sharding_is_settled_where_a_stack_is_for_the_most_that_it_has(name):
    """As the framework of the preset says, which is not built to know it."""
    stack, key = framework(name), "parallelism.zero"
    if (zero := stack.suits.get(key)) and zero == stack.data.zero_limit:
        assert settled_keys(name)[-1] == {key: zero}


def test_a_settled_key_is_one_of_a_scenario_with_a_value_it_takes():
    """A preset settles keys as they would be written, each group one section's."""
    settling = {name: settled_keys(name) for name in PRESETS if settled_keys(name)}
    assert settling
    for groups in settling.values():
        for group in groups:
            for key, value in group.items():
                section, _, field = key.partition(".")
                given = {field: value} if field else {"name": value}
                FIELDS[section].model_validate({**given, **REQUIRED.get(section, {})})


@pytest.mark.parametrize(
    "name",
    "megatron-2021 megatron-2022 megatron-core megatron-lm deepspeed-megatron torch-ddp jax-gspmd".split(),
)
def test_names_of_the_first_version_still_work(name):
    """Scenarios written with them keep running."""
    assert framework(name).title


def test_notes_and_what_a_preset_suits_are_not_inherited():
    """A child that says nothing of itself must not repeat what its parent could not decide."""
    parent, child = framework("megatron-2021"), framework("megatron-2022")
    assert not set(parent.notes) & set(child.notes)


@pytest.mark.parametrize("wrong", [{"notes": "one"}, {"suits": ["zero"]}, {"suits": {"a": [1]}}])
def test_notes_and_suits_of_the_wrong_shape_are_refused(wrong):
    """Lists of texts and plain values only."""
    with pytest.raises(ScenarioError, match="needed"):
        framework("torch-ddp", wrong)


def test_every_area_has_words():
    """What is shown is grouped by all there is."""
    assert set(AREAS) == set(framework("torch-ddp").groups())


def test_show_lists_titles_and_prints_fields_by_their_own_names(mpsim_cli):
    """One command finds a stack, a second tells all about it."""
    listed = mpsim_cli("show", "frameworks").out
    assert "megatron-2021" in listed
    assert "SC'21 scripts" in listed
    shown = mpsim_cli("show", "framework", "torch-fsdp2").out
    for words in ("gather_copy_traffic", "4.0 B a parameter", "26.21 MB", "parallelism.zero: 3"):
        assert words in shown


def test_every_field_is_read_by_what_simulates():
    """A field that nothing reads would be replaced without effect, in silence."""
    root = Path(mpsim.__file__).parent
    simulating = [root / one for one in ("parallel", "program", "cost", "training", "scenario")]
    texts = [file.read_text("utf-8") for one in simulating for file in one.rglob("*.py")]
    texts.append((root / "framework" / "framework.py").read_text("utf-8"))
    workload = [file.read_text("utf-8") for file in (root / "workload").rglob("*.py")]
    groups = framework("torch-ddp").groups()
    for area, fields in groups.items():
        read = "\n".join([*workload, *texts] if area == "lowering" else texts)
        unread = [name for name in fields if not re.search(rf"\.{name}\b", read)]
        assert not unread, area


def test_sequence_parallelism_of_deepspeed_is_ulysses():
    """It has no ring: ranks exchange heads, so more ranks than heads are refused."""
    data = {
        "schema": 1,
        "model": "llama3-8b",
        "cluster": {"preset": "dgx-h100", "nodes": 8},
        "parallelism": {"cp": 64, "zero": 3},
        "training": {"global_batch": 1, "sequence_length": 131072},
        "framework": "deepspeed-zero3",
    }
    with pytest.raises(ScenarioError, match=r"ulysses divides 32 heads .* set cp to 16 or 32"):
        mpsim.Scenario.from_mapping(data)
