"""What is remembered: by content, within a bound, in one module."""

from __future__ import annotations

import ast
import importlib
import pickle
import pkgutil
from pathlib import Path

import numpy as np
import pytest

import mpsim
from mpsim import memo
from mpsim.cost import KernelModel, kernels
from mpsim.hardware import accelerator
from mpsim.memo import Memo, asked_once, remembered
from mpsim.workload import Phase, Role, make_gemm, models

PACKAGE = Path(mpsim.__file__).parent
FUNCTOOLS = ("lru_cache", "cache")


def test_a_memo_forgets_its_oldest_entry_first() -> None:
    """Bound 3: the fourth entry pushes out the first; what is there is looked up as in any dictionary."""
    squares = Memo[int, int](3)
    for number in range(4):
        assert squares.get_or(number, lambda n=number: n * n) == number * number
    assert squares == {1: 1, 2: 4, 3: 9}
    assert squares.get_or(3, lambda: -1) == 9


@pytest.mark.parametrize("way", ["update", "setdefault"])
def test_nothing_goes_around_the_bound(way: str) -> None:
    """A dictionary's other ways of adding are refused."""
    with pytest.raises(TypeError, match="one by one"):
        getattr(Memo[int, int](1), way)({1: 1})


@pytest.mark.parametrize("bound", [0, -1])
def test_a_bound_is_one_or_more(bound: int) -> None:
    """Nothing can be remembered in no place."""
    with pytest.raises(ValueError, match="needed 1 or more"):
        remembered(bound)
    with pytest.raises(ValueError, match="needed 1 or more"):
        Memo[int, int](bound)


def test_a_method_is_asked_once_for_each_key_of_each_object() -> None:
    """Words that differ in their case are one; another object asks anew."""

    class Word:
        asked = 0

        @asked_once(str.lower)
        def length(self, text: str) -> int:
            self.asked += 1
            return len(text)

    word, other = Word(), Word()
    assert [word.length(text) for text in ("one", "ONE", "three")] == [3, 3, 5]
    assert (word.asked, other.asked) == (2, 0)
    assert other.length("one") == 3


def test_functions_made_by_a_call_are_not_remembered() -> None:
    """They would pile up, one for each call."""
    with pytest.raises(ValueError, match="Memo"):
        remembered(1)(lambda: 1)


def test_every_remembered_function_is_bounded() -> None:
    """All modules but the one for torch imported: each has a bound, and `forget` empties all of them."""
    for module in pkgutil.walk_packages(mpsim.__path__, "mpsim."):
        if not module.name.startswith(("mpsim.measure", "mpsim.__main__")):
            importlib.import_module(module.name)
    models.model("gpt3-175b")
    usage = memo.usage()
    assert len(usage) > 30
    assert all(0 <= kept <= bound for kept, bound in usage)
    assert max(bound for _, bound in usage) <= 1 << 16
    memo.forget()
    assert not any(kept for kept, _ in memo.usage())


def test_equal_content_is_asked_once() -> None:
    """A model that was loaded again, so another object, gets the same answer."""
    model = models.model("gpt3-175b")
    again = pickle.loads(pickle.dumps(model))
    assert again is not model
    assert again.kinds is model.kinds


def test_more_shapes_than_are_remembered_are_all_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two shapes kept: asking for one, two and three at once gives the same seconds as with room for all."""
    work = [make_gemm(Role.QKV, Phase.FORWARD, m=m, n=64, k=64) for m in (128, 256, 512)]
    chip = accelerator("h100-sxm")
    expected = KernelModel(chip, "bf16").seconds(work)
    monkeypatch.setattr(kernels, "_SHAPES", 2)
    memo.forget()  # what the model above has answered
    model = KernelModel(chip, "bf16")
    for ask in ([0], [1, 2], [0, 1, 2], [2, 0]):
        assert np.array_equal(model.seconds([work[i] for i in ask]), expected[ask])


def _is_cache(node: ast.AST) -> bool:
    """Whether a node is a cache of functools."""
    if not isinstance(node, ast.Attribute) or node.attr not in FUNCTOOLS:
        return False
    return isinstance(node.value, ast.Name) and node.value.id == "functools"


def test_nothing_is_remembered_elsewhere() -> None:
    """No cache of functools outside `mpsim.memo` but cached properties, no address as a key, no weak dictionary, no writing into an object."""
    faults = []
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        where = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(tree):
            if _is_cache(node):
                faults.append(f"{where}:{node.lineno} functools.{node.attr}")
            if isinstance(node, ast.Subscript) and _is_address(node.slice):
                faults.append(f"{where}:{node.lineno} id() as a key")
            if isinstance(node, ast.Call) and _writes_dictionary(node):
                faults.append(f"{where}:{node.lineno} writes into __dict__")
            if isinstance(node, ast.Import) and any(name.name == "weakref" for name in node.names):
                faults.append(f"{where}:{node.lineno} weakref")
    assert [fault for fault in faults if not fault.startswith("memo.py")] == []


def _is_address(node: ast.expr) -> bool:
    parts = ast.walk(node)
    return any(isinstance(p, ast.Call) and getattr(p.func, "id", "") == "id" for p in parts)


def _writes_dictionary(node: ast.Call) -> bool:
    target = node.func
    return (
        isinstance(target, ast.Attribute)
        and target.attr in ("update", "setdefault", "__setitem__")
        and isinstance(target.value, ast.Attribute)
        and target.value.attr == "__dict__"
    )
