"""The commands ``mpsim export`` and ``--emit``."""

from __future__ import annotations

import json

import pytest

from mpsim.formats import WRITERS
from mpsim.formats.written import toml_text, yaml_text


@pytest.fixture
def quickstart(scenarios):
    """A scenario that every format holds."""
    return scenarios / "quickstart.yaml"


def test_a_file_is_written_and_what_it_lacks_is_said(quickstart, tmp_path, mpsim_cli):
    """The configuration goes to the file, the losses to stderr."""
    out = tmp_path / "train.sh"
    done = mpsim_cli("export", "megatron", quickstart, "-o", out)
    assert (done.code, done.out) == (0, "")
    assert "lost: cluster (dgx-h100): no setting names accelerators" in done.err
    assert "lost: sweep" in done.err
    assert "--tensor-model-parallel-size 2" in out.read_text()


def test_the_losses_are_part_of_the_json(quickstart, mpsim_cli):
    """Every value that the format cannot hold, with its reason."""
    data = mpsim_cli("export", "deepspeed", quickstart, "--json").json()
    assert json.loads(data["text"])["zero_optimization"]["stage"] == 1
    lost = {loss["key"]: loss for loss in data["lost"]}
    assert {"model", "cluster", "parallelism.tp", "training.sequence_length"} <= lost.keys()
    assert all(loss["why"] for loss in lost.values())


def test_a_service_is_refused(scenarios, tmp_path, mpsim_cli):
    """No launch script describes a stream of requests; nothing is written."""
    out = tmp_path / "x.sh"
    done = mpsim_cli("export", "megatron", scenarios / "serving/llama3-70b-h100.yaml", "-o", out)
    assert (done.code, out.exists(), "describes a service" in done.err) == (2, False, True)


def test_an_unknown_format_is_refused_with_the_nearest(quickstart, mpsim_cli):
    """A slip is mended by the message, also of --emit and before anything is simulated."""
    done = mpsim_cli("export", "megatrn", quickstart)
    assert (done.code, "did you mean 'megatron'" in done.err) == (2, True)
    done = mpsim_cli("run", quickstart, "--emit", "torchtitn")
    assert (done.code, done.out, "did you mean 'torchtitan'" in done.err) == (2, "", True)


@pytest.mark.parametrize("command", ["check", "run"])
def test_emit_writes_the_configuration_beside_the_answer(
    command, quickstart, tmp_path, monkeypatch, mpsim_cli
):
    """A file named after scenario and format, or the one that is given; the JSON says which and what it lacks."""
    monkeypatch.chdir(tmp_path)
    named = tmp_path / "titan.toml"
    done = mpsim_cli(
        command, quickstart, "--emit", "nemo", "--emit", f"torchtitan={named}", "--json"
    )
    files = {item["format"]: item for item in done.json()["emitted"]}
    assert files["nemo"]["file"] == "quickstart.nemo.yaml"
    assert (tmp_path / "quickstart.nemo.yaml").exists()
    assert named.exists()
    assert "parallelism.zero" in {loss["key"] for loss in files["torchtitan"]["lost"]}


def test_show_formats_lists_both_directions(mpsim_cli):
    """What is read and what is written."""
    rows = mpsim_cli("show", "formats", "--json").json()["formats"]
    written = {row["format"] for row in rows if row["direction"] == "export"}
    read = {row["format"] for row in rows if row["direction"] == "import"}
    assert {writer.name for writer in WRITERS} <= written & read


def test_written_texts_are_read_back_by_other_libraries():
    """Words that YAML or TOML would take for something else are quoted."""
    import tomllib

    from mpsim.document import parse_document

    section = {"a": "no", "b": "1e3", "c": [1, 2.5], "d": True, "e": "x: y", "f": "0x10", "g": ""}
    assert tomllib.loads(toml_text({"s": section})) == {"s": section}
    assert parse_document(yaml_text({"s": section}), "x").data == {"s": section}


@pytest.mark.parametrize("name", [writer.name for writer in WRITERS])
def test_nothing_of_the_machine_is_written(name, quickstart, monkeypatch, mpsim_cli):
    """No user, host, path or variable of whoever exports stands in the file."""
    import getpass
    import socket

    monkeypatch.setenv("SECRET_TOKEN", "hunter2-secret")
    done = mpsim_cli("export", name, quickstart)
    told = done.out + done.err
    words = ["hunter2-secret", socket.gethostname(), str(quickstart.parent)]
    words += [getpass.getuser()] if len(getpass.getuser()) > 4 else []
    assert not [word for word in words if word in told]


@pytest.mark.parametrize("command", ["check", "run", "search"])
def test_emit_replaces_no_file_that_was_not_named(
    command, quickstart, tmp_path, monkeypatch, mpsim_cli
):
    """What is there under the usual name is refused before anything is simulated; a file that is named is replaced, and that is told."""
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "quickstart.nemo.yaml"
    mine.write_text("mine\n", encoding="utf-8")
    done = mpsim_cli(command, quickstart, "--emit", "nemo")
    assert (done.code, done.out, mine.read_text(encoding="utf-8")) == (2, "", "mine\n")
    assert "--emit: " not in done.out
    assert "give nemo=quickstart.nemo.yaml to replace it" in " ".join(done.err.split())
    if command != "search":
        done = mpsim_cli(command, quickstart, "--emit", f"nemo={mine}")
        assert "was there already, and is replaced" in " ".join(done.err.split())
        assert mine.read_text(encoding="utf-8") != "mine\n"
