"""The nearest legal values that a check can suggest."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["divisors_near", "multiples", "nearest_two"]


def multiples(value: int, step: int) -> list[int]:
    """The multiples of `step` around `value`, without zero."""
    below = value // step * step
    return [below, below + step] if below else [step]


def divisors_near(value: int, wanted: int) -> str:
    """The two divisors of `value` nearest to `wanted`, in words."""
    divisors = [n for n in range(1, min(value, 2 * wanted) + 1) if value % n == 0]
    return nearest_two(divisors, wanted)


def nearest_two(legal: Iterable[int], wanted: int) -> str:
    """The two of `legal` nearest to `wanted`, in words."""
    near = sorted(sorted(legal, key=lambda n: abs(n - wanted))[:2])
    return " or ".join(map(str, near)) or "1"
