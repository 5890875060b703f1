"""The nearest legal values that a check can suggest, in words."""

from __future__ import annotations

from collections.abc import Iterable


def multiples(value: int, step: int) -> list[int]:
    """The multiples of `step` around `value`, without zero."""
    below = value // step * step
    return [below, below + step] if below else [step]


def multiples_near(value: int, step: int) -> str:
    """The multiples of `step` around `value`."""
    return " or ".join(map(str, multiples(value, step)))


def divisors_near(value: int, wanted: int) -> str:
    """The two divisors of `value` nearest to `wanted`."""
    divisors = [n for n in range(1, min(value, 2 * wanted) + 1) if value % n == 0]
    return nearest_two(divisors, wanted)


def nearest_two(legal: Iterable[int], wanted: int, otherwise: str = "1") -> str:
    """The two of `legal` nearest to `wanted`."""
    near = sorted(sorted(legal, key=lambda n: abs(n - wanted))[:2])
    return " or ".join(map(str, near)) or otherwise
