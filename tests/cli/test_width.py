"""Every table of every command fits a page of a hundred columns; sentences run on."""

from __future__ import annotations

import pytest

from mpsim.table import RULE, WIDTH, _width
from tests.nightly import some

QUICK = "quickstart.yaml"
SERVICE = "serving/llama3-8b-h100.yaml"
COMMANDS = [
    "run {quick}",
    "run {service}",
    "run {scenarios}/serving/deepseek-v3-disaggregated.yaml",
    "run {scenarios}/mixtral-8x7b-h100.yaml --sensitivity",
    "run {scenarios}/what-if/slow-gpu.yaml",
    "check {quick}",
    "check {scenarios}/gpt3-175b-a100.yaml",
    "check {scenarios}/serving/deepseek-v3-disaggregated.yaml",
    "compare {scenarios}/nics-4.yaml {scenarios}/nics-8.yaml",
    "compare {service} --vs parallelism.tp=2",
    "sweep {quick}",
    "sweep {quick} --over parallelism.tp=1,2,3 --over training.micro_batch=1,2 --over parallelism.zero=0,1 --over training.recompute=none,full",
    "sweep {service} --over serving.workload.concurrency=4,16 --over parallelism.tp=1,2",
    "search {quick} --over parallelism.tp=1,2,4",
    "search {quick} --over parallelism.tp=2 --over cluster.nodes=1,2 --objective cost",
    "search {service} --set cluster.accelerators_per_node=2",
    "scale {quick} --gpus 16..64",
    "goodput {scenarios}/llama3-405b-h100-16k.yaml --days 10 --trials 20",
    "plan {quick} --tokens 1T",
    "plan {quick} --tokens 15.6T --over cluster.nodes=2,4 --over parallelism.tp=2,4",
    "new --list",
    "schedule all --pp 4 --microbatches 12 --times 2,2,1 --memory 4",
    "schedule interleaved-1f1b --pp 4 --microbatches 16 --virtual 2 --times 1,1,1",
    "show accelerator h100-sxm",
    "show system dgx-h100",
    "show model deepseek-v3",
    "show framework megatron-core",
    "show engine vllm-v1",
    "show formats",
    "show fabric {quick}",
]


@pytest.mark.parametrize("line", some(COMMANDS, 10))
def test_every_table_fits_a_page(mpsim_cli, scenarios, line):
    """No row is wider than the page: what is below a rule, and rows of names and figures, which have two spaces in them."""
    words = line.format(
        quick=scenarios / QUICK, service=scenarios / SERVICE, scenarios=scenarios
    ).split()
    done = mpsim_cli(*words)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    rows = [row for row in lines if RULE in row or "  " in row]
    assert rows
    assert [row for row in rows if _width(row) > WIDTH] == []
