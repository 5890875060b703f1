"""What leaves mpsim: whole files, names that stay in their folder, text without control characters."""

import html

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpsim
from mpsim import Result
from mpsim.output import printable, safe_name, whole, write_whole

HOSTILE = (
    *("../../x", "/etc/passwd", "..", ".", "", " ", ".hidden", "a/b", "a\\b", "con\x00trol"),
    *("\x1b[2Jname", "x" * 5000, "\u202eexe.yaml", "<script>alert(1)</script>"),
)


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_leaves_its_folder(tmp_path, name):
    """A file of that name lies in the folder it was meant for."""
    file = tmp_path / safe_name(name)
    file.write_text("x")
    assert file.resolve().parent == tmp_path.resolve()
    assert not file.name.startswith(".")


@given(st.text())
def test_printable_text_has_no_control_characters(text):
    """Tabs and ends of lines stay; what is printable stays as it is."""
    shown = printable(text)
    assert not any(ord(letter) < 32 and letter not in "\t\n" for letter in shown)
    assert "\x1b" not in shown
    assert printable(shown) == shown


def test_a_failed_write_leaves_what_was_there(tmp_path):
    """Neither half a file under the name nor one beside it; the error, which the system gave no file, names it."""
    path = tmp_path / "result.json"
    path.write_text("before")

    def fail():
        with whole(path) as beside:
            beside.write_text("half")
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space") as caught:
        fail()
    assert caught.value.filename == str(path)
    assert path.read_text() == "before"
    assert [file.name for file in tmp_path.iterdir()] == ["result.json"]


def test_a_written_file_replaces_the_one_that_a_link_names(tmp_path):
    """The link stays a link, and the mode of the file stays."""
    target, link = tmp_path / "a.csv", tmp_path / "b.csv"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    write_whole(link, "new")
    assert link.is_symlink()
    assert (target.read_text(), target.stat().st_mode & 0o777) == ("new", 0o640)


def test_plots_of_a_hostile_name_stay_in_their_folder(mpsim_cli, scenarios, tmp_path, monkeypatch):
    """Two scenarios, so that each has a folder of its name; nothing is drawn."""
    monkeypatch.setattr(Result, "save_plots", lambda _, path: path.mkdir(parents=True) or ())
    text = (scenarios / "quickstart.yaml").read_text()
    bad = tmp_path / "bad.yaml"
    bad.write_text(text.replace("name: quickstart", "name: ../../escaped"))
    folder = tmp_path / "inside" / "plots"
    outcome = mpsim_cli("run", bad, scenarios / "quickstart.yaml", "--plots", folder)
    assert outcome.code == 0
    assert not (tmp_path / "escaped").exists()
    assert (folder / "escaped").is_dir()


def test_html_of_a_result_escapes_names(scenarios):
    """A name is text, not markup."""
    name = "<script>alert(1)</script>"
    scenario = mpsim.load(scenarios / "quickstart.yaml").with_values({"name": name})
    shown = mpsim.simulate(scenario)._repr_html_()
    assert name not in shown
    assert html.escape(name) in shown
