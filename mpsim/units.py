"""Quantities with units at the edge, SI floats inside.

Everything a person writes carries its unit (``400 Gb/s``, ``80 GiB``, ``2.5 us``); everything
inside mpsim is a float in seconds, bytes, bytes per second, FLOP, FLOP per second, watts or joules.
A small ``b`` is a bit and a capital ``B`` is a byte, always; ``Gbps`` is what is printed on NICs
and means ``Gb/s``, ``GBps`` is refused because half of its writers mean that too.
"""

from __future__ import annotations

import decimal
import enum
import math
import re
from collections.abc import Mapping
from types import MappingProxyType

from mpsim.errors import UnitError
from mpsim.memo import remembered


class Dimension(enum.StrEnum):
    """Dimensions of quantities; the value names the SI unit kept inside."""

    TIME = "s"
    BYTES = "B"
    BANDWIDTH = "B/s"
    FLOP = "FLOP"
    FLOP_RATE = "FLOP/s"
    POWER = "W"
    FREQUENCY = "Hz"
    ENERGY = "J"
    PRICE_RATE = "USD/h"


_DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_PARTS = {"": 1.0, "m": 1e-3, "u": 1e-6, "µ": 1e-6, "μ": 1e-6, "n": 1e-9, "p": 1e-12}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}


def _scaled(unit: str, prefixes: Mapping[str, float], factor: float = 1.0) -> dict[str, float]:
    return {prefix + unit: scale * factor for prefix, scale in prefixes.items()}


def _sizes(over: str) -> dict[str, float]:
    both = _DECIMAL | _BINARY
    bits = _scaled(f"b{over}", both, 1 / 8) | _scaled(f"bit{over}", both, 1 / 8)
    return _scaled(f"B{over}", both) | bits


_UNITS: Mapping[Dimension, Mapping[str, float]] = MappingProxyType(
    {
        Dimension.TIME: _scaled("s", _PARTS) | {"min": 60.0, "h": 3600.0, "d": 86400.0},
        Dimension.BYTES: _sizes(""),
        Dimension.BANDWIDTH: _sizes("/s") | _scaled("bps", _DECIMAL, 1 / 8),
        Dimension.FLOP: _scaled("FLOP", _DECIMAL),
        Dimension.FLOP_RATE: {**_scaled("FLOP/s", _DECIMAL), **_scaled("OP/s", _DECIMAL)},
        Dimension.POWER: {**_scaled("W", _DECIMAL), "mW": 1e-3},
        Dimension.FREQUENCY: _scaled("Hz", _DECIMAL),
        Dimension.ENERGY: {**_scaled("J", _DECIMAL), "Wh": 3600.0, "kWh": 3.6e6, "MWh": 3.6e9},
        Dimension.PRICE_RATE: {"USD/h": 1.0},
    }
)

_EXAMPLES: Mapping[Dimension, tuple[str, ...]] = MappingProxyType(
    {
        Dimension.TIME: ("2.5 us", "3 s", "30 d"),
        Dimension.BYTES: ("80 GiB", "25 MB"),
        Dimension.BANDWIDTH: ("400 Gb/s", "450 GB/s"),
        Dimension.FLOP: ("3.5 TFLOP", "1.2 PFLOP"),
        Dimension.FLOP_RATE: ("989 TFLOP/s", "1.2 PFLOP/s"),
        Dimension.POWER: ("700 W", "10.2 kW"),
        Dimension.FREQUENCY: ("1410 MHz", "1.98 GHz"),
        Dimension.ENERGY: ("5 MJ", "3 kWh"),
        Dimension.PRICE_RATE: ("6.88 USD/h",),
    }
)

_LONGEST = 200  # characters of a quantity: blanks without end would be gone over again and again
_NUMBER = r"[+-]?(?:[0-9]+(?:_[0-9]+)*\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_QUANTITY = re.compile(rf"\s*({_NUMBER})\s*(\S.*?)?\s*")


