"""Schedules by name: closed forms of their peaks, and what they refuse."""

from __future__ import annotations

import importlib.metadata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsim.errors import ScheduleError
from mpsim.memo import forget
from mpsim.scenario.sections import ScheduleChoice
from mpsim.schedule import Action, make_orders, schedule_names
from mpsim.schedule.csv_file import write_csv


def _refused(name: str, pp: int, microbatches: int) -> bool:
    """What each schedule says that it needs, written down a second time."""
    uneven = microbatches % max(1, microbatches // pp) > 0
    return {
        "interleaved-1f1b": uneven,
        "interleaved-zb": uneven,
        "chimera": pp % 2 or microbatches % pp,
        "dualpipe": pp % 2 or microbatches % 2 or microbatches < 2 * pp,
        "dualpipe-v": microbatches < 2 * pp,
    }.get(name, False) != 0


@pytest.mark.parametrize("name", schedule_names())
@settings(max_examples=40)
@given(pp=st.integers(1, 9), microbatches=st.integers(1, 24))
def test_every_schedule_runs_every_action_once(name: str, pp: int, microbatches: int) -> None:
    """Whatever can be built is a whole training step in the declared sizes; the rest is refused and says the mend."""
    options = {"budget": 10} if name == "auto" else {}
    if _refused(name, pp, microbatches):
        with pytest.raises(ScheduleError, match=rf"^{name}: got .*; needed .*; set "):
            make_orders(name, pp=pp, microbatches=microbatches, **options)
        return
    orders = make_orders(name, pp=pp, microbatches=microbatches, **options).validate()
    units = microbatches * (2 if name == "seq-1f1b" else 1)
    assert (orders.schedule, orders.pp, orders.microbatches) == (name, pp, units)
    runs = (
        orders.pp * orders.virtual_stages * units
    )  # each microbatch through each part of the model
    assert np.count_nonzero(orders.kind == Action.F) == runs


@given(pp=st.integers(1, 12), microbatches=st.integers(1, 24))
def test_gpipe_holds_m_and_1f1b_holds_min_m_p_minus_r(pp: int, microbatches: int) -> None:
    """Peaks of the two: m on every rank, and min(m, p - r) on rank r."""
    assert (
        make_orders("gpipe", pp=pp, microbatches=microbatches).peak_inflight()
        == [microbatches] * pp
    )
    peaks = make_orders("1f1b", pp=pp, microbatches=microbatches).peak_inflight()
    assert peaks == [min(microbatches, pp - rank) for rank in range(pp)]


@given(
    pp=st.integers(1, 6),
    virtual=st.integers(1, 4),
    group=st.integers(1, 9),
    rounds=st.integers(1, 3),
    rest=st.integers(0, 8),
)
def test_interleaved_peak_is_2_p_minus_1_minus_r_plus_v_minus_1_g_plus_1(
    pp: int, virtual: int, group: int, rounds: int, rest: int
) -> None:
    """Rank r holds min(mv, 2(p-1-r) + (v-1)g + 1) chunks, with a shorter last group too."""
    group += pp
    if rest < pp or rest >= group:
        rest = 0
    m = rounds * group + rest
    orders = make_orders(
        "interleaved-1f1b", pp=pp, microbatches=m, virtual_stages=virtual, group_size=group
    ).validate()
    full = [2 * (pp - 1 - rank) + (virtual - 1) * group + 1 for rank in range(pp)]
    assert orders.peak_inflight() == [min(m * virtual, peak) for peak in full]


def test_interleaved_with_one_chunk_is_not_1f1b() -> None:
    """At p = 4 the doubled warm-up holds 7, 5, 3, 1 microbatches instead of 4, 3, 2, 1."""
    assert make_orders("interleaved-1f1b", pp=4, microbatches=8).peak_inflight() == [7, 5, 3, 1]
    assert make_orders("1f1b", pp=4, microbatches=8).peak_inflight() == [4, 3, 2, 1]


def test_interleaved_groups_as_torch_when_m_is_no_multiple_of_p() -> None:
    """At p = 4, m = 10 goes in two groups of 5, m = 3 in one of 3; m = 9 is refused with the mend."""
    orders = make_orders("interleaved-1f1b", pp=4, microbatches=10, virtual_stages=2)
    last = orders.tokens()[3]
    assert [token for token in last if "F" in token][:10] == [
        *("3F0", "3F1", "3F2", "3F3", "3F4"),
        *("7F0", "7F1", "7F2", "7F3", "7F4"),
    ]
    make_orders("interleaved-1f1b", pp=4, microbatches=3, virtual_stages=2).validate()
    with pytest.raises(ScheduleError, match="set microbatches to 8 or 12"):
        make_orders("interleaved-1f1b", pp=4, microbatches=9, virtual_stages=2)


def test_interleaved_group_size_follows_megatron() -> None:
    """A group under pp or over m is refused, and so is a last group under pp."""
    with pytest.raises(ScheduleError, match="got group_size = 3; needed at least pp = 4"):
        make_orders("interleaved-1f1b", pp=4, microbatches=8, virtual_stages=2, group_size=3)
    with pytest.raises(ScheduleError, match="at most microbatches = 8"):
        make_orders("interleaved-1f1b", pp=4, microbatches=8, virtual_stages=2, group_size=9)
    with pytest.raises(ScheduleError, match="set microbatches to 8 or 12"):
        make_orders("interleaved-1f1b", pp=4, microbatches=10, virtual_stages=2, group_size=4)


def test_forwards_of_the_last_rank_alternate_from_the_start() -> None:
    """The last rank of 1F1B warms up with nothing: F B F B."""
    orders = make_orders("1f1b", pp=64, microbatches=512)
    last = orders.kind[orders.rank_ptr[-2] :]
    assert np.array_equal(last, np.tile([Action.F, Action.B], 512))


def test_an_installed_package_offers_a_schedule(monkeypatch) -> None:
    """An entry point of the group mpsim.schedules is a schedule like any other, and takes no name of ours."""
    entry = importlib.metadata.EntryPoint(
        "mine", "mpsim.schedule.one_chunk:GPIPE", "mpsim.schedules"
    )
    ours = importlib.metadata.EntryPoint("1f1b", "nowhere:NOTHING", "mpsim.schedules")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: (entry, ours))
    forget()
    try:
        assert schedule_names()[-1] == "mine"
        orders = make_orders("mine", pp=2, microbatches=2)
        assert orders.tokens() == make_orders("gpipe", pp=2, microbatches=2).tokens()
        assert len(make_orders("1f1b", pp=2, microbatches=2).tokens()) == 2
    finally:
        forget()


