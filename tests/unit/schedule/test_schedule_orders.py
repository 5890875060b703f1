"""Orders: tokens there and back, peaks, and every way an order can be wrong."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsim.errors import ScheduleError
from mpsim.schedule import Action, Orders, make_orders
from mpsim.schedule.csv_file import read_csv, write_csv

SPLIT = [["0F0", "0F1", "0I0", "0I1", "0W0", "0W1"]]
TWO_RANKS = [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]]


def _complaint(tokens: list[list[str]]) -> str:
    with pytest.raises(ScheduleError) as caught:
        Orders.from_tokens(tokens).validate()
    return str(caught.value)


def test_tokens_survive_the_round_trip() -> None:
    """Reading what was written gives the same columns."""
    orders = make_orders("interleaved-1f1b", pp=4, microbatches=8, virtual_stages=3)
    again = Orders.from_tokens(orders.tokens(), schedule="interleaved-1f1b")
    for field in dataclasses.fields(Orders):
        assert np.array_equal(getattr(again, field.name), getattr(orders, field.name)), field.name
        assert (
            np.asarray(getattr(again, field.name)).dtype
            == np.asarray(getattr(orders, field.name)).dtype
        )


def test_a_v_shaped_stage_map_is_read_from_the_tokens() -> None:
    """Rank r of a V holds stages r and 2p - 1 - r, and counts its chunks in stage order."""
    orders = Orders.from_tokens([["0F0", "3F0", "3B0", "0B0"], ["1F0", "2F0", "2B0", "1B0"]])
    assert orders.stage_rank.tolist() == [0, 1, 1, 0]
    assert orders.stage_chunk.tolist() == [0, 0, 1, 1]
    assert orders.validate() is orders


def test_stage_chunk_of_a_loop_is_stage_over_pp() -> None:
    """On a loop, stage s is chunk s // pp of its rank."""
    orders = make_orders("interleaved-1f1b", pp=3, microbatches=3, virtual_stages=2)
    assert orders.stage_chunk.tolist() == [0, 0, 0, 1, 1, 1]


def test_rank_names_the_owner_of_each_action() -> None:
    """Property `rank` repeats each rank as often as it has actions."""
    orders = Orders.from_tokens([["0F0", "0B0"], ["1F0", "1B0"]])
    assert orders.rank.tolist() == [0, 0, 1, 1]
    assert len(orders) == 4


def test_peaks_count_until_w_and_until_i() -> None:
    """F0 F1 I0 I1 W0 W1 holds two until W; F0 I0 F1 I1 W0 W1 holds one until I."""
    assert Orders.from_tokens(SPLIT).peak_inflight() == [2]
    late = Orders.from_tokens([["0F0", "0I0", "0F1", "0I1", "0W0", "0W1"]])
    assert late.peak_inflight() == [2]
    assert late.peak_until_input_grad() == [1]


def test_split_gradients_are_a_whole_step() -> None:
    """I and W in place of B are accepted, for every microbatch or for some."""
    Orders.from_tokens(SPLIT).validate()
    Orders.from_tokens([["0F0", "0F1", "0I0", "0B1", "0W0"]]).validate()


def test_a_missing_action_is_named() -> None:
    """A dropped backward is named with the rank to add it to."""
    message = _complaint([TWO_RANKS[0], TWO_RANKS[1][:-1]])
    assert "1B1 missing" in message
    assert "rank 1" in message


def test_an_input_gradient_without_its_weight_gradient_is_missing() -> None:
    """An I alone leaves W missing, not B."""
    assert "0W1 missing" in _complaint([SPLIT[0][:-1]])


def test_many_missing_actions_are_counted_not_listed() -> None:
    """Only the first few are named."""
    message = _complaint([[f"0F{k}" for k in range(9)]])
    assert "0B0, 0B1, 0B2, 0B3, 0B4 and 4 more missing" in message


def test_a_doubled_action_is_named() -> None:
    """The same forward twice is refused."""
    assert "0F0 more than once" in _complaint([["0F0", "0F0", "0B0"]])


def test_a_full_backward_next_to_a_split_one_is_refused() -> None:
    """B and I of one microbatch compute the same gradient twice."""
    assert "0B0 next to an I or W" in _complaint([["0F0", "0B0", "0I0", "0W0"]])


def test_an_action_on_the_wrong_rank_is_named_with_its_home() -> None:
    """A backward of stage 0 on rank 1 is refused."""
    message = _complaint([["0F0"], ["1F0", "1B0", "0B0"]])
    assert "0B0 on rank 1" in message
    assert "stage 0 on rank 0 only" in message