def units_of(dimension: Dimension) -> tuple[str, ...]:
    """Every unit that `dimension` accepts, in the order of the table."""
    return tuple(_UNITS[dimension])


_COUNTS: Mapping[str, float] = MappingProxyType({"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12})


def parse_count(value: object) -> float:
    """Turn a count such as 300B, 15.6T or 1e12 into a float. UnitError if it is no number above 0.

    Examples
    --------
    >>> parse_count("15.6T")
    15600000000000.0
    """
    word = str(value)[:_LONGEST].strip().lower().replace(",", "").replace("_", "")
    scale = _COUNTS.get(word[-1:], 1.0)
    try:
        number = float(word[:-1] if scale > 1.0 else word) * scale
    except ValueError:
        number = -1.0
    if not 0.0 < number < math.inf or isinstance(value, bool):
        raise UnitError(f"got {value!r}; needed a number above 0 such as 300B, 15.6T or 1e12")
    return number


def parse_quantity(value: object, dimension: Dimension) -> float:
    """Turn what a person wrote into an SI float.

    `value`: a string such as ``"400 Gb/s"``. Bare numbers are refused, except zero. `dimension`:
    what is expected. UnitError if the number has no unit, an unknown or ambiguous unit, a unit of
    another dimension, or is negative, infinite or not a number.

    Returns: the value in the SI unit of `dimension` [s, B, B/s, FLOP, FLOP/s, W, J or USD/h].

    Examples
    --------
    >>> parse_quantity("400 Gb/s", Dimension.BANDWIDTH)
    50000000000.0
    >>> parse_quantity("2.5 us", Dimension.TIME)
    2.5e-06
    """
    if not isinstance(value, str):
        if type(value) in (int, float) and value == 0:
            return 0.0
        raise UnitError(_complaint(value, dimension, "no unit"))
    match = _QUANTITY.fullmatch(value) if len(value) <= _LONGEST else None
    if match is None:
        raise UnitError(_complaint(value, dimension, "not a number with a unit"))
    number, unit = match.groups()
    if unit is None:
        if float(number) == 0:
            return 0.0
        raise UnitError(_complaint(value, dimension, "no unit"))
    factor = _UNITS[dimension].get(unit)
    if factor is None:
        raise UnitError(_complaint(value, dimension, _why_not(unit, dimension)))
    result = _product(number, factor)
    if math.copysign(1.0, result) < 0:
        raise UnitError(_complaint(value, dimension, "negative"))
    if not math.isfinite(result):
        raise UnitError(_complaint(value, dimension, "too large for a number"))
    return result


def _product(number: str, factor: float) -> float:
    """`number` times `factor`, rounded once: 2.5 us is the float nearest to 2.5e-6."""
    try:
        return float(decimal.Decimal(number) * decimal.Decimal(repr(factor)))
    except decimal.DecimalException:  # an exponent beyond all bounds
        return float(number) * factor


_AMBIGUOUS = re.compile(r"([kmgtpe]?i?)b(?:it|yte)?ps", re.IGNORECASE)
_FLOPS = re.compile(r"([kMGTPE]?)FLOP(?:S|s)?(?:/s)?")


def _why_not(unit: str, dimension: Dimension) -> str:
    if ambiguous := _AMBIGUOUS.fullmatch(unit):
        prefix = next((p for p in {**_DECIMAL, **_BINARY} if p.lower() == ambiguous[1].lower()), "")
        bits, size = f"{prefix}b/s", f"{prefix}B/s"
        return f"{unit[:40]!r} is ambiguous: write {bits!r} for bits or {size!r} for bytes"
    if flops := _FLOPS.fullmatch(unit):
        if dimension is Dimension.FLOP_RATE:
            return f"{unit!r} is not a rate: write '{flops[1]}FLOP/s'"
        if dimension is Dimension.FLOP:
            return f"{unit!r} is not an amount: write '{flops[1]}FLOP'"
    for other, table in _UNITS.items():
        if unit in table:
            return f"{unit!r} measures {other.name.lower().replace('_', ' ')}"
    if dimension is Dimension.TIME and re.match(r"-\d\d?-\d\d?(?!\d)", unit):
        return "a date; count the time from the start"
    if same := [known for known in _UNITS[dimension] if known.lower() == unit.lower()]:
        meant = " or ".join(repr(known) for known in same)
        return f"unknown unit {unit!r}; capitals matter: write {meant}"
    return f"unknown unit {unit[:40]!r}"


def _complaint(value: object, dimension: Dimension, why: str) -> str:
    wanted = " or ".join(repr(example) for example in _EXAMPLES[dimension])
    got = got if len(got := repr(value)) <= 60 else f"{got[:57]}..."
    return f"got {got} ({why}); needed a quantity such as {wanted}"


def format_quantity(
    value: float, dimension: Dimension, *, digits: int = 4, signed: bool = False
) -> str:
    """Write an SI float the way a person would.

    `value`: in the SI unit of `dimension`. `dimension`: what it measures; bytes are written in
    decimal units (GB), never binary. `digits`: significant digits. `signed`: with a + above 0.

    Examples
    --------
    >>> format_quantity(5e10, Dimension.BANDWIDTH)
    '50 GB/s'
    >>> format_quantity(0.00125, Dimension.TIME)
    '1.25 ms'
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g} {dimension.value}"
    unit, scale = rung(value, dimension)
    return f"{'+' * (signed and value > 0)}{value / scale:.{digits}g} {unit}"


def percent(share: float, *, digits: int = 1, signed: bool = False) -> str:
    """A share as a percentage.

    Examples
    --------
    >>> percent(0.4567), percent(-0.02, signed=True)
    ('45.7 %', '-2.0 %')
    """
    return f"{100 * share:{'+' if signed else ''}.{digits}f} %"


def price(dollars: float) -> str:
    """An amount of money of four digits, without a power of ten.

    Examples
    --------
    >>> price(2.116e-05), price(14.331), price(123_456.7)
    ('0.00002116 USD', '14.33 USD', '123,457 USD')
    """
    digits = 4 if not dollars else max(0, 3 - math.floor(math.log10(abs(dollars))))
    text = f"{dollars:,.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if digits else text} USD"


@remembered(4096)
def format_exact(value: float, dimension: Dimension) -> str:
    """Write an SI float so that `parse_quantity` gives the same float back. `value`: in the SI unit
    of `dimension`, finite and at least 0. `dimension`: what it measures.

    Examples
    --------
    >>> format_exact(5e10, Dimension.BANDWIDTH), format_exact(1 / 3, Dimension.TIME)
    ('50 GB/s', '0.3333333333333333 s')
    """
    for digits in (4, 8, 12, 15):
        text = format_quantity(value, dimension, digits=digits)
        if parse_quantity(text, dimension) == value:
            return text
    return f"{float(value)!r} {dimension.value}"


_LADDERS: Mapping[Dimension, tuple[str, ...]] = {
    Dimension.TIME: ("d", "h", "s", "ms", "us", "ns"),
    Dimension.PRICE_RATE: ("USD/h",),
}
_NEARLY = 1 - 5e-5  # of a rung: four digits round up to it
_FROM = {"h": 2.75, "d": 2.0}  # of these rungs: below, people read seconds, and hours, as easily


def rung(value: float, dimension: Dimension) -> tuple[str, float]:
    """The unit in which a value is read best, mostly with 1 or more of it; its size in SI units."""
    units = _LADDERS.get(dimension) or [prefix + dimension.value for prefix in reversed(_DECIMAL)]
    ladder = [(unit, _UNITS[dimension][unit]) for unit in units]
    fitting = (row for row in ladder if abs(value) >= row[1] * _FROM.get(row[0], _NEARLY))
    return next(fitting, ladder[-1])
