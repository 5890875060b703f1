"""A test that computes for ever fails by its processor time; one that a busy machine keeps waiting does not."""

import subprocess
import sys

TESTS = """
import time
def test_that_spins():
    while True:
        pass
def test_that_waits():
    time.sleep(0.6)
"""


def test_processor_time_is_limited_and_wall_time_is_not(request, tmp_path):
    """With a limit of 0.3 s spinning fails, and 0.6 s of sleep pass."""
    limits = (request.config.rootpath / "conftest.py").read_text(encoding="utf-8")
    assert "CPU_LIMIT = 300\n" in limits
    (tmp_path / "conftest.py").write_text(limits.replace("CPU_LIMIT = 300\n", "CPU_LIMIT = 0.3\n"))
    (tmp_path / "test_both.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_both.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 1 passed" in done.stdout
    assert "more than 0.3 s of processor time" in done.stdout
