"""What a command does not import."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = ["matplotlib", "torch", "numba", "pandas", "dask", "distributed", "optuna", "networkx"]


def test_a_run_imports_nothing_heavy(scenarios):
    """A fresh process that runs the quickstart: no plotting, no frameworks, no data frames; and simpy only where it simulates."""
    script = (
        "import json, sys\nfrom mpsim.cli import main\ncode = main(sys.argv[1:])\n"
        "print(json.dumps([code, sorted(name for name in sys.modules if '.' not in name)]))"
    )
    command = [sys.executable, "-c", script, "run", str(scenarios / "quickstart.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    code, modules = json.loads(done.stdout.splitlines()[-1])
    assert code == 0
    assert "numpy" in modules
    assert not set(HEAVY) & set(modules)
    assert "simpy" not in modules
