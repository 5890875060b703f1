"""The reference page of the catalog says what the catalog says."""

from pathlib import Path

import pytest
import yaml

from mpsim.hardware import parse_accelerator, recalled

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "hardware.md"


@pytest.fixture(scope="module")
def page():
    """The page as text."""
    return PAGE.read_text(encoding="utf-8")


def test_the_example_entry_of_the_page_is_read(page):
    """What the page tells to write is what the reader accepts."""
    entry = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    chip = parse_accelerator("my-chip", entry["my-chip"])
    assert chip.peak("bf16") == 1.5e15
    assert recalled(chip) == ("idle_w",)
    assert chip.sources["memory_bandwidth"] == "measured, copy kernel (2026-11-20)"


def test_the_python_of_the_page_runs(page):
    """The first example of the page is executable."""
    code = page.partition("```python\n")[2].partition("```")[0]
    exec(compile(code, str(PAGE), "exec"), {})  # noqa: S102
