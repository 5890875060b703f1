"""Sums of integers as bash works them out between double parentheses."""

from __future__ import annotations

import re

__all__ = ["value_of_sum"]


def value_of_sum(text: str) -> int | None:
    """Value of a sum of integers with ``+ - * / %`` and parentheses; None where it is anything else."""
    if len(text) > 200 or not re.fullmatch(r"[\d\s+*/%()-]+", text):
        return None
    tokens = re.findall(r"\d+|[+*/%()-]", text)
    try:
        value = _terms(tokens)
    except (ValueError, IndexError, RecursionError):
        return None
    return value if not tokens and abs(value) < 10**18 else None


def _terms(tokens: list[str]) -> int:
    """Take a sum from the front of the tokens."""
    value = _product(tokens)
    while tokens and tokens[0] in "+-":
        sign = 1 if tokens.pop(0) == "+" else -1
        value += sign * _product(tokens)
    return value


def _product(tokens: list[str]) -> int:
    value = _factor(tokens)
    while tokens and tokens[0] in "*/%":
        operator, right = tokens.pop(0), _factor(tokens)
        if operator == "*":
            value *= right
            continue
        if right == 0:
            raise ValueError
        quotient = (
            abs(value) // abs(right) * (1 if (value < 0) == (right < 0) else -1)
        )  # bash cuts towards zero
        value = quotient if operator == "/" else value - quotient * right
    return value


def _factor(tokens: list[str]) -> int:
    token = tokens.pop(0)
    if token == "-":
        return -_factor(tokens)
    if token == "(":
        value = _terms(tokens)
        if tokens.pop(0) != ")":
            raise ValueError
        return value
    return int(token)
