"""``mpsim schedule``: the closed forms of the literature, from the command line."""

from __future__ import annotations

import pytest

KEYS = [
    "schedule",
    "pp",
    "microbatches",
    "virtual_stages",
    "orders",
    "makespan",
    "max_rank_span",
    "bubble_fraction",
    "bubble_over_ideal",
    "peak_inflight_activations",
    "peak_until_input_grad",
]


def schedule(mpsim_cli, name, pp, microbatches, *options):
    return mpsim_cli(
        "schedule", name, "--pp", pp, "--microbatches", microbatches, "--json", *options
    )


def test_json_has_exactly_the_keys_of_the_contract(mpsim_cli):
    """Programs depend on the keys and their order."""
    assert list(schedule(mpsim_cli, "1f1b", 4, 8).json()) == KEYS


def test_1f1b_of_four_ranks_and_eight_microbatches(mpsim_cli):
    """(m + p - 1) S = 11 x 3 = 33; bubble (p - 1) / (m + p - 1) = 3 / 11; over ideal (p - 1) / m."""
    report = schedule(mpsim_cli, "1f1b", 4, 8, "--times", "1,1,1").json()
    assert report["makespan"] == 33
    assert report["max_rank_span"] == 33
    assert report["bubble_fraction"] == pytest.approx(3 / 11, abs=1e-15)
    assert report["bubble_over_ideal"] == pytest.approx(3 / 8, abs=1e-15)
    assert report["peak_inflight_activations"] == [4, 3, 2, 1]


def test_interleaving_divides_the_bubble_by_the_chunks(mpsim_cli):
    """(v m + p - 1) S for chunks of S = 3: (2 x 8 + 3) x 3."""
    report = schedule(mpsim_cli, "interleaved-1f1b", 4, 8, "--virtual", 2).json()
    assert report["makespan"] == 57
    assert report["bubble_over_ideal"] == pytest.approx(3 / 16, abs=1e-15)


def test_decimal_times_are_exact(mpsim_cli):
    """0.1 is one tenth, not the nearest double: (4 + 2 - 1) x 0.6."""
    report = schedule(mpsim_cli, "gpipe", 2, 4, "--times", "0.1,0.2,0.3").json()
    assert report["makespan"] == 3.0


def test_latency_costs_gpipe_a_constant_and_1f1b_something_per_microbatch(mpsim_cli):
    """2 (p - 1) c for GPipe; c (2 (p - 1) m / p + 2 (p - 2)) for 1F1B with m a multiple of p."""
    gpipe = schedule(mpsim_cli, "gpipe", 4, 8, "--p2p", "0.01").json()
    one_f_one_b = schedule(mpsim_cli, "1f1b", 4, 8, "--p2p", "0.01").json()
    assert gpipe["makespan"] == pytest.approx(33 + 6 * 0.01, abs=1e-12)
    assert one_f_one_b["makespan"] == pytest.approx(33 + (2 * 3 * 8 / 4 + 2 * 2) * 0.01, abs=1e-12)


def test_a_written_csv_gives_the_same_report(mpsim_cli, tmp_path):
    """What --csv writes can be given as NAME, and says its own size."""
    file = tmp_path / "orders.csv"
    first = schedule(mpsim_cli, "1f1b", 3, 5, "--csv", file).json()
    second = mpsim_cli("schedule", file, "--json").json()
    assert {**first, "schedule": ""} == {**second, "schedule": ""}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("1f1c", "--pp", 4, "--microbatches", 8), "1f1b"),
        (("1f1b", "--pp", 4), "--microbatches"),
        (("1f1b", "--pp", 0, "--microbatches", 8), "--pp"),
        (("1f1b", "--pp", 4, "--microbatches", 8, "--times", "1,1"), "three numbers"),
        (("1f1b", "--pp", 4, "--microbatches", 8, "--times", "1,-1,1"), "negative"),
        (("none.csv",), "none.csv"),
        (("1f1c", "--pp", 4), "1f1b"),
        (("1f1b", "--pp", 10**30, "--microbatches", 8), "--pp"),
        (("1f1b", "--pp", 4, "--microbatches", 10**30), "--microbatches"),
        (("all", "--pp", 4096, "--microbatches", 10**7), "--microbatches"),
        (("1f1b", "--pp", 4, "--microbatches", 8, "--p2p", "1e400"), "--p2p"),
        (("al", "--pp", 4), "'all'"),
        (("1f1b", "--pp", 4, "--microbatches", 8, "--memory", "nan"), "--memory"),
        (("1f1b", "--pp", 4, "--microbatches", 8, "--overlap", "late"), "--overlap"),
    ],
)
def test_bad_input_exits_2_with_nothing_on_stdout(mpsim_cli, arguments, words):
    """The message on stderr names what to mend."""
    outcome = mpsim_cli("schedule", *arguments, "--json")
    assert (outcome.code, outcome.out) == (2, "")
    assert words in outcome.err
    assert "Traceback" not in outcome.err


