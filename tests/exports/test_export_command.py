"""The commands ``mpsim export`` and ``--emit``."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from mpsim.formats import WRITERS
from mpsim.formats.configs import toml_text, yaml_text


@pytest.fixture
def quickstart(scenarios):
    """A scenario that every format holds."""
    return scenarios / "quickstart.yaml"


def test_a_file_is_written_and_what_it_lacks_is_said(quickstart, tmp_path, mpsim_cli):
    """The configuration goes to the file, the losses to stderr."""
    out = tmp_path / "train.sh"
    done = mpsim_cli("export", "megatron", quickstart, "-o", out)
    assert (done.code, done.out) == (0, "")
    assert "lost in megatron: cluster (dgx-h100): no setting names accelerators" in done.err
    assert "lost in megatron: sweep" in done.err
    assert "--tensor-model-parallel-size 2" in out.read_text()


def test_the_losses_are_part_of_the_json(quickstart, mpsim_cli):
    """Every value that the format cannot hold, with its reason."""
    data = mpsim_cli("export", "deepspeed", quickstart, "--json").json()
    assert json.loads(data["text"])["zero_optimization"]["stage"] == 1
    lost = {loss["key"]: loss for loss in data["lost"]}
    assert {"model", "cluster", "parallelism.tp", "training.sequence_length"} <= lost.keys()
    assert all(loss["why"] for loss in lost.values())


def test_what_a_scenario_does_not_do_is_not_lost(quickstart, mpsim_cli):
    """No padding and no second model is what every trainer does."""
    data = mpsim_cli("export", "megatron", quickstart, "--json").json()
    assert not {"training.packing", "training.reference"} & {entry["key"] for entry in data["lost"]}


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


@pytest.mark.parametrize(
    "name", [writer.name for writer in WRITERS if writer.ending and not writer.serves]
)
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


@pytest.mark.parametrize("name", [writer.name for writer in WRITERS if not writer.serves])
def test_export_and_emit_write_the_same_files_and_say_the_same(
    name, tmp_path, quickstart, mpsim_cli
):
    """One path: the same bytes, the same JSON, from any target of the one table."""
    small = ("--set", "training.global_batch=8", "--set", "parallelism.pp=1")
    told = []
    for command in ("export", "check"):
        out = tmp_path / command / "out"
        out.parent.mkdir()
        words = (name, quickstart, "-o", out) if command == "export" else (quickstart, "--emit", f"{name}={out}")  # fmt: skip
        done = mpsim_cli(command, *words, *small, "--json").json()
        del done["mpsim"]  # which version said so
        told.append(done if command == "export" else done["emitted"][0])
    texts = [json.dumps(item).replace(f"/{command}/", "/") for item, command in zip(told, ("export", "check"), strict=True)]  # fmt: skip
    assert texts[0] == texts[1]
    assert told[0]["format"] == name
    assert told[0]["lost"]
    files = [
        {path.name: path.read_bytes() for path in (tmp_path / command).rglob("*") if path.is_file()}
        for command in ("export", "check")
    ]
    assert files[0] == files[1] != {}


@pytest.mark.parametrize("command", ["run", "check", "search", "export"])
def test_every_command_refuses_the_same_targets(
    command, quickstart, scenarios, tmp_path, monkeypatch, mpsim_cli
):
    """A service, an unknown format and a folder that is not there, before anything is simulated."""
    monkeypatch.chdir(tmp_path)

    def refused(form, file, scenario):
        words = (form, scenario, "-o", file) if command == "export" else (scenario, "--emit", f"{form}={file}")  # fmt: skip
        done = mpsim_cli(command, *words)
        assert (done.code, done.out) == (2, "")
        return " ".join(done.err.replace("\u2502", "").split())

    assert "describes a service" in refused("megatron", "x.sh", scenarios / "serving/llama3-70b-h100.yaml")  # fmt: skip
    assert "did you mean 'chakra'" in refused("chakre", "x", quickstart)
    assert "there is no folder" in refused("nemo", "no/x.yaml", quickstart)
    assert not list(tmp_path.iterdir())


def test_a_search_refuses_a_model_that_the_target_has_no_words_for(scenarios, tmp_path, mpsim_cli):
    """An encoder is no GPT of Megatron: said before the search, not after it."""
    out = f"megatron={tmp_path / 'x.sh'}"
    done = mpsim_cli("search", scenarios / "t5-11b-a100.yaml", "--emit", out)
    assert (done.code, done.out) == (2, "")
    assert "has an encoder and a decoder" in done.err


def test_no_two_targets_are_one_file(quickstart, tmp_path, mpsim_cli):
    """The second would replace the first."""
    out = tmp_path / "x"
    done = mpsim_cli("check", quickstart, "--emit", f"nemo={out}", "--emit", f"torchtitan={out}")
    assert (done.code, "written twice" in done.err, out.exists()) == (2, True, False)


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_launch_script_finds_its_nodes(nodes, quickstart, tmp_path, mpsim_cli):
    """Its own shell expands it to torchrun with nodes, processes, node rank and rendezvous; without them it stops and says which to set."""
    script = tmp_path / "train.sh"
    mpsim_cli("export", "megatron", quickstart, "--set", f"cluster.nodes={nodes}", "-o", script)
    text = script.read_text(encoding="utf-8").replace('"${LAUNCH[@]}"', 'echo "${LAUNCH[@]}"')
    known = {"PATH": os.environ["PATH"], "MASTER_ADDR": "node0"}

    def launched(**variables):
        return subprocess.run(
            ["bash", "-c", text], env=known | variables, capture_output=True, text=True, check=False
        )

    if nodes == 1:
        assert launched().stdout.startswith("torchrun --nnodes 1 --nproc-per-node 8 pretrain_gpt")
        return
    line = "torchrun --nnodes 2 --nproc-per-node 8 --node-rank 1 --master-addr node0 --master-port 29500 pretrain_gpt.py"
    assert launched(NODE_RANK="1").stdout.startswith(line)
    assert launched(SLURM_NODEID="1").stdout.startswith(line)
    assert "set NODE_RANK" in launched().stderr
    assert launched().returncode != 0
    again = mpsim_cli("import", "megatron", script, "--cluster", "dgx-h100", "--json").json()
    assert again["scenario"]["cluster"]["nodes"] == nodes
    assert not again["warnings"]


@pytest.mark.parametrize(
    ("preset", "precision", "flags"),
    [
        ("megatron-core-2025", "fp8", ["--fp8-format hybrid", "--fp8-recipe delayed"]),
        ("megatron-core-2025", "fp8_block", ["--fp8-format hybrid", "--fp8-recipe blockwise"]),
        ("megatron-core", "fp8", ["--fp8-format hybrid"]),
        ("megatron-core-2025", "fp8_rowwise", []),
    ],
)
def test_fp8_names_its_recipe(preset, precision, flags, quickstart, mpsim_cli):
    """The recipe stands in every script whose version has the flag; a format that Megatron lacks is told as lost."""
    changes = (f"framework={preset}", f"training.precision={precision}")
    words = [word for change in changes for word in ("--set", change)]
    done = mpsim_cli("export", "megatron", quickstart, *words, "--json").json()
    written = [line.strip() for line in done["text"].splitlines() if "--fp8" in line]
    assert written == flags
    assert ("training.precision" in {loss["key"] for loss in done["lost"]}) == (not flags)