def test_installed_packages_are_looked_through_for_a_name_of_theirs_alone(monkeypatch) -> None:
    """A scenario with a schedule of ours starts without reading what else is installed."""
    ScheduleChoice(name="1f1b")  # pydantic looks for plugins of its own when it builds the schema
    monkeypatch.delattr(importlib.metadata, "entry_points")
    forget()
    assert ScheduleChoice(name="zb-h1").name == "zb-h1"
    with pytest.raises(ImportError):
        ScheduleChoice(name="zb-h3")


def test_an_unknown_name_gets_a_suggestion() -> None:
    """The message quotes the name and says the nearest known one."""
    with pytest.raises(ScheduleError, match=r"'1fb1'.*did you mean '1f1b'"):
        make_orders("1fb1", pp=2, microbatches=2)


@pytest.mark.parametrize("name", schedule_names())
@pytest.mark.parametrize("key", ["pp", "microbatches", "virtual_stages"])
def test_a_count_under_one_is_refused(name: str, key: str) -> None:
    """Zero ranks, microbatches or chunks are refused with the key to mend."""
    numbers = {"pp": 2, "microbatches": 2, "virtual_stages": 1, key: 0}
    with pytest.raises(ScheduleError, match=f"{name}: got {key} = 0; needed at least 1"):
        make_orders(name, **numbers)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("gpipe", "looped-bfs"),
        ("1f1b", "interleaved-1f1b"),
        ("eager-1f1b", "interleaved-1f1b"),
        ("zb-h1", "interleaved-zb"),
        ("zb-h2", "interleaved-zb"),
        ("seq-1f1b", "interleaved-1f1b"),
        ("dualpipe", "dualpipe-v"),
        ("chimera", "dualpipe-v"),
    ],
)
def test_virtual_stages_are_refused_where_there_is_one_chunk(name: str, instead: str) -> None:
    """The message names a schedule that has chunks."""
    with pytest.raises(ScheduleError, match=f"set virtual_stages to 1, or use {instead}"):
        make_orders(name, pp=2, microbatches=4, virtual_stages=2)


@pytest.mark.parametrize("name", ["zb-v", "dualpipe-v"])
def test_a_v_has_two_chunks(name: str) -> None:
    """Any other number is refused."""
    with pytest.raises(ScheduleError, match=f"{name}: got virtual_stages = 3; needed 2"):
        make_orders(name, pp=2, microbatches=8, virtual_stages=3)


@pytest.mark.parametrize(
    ("name", "option", "mend"),
    [
        ("interleaved-1f1b", {"extra_warmup": -1}, "set extra_warmup to 0 or 1"),
        ("seq-1f1b", {"segments": 0}, "set segments to 2 or more"),
    ],
)
def test_an_impossible_option_is_refused(name: str, option: dict[str, int], mend: str) -> None:
    """The message says the option, its least value and a value that works."""
    with pytest.raises(ScheduleError, match=f"{name}: got .*; needed at least .*; {mend}"):
        make_orders(name, pp=2, microbatches=4, **option)


def test_an_unknown_option_is_refused() -> None:
    """An option of another schedule is not ignored."""
    with pytest.raises(ScheduleError, match="'group_size' for '1f1b', which has no option"):
        make_orders("1f1b", pp=2, microbatches=2, group_size=2)
    with pytest.raises(ScheduleError, match="accepts group_size, extra_warmup"):
        make_orders("interleaved-1f1b", pp=2, microbatches=2, groups=2)


def test_a_csv_file_is_a_schedule_that_must_agree_with_the_numbers(tmp_path) -> None:
    """A file name in place of a name is read; other numbers than its own are refused."""
    path = str(tmp_path / "own.csv")
    write_csv(make_orders("gpipe", pp=2, microbatches=4), path)
    assert make_orders(path, pp=2, microbatches=4).schedule == "own"
    with pytest.raises(
        ScheduleError, match="got orders for microbatches = 4; needed microbatches = 8"
    ):
        make_orders(path, pp=2, microbatches=8)