def test_a_backward_before_its_forward_is_named_with_both_places() -> None:
    """Local order is checked: B before F, and W before I."""
    message = _complaint([["0F0", "0B1", "0F1", "0B0"]])
    assert "0B1 at place 1, before 0F1 at place 2" in message
    assert "0W0 at place 1, before 0I0 at place 2" in _complaint([["0F0", "0W0", "0I0"]])


def test_a_microbatch_that_does_not_exist_is_refused() -> None:
    """Columns that point outside the declared sizes are refused, not counted elsewhere."""
    orders = make_orders("gpipe", pp=2, microbatches=2)
    with pytest.raises(ScheduleError, match=r"0F1 on rank 0, .*microbatches 0 to 0"):
        dataclasses.replace(orders, microbatches=1).validate()


@pytest.mark.parametrize(
    "token", ["F0", "0X0", "0F", "0f0", "-1F0", "0UNSHARD", "(0F0;1B0)", "(0F0;X)OVERLAP_F_B"]
)
def test_a_token_that_cannot_be_read_is_quoted(token: str) -> None:
    """The message quotes the token and says its rank and place."""
    with pytest.raises(ScheduleError, match="rank 1, place 1") as caught:
        Orders.from_tokens([["0F0"], ["1F0", token]])
    assert repr(token) in str(caught.value)


def test_stages_must_be_numbered_without_gaps_and_evenly_spread() -> None:
    """A skipped stage, an uneven spread and an empty order are refused."""
    with pytest.raises(ScheduleError, match="nothing of 1"):
        Orders.from_tokens([["0F0"], ["2F0"]])
    with pytest.raises(ScheduleError, match="3 stages on 2 ranks"):
        Orders.from_tokens([["0F0", "1F0"], ["2F0"]])
    with pytest.raises(ScheduleError, match="no action at all"):
        Orders.from_tokens([])


@settings(max_examples=40, deadline=None)
@given(data=st.data(), pp=st.integers(1, 4), rounds=st.integers(1, 3), virtual=st.integers(1, 3))
def test_removing_any_action_is_found(
    data: st.DataObject, pp: int, rounds: int, virtual: int
) -> None:
    """No single action can be dropped from a valid order without a complaint."""
    orders = make_orders(
        "interleaved-1f1b", pp=pp, microbatches=pp * rounds, virtual_stages=virtual
    ).validate()
    row = data.draw(st.integers(0, len(orders) - 1))
    kept = np.arange(len(orders)) != row
    broken = dataclasses.replace(
        orders,
        kind=orders.kind[kept],
        stage=orders.stage[kept],
        microbatch=orders.microbatch[kept],
        rank_ptr=orders.rank_ptr - (orders.rank_ptr > row),
    )
    name = f"{orders.stage[row]}{Action(orders.kind[row]).name}{orders.microbatch[row]}"
    with pytest.raises(ScheduleError, match=f"{name} missing"):
        broken.validate()


def test_csv_holds_one_row_a_rank(tmp_path) -> None:
    """The file is PyTorch's compute-only format and reads back to the same tokens."""
    orders = make_orders("1f1b", pp=2, microbatches=2)
    write_csv(orders, tmp_path / "own.csv")
    assert (tmp_path / "own.csv").read_text() == "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
    again = read_csv(tmp_path / "own.csv")
    assert again.tokens() == orders.tokens()
    assert again.schedule == "own"


def test_csv_cells_left_empty_are_idle_slots(tmp_path) -> None:
    """PyTorch writes bubbles as empty cells; they are no actions."""
    (tmp_path / "own.csv").write_text("0F0,,,0B0\n,1F0,1B0\n\n")
    assert read_csv(tmp_path / "own.csv").tokens() == [["0F0", "0B0"], ["1F0", "1B0"]]


def test_csv_mistakes_name_the_file(tmp_path) -> None:
    """Whatever is wrong, the message starts with the file."""
    path = tmp_path / "own.csv"
    with pytest.raises(ScheduleError, match=r"own.csv: cannot be read"):
        read_csv(path)
    path.write_text("0F0\n")
    with pytest.raises(ScheduleError, match=r"own.csv: 0B0 missing"):
        read_csv(path)
    path.write_bytes(b"\xff\xfe0F0")
    with pytest.raises(ScheduleError, match=r"own.csv: is not text in UTF-8"):
        read_csv(path)
