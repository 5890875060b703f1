"""mpsim's orders against those of PyTorch and Megatron-LM, and their peaks against every recorded row.

data/schedule-orders.jsonl: per-rank orders that PyTorch 2.13.0 generated (1F1B and GPipe: executed).
data/schedule-oracle.csv: simulated from those orders (source torch), closed forms (formula), and the
rules of Megatron-LM's schedules.py at d98e8a64 (megatron-rule).
"""

import csv
import itertools
import json
from pathlib import Path

import pytest

from mpsim.schedule import Orders, make_orders

DATA = Path(__file__).parent / "data"
NAMES = {"GPipe": "gpipe", "1F1B": "1f1b", "Interleaved1F1B": "interleaved-1f1b"}
GROUPED = "Interleaved1F1B group>pp"
GROUP_NOTE = "microbatch group "

TORCH_ORDERS = [
    json.loads(line) for line in (DATA / "schedule-orders.jsonl").read_text().splitlines()
]
with (DATA / "schedule-oracle.csv").open(newline="") as _file:
    ORACLE = list(csv.DictReader(_file))


def _orders(row: dict[str, str]) -> Orders:
    options = {}
    if row["schedule"] == GROUPED:
        options["group_size"] = int(row["note"].removeprefix(GROUP_NOTE))
    return make_orders(
        NAMES[row["schedule"].removesuffix(" group>pp")],
        pp=int(row["pp"]),
        microbatches=int(row["microbatches"]),
        virtual_stages=int(row["virtual_stages"]),
        **options,
    )


def _id(row: dict[str, str]) -> str:
    return f"{row['schedule']}-p{row['pp']}-m{row['microbatches']}-v{row['virtual_stages']}"


def test_the_recorded_data_cover_all_three_schedules() -> None:
    """The comparison below would pass on an empty file; it is not empty."""
    assert {row["schedule"] for row in TORCH_ORDERS} == set(NAMES)
    assert {row["schedule"] for row in ORACLE} == {*NAMES, GROUPED}
    assert {row["source"] for row in ORACLE} == {"torch", "formula", "megatron-rule"}
    assert (len(TORCH_ORDERS), len(ORACLE)) == (29, 557)


@pytest.mark.parametrize("row", TORCH_ORDERS, ids=_id)
def test_orders_equal_those_of_torch_token_by_token(row: dict) -> None:
    """Every rank does the same actions in the same order as PyTorch."""
    orders = make_orders(
        NAMES[row["schedule"]],
        pp=row["pp"],
        microbatches=row["microbatches"],
        virtual_stages=row["virtual_stages"],
    )
    assert orders.tokens() == row["orders"]
    assert orders.stage_rank.tolist() == row["stage_to_rank"]


def test_peaks_equal_every_row_of_the_oracle() -> None:
    """Peak in-flight chunks until W, and until I where recorded, agree on every rank of every row."""
    wrong = []
    for number, row in enumerate(ORACLE, start=2):
        orders = _orders(row).validate()
        got = {
            "peak_inflight_activations": orders.peak_inflight(),
            "peak_until_input_grad": orders.peak_until_input_grad(),
        }
        wrong += [
            (number, _id(row), key, value, row[key])
            for key, value in got.items()
            if row[key] and value != json.loads(row[key])
        ]
    assert wrong == []
    assert all(row["peak_inflight_activations"] for row in ORACLE)


def test_transfers_equal_every_row_of_the_oracle() -> None:
    """Activations and gradients that leave each rank, counted from the stage map, are as recorded."""
    for row in ORACLE:
        if not row["crossrank_sends_fwd"]:
            continue
        orders = _orders(row)
        stage_rank, pp = orders.stage_rank, orders.pp
        forward, backward = [0] * pp, [0] * pp
        for sender, receiver in itertools.pairwise(stage_rank):
            if sender != receiver:
                forward[sender] += orders.microbatches
                backward[receiver] += orders.microbatches
        assert forward == json.loads(row["crossrank_sends_fwd"]), _id(row)
        assert backward == json.loads(row["crossrank_sends_bwd"]), _id(row)
