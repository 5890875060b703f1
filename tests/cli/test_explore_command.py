"""``mpsim explore``: where it says the page is, and how it ends."""

import os
import signal
import subprocess
import sys
import urllib.request

import pytest

from tests.nightly import some


@pytest.mark.parametrize("end", some([signal.SIGINT, signal.SIGTERM], 1))
def test_it_serves_until_it_is_ended(scenarios, end):
    """The address that it prints has the page; Ctrl-C or a kill ends it, with exit code 0 and no traceback."""
    command = [sys.executable, "-m", "mpsim", "explore", str(scenarios / "quickstart.yaml")]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address, timeout=60) as reply:
            assert b"<h1" in reply.read()
        process.send_signal(end)
        process.wait()
        told = process.stderr.read()
    assert process.returncode == 0, told
    assert told.splitlines()[-1] == "ended"
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(["--port", "99999"], "65535"), (["--set", "parallelism.tp=7"], "parallelism")],
)
def test_a_mistake_is_told_before_anything_is_served(mpsim_cli, scenarios, arguments, told):
    """A port that is none, or a scenario that is wrong: exit code 2."""
    made = mpsim_cli("explore", scenarios / "quickstart.yaml", *arguments)
    assert made.code == 2
    assert told in made.err
    assert made.out == ""