def test_auto_says_how_good_it_is(mpsim_cli):
    """Never worse than the best named schedule, and how far at most above the best order of all."""
    report = schedule(mpsim_cli, "auto", 4, 8, "--times", "2,2,1", "--memory", 4).json()
    assert report["lower_bound"] <= report["makespan"] <= report["best_named"]["makespan"]
    assert report["gap"] == pytest.approx(report["makespan"] / report["lower_bound"] - 1)
    assert max(report["peak_inflight_activations"]) <= 4
    text = mpsim_cli("schedule", "auto", "--pp", 4, "--microbatches", 8).out
    assert "above the best order of whole microbatches with 1 chunk a rank (lower bound 27)" in text
    assert "faster: interleaved-zb with 2 chunks a rank takes 25.5 for the same work" in text


def test_options_of_a_schedule_reach_it(mpsim_cli):
    """Four segments of a sequence shorten the bubble of 1F1B; unknown ones are refused."""
    two, four = (
        schedule(mpsim_cli, "seq-1f1b", 4, 8, "--option", f"segments={k}").json() for k in (2, 4)
    )
    assert len(four["orders"][0]) == 2 * len(two["orders"][0])
    outcome = mpsim_cli(
        "schedule", "1f1b", "--pp", 4, "--microbatches", 8, "--option", "segments=4"
    )
    assert outcome.code == 2
    assert "segments" in outcome.err


def test_all_schedules_side_by_side(mpsim_cli):
    """Fastest first, every one that trains, on the same work."""
    report = mpsim_cli("schedule", "all", "--pp", 4, "--microbatches", 8, "--json").json()
    makespans = [one["makespan"] for one in report["schedules"] if "makespan" in one]
    assert len(makespans) >= 17
    assert makespans == sorted(makespans)
    table = mpsim_cli("schedule", "all", "--pp", 4, "--microbatches", 8).out
    assert table.index("zb-v") < table.index("gpipe")


def test_all_schedules_are_drawn_bubble_against_memory(mpsim_cli, tmp_path):
    """The picture is written beside the table, or beside the JSON, which stays alone on its stream."""
    path = tmp_path / "all.png"
    options = ("--pp", 2, "--microbatches", 4, "--memory", 3, "--plot", path)
    outcome = mpsim_cli("schedule", "all", *options, "--json")
    assert len(outcome.json()["schedules"]) >= 17
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("name", "option"),
    [
        *(
            ("all", option)
            for option in ("--csv c.csv", "--virtual 2", "--overlap fused", "--option segments=4")
        ),
        ("1f1b", "--memory 4"),
        ("orders.csv", "--memory 4"),
        ("orders.csv", "--option segments=4"),
    ],
)  # fmt: skip
def test_an_option_that_would_not_count_is_refused(mpsim_cli, tmp_path, monkeypatch, name, option):
    """Nothing that was asked for is dropped in silence."""
    monkeypatch.chdir(tmp_path)
    schedule(mpsim_cli, "1f1b", 4, 8, "--csv", "orders.csv")
    outcome = mpsim_cli("schedule", name, "--pp", 4, "--microbatches", 8, *option.split())
    assert (outcome.code, outcome.out) == (2, "")
    assert option.split()[0] in outcome.err
    assert "leave it out" in outcome.err


@pytest.mark.parametrize("number", [10, 10**9, 2**63, 10**40])
def test_a_number_beyond_the_actions_of_a_file_is_refused(mpsim_cli, tmp_path, number):
    """However large, at once and by its name."""
    file = tmp_path / "orders.csv"
    for token in (f"0F{number}", f"{number}F0"):
        file.write_text(f"0F0,0B0,{token}\n")
        outcome = mpsim_cli("schedule", file)
        assert (outcome.code, outcome.out) == (2, "")
        assert token[:40] in outcome.err
        assert "numbered from 0" in outcome.err
