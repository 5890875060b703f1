"""A played trace as torch's memory_viz opens it: ``_snapshot()`` of one device."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

from mpsim.output import write_whole
from mpsim.training.memory.allocator import Block, Segment
from mpsim.training.memory.trace import Played


def write_snapshot(played: Played, path: str | Path) -> None:
    """Write `snapshot_of` as a pickle."""
    write_whole(path, pickle.dumps(snapshot_of(played), protocol=4))  # newest that it reads


def snapshot_of(played: Played) -> dict[str, object]:
    """Segments as they are after the step, and every event of it; frames name the tensor."""
    return {
        "segments": [_segment(segment) for segment in played.allocator.segments],
        "device_traces": [[*_events(played)]],
        "allocator_settings": {"expandable_segments": False},
        "external_annotations": [],
    }


def _events(played: Played) -> Iterator[dict[str, object]]:
    for change, address, size, grown in played.changes:
        event = {"addr": address, "size": size, "stream": 0, "time_us": round(change.time_us)}
        framed = {**event, "frames": _frames(change.name)}
        if grown:
            yield {**framed, "action": "segment_alloc", "size": grown}
        for action in ("alloc",) if change.size else ("free_requested", "free_completed"):
            yield {**framed, "action": action}


def _frames(name: str) -> list[dict[str, object]]:
    return [{"filename": name.partition(" ")[0], "line": 0, "name": name}]


def _segment(segment: Segment) -> dict[str, object]:
    held = sum(block.size for block in segment.blocks if block.requested)
    return {
        "device": 0,
        "address": segment.address,
        "total_size": segment.size,
        "allocated_size": held,
        "active_size": held,
        "requested_size": sum(block.requested for block in segment.blocks),
        "stream": segment.stream,
        "segment_type": "small" if segment.small else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": segment.expandable,
        "frames": [],
        "blocks": [_block(block) for block in segment.blocks],
    }


def _block(block: Block) -> dict[str, object]:
    return {
        "address": block.address,
        "size": block.size,
        "requested_size": block.requested,
        "state": "active_allocated" if block.requested else "inactive",
        "frames": _frames(block.name) if block.requested else [],
    }
