"""Traces of requests: when they came."""

from __future__ import annotations

import time

import pytest

from mpsim.serving.traces import read_trace


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_azure_times_are_utc_wherever_they_are_read(tmp_path, monkeypatch, zone):
    """The hour that a summer clock skips (2024-03-10, 02:00 in New York) is an hour of the trace."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-03-10 01:30:00.0000000,10,20\n"
        "2024-03-10 03:30:00.0000000,10,20\n"
    )
    arrival = read_trace(path).arrival
    monkeypatch.undo()
    time.tzset()
    assert arrival[1] - arrival[0] == 7200
