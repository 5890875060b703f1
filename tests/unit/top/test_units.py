"""Quantities: what is read, what is refused and why, and that printing and reading agree."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsim.errors import MpsimError, UnitError
from mpsim.units import Dimension, format_exact, format_quantity, parse_quantity, units_of

DIMENSIONS = st.sampled_from(list(Dimension))
VALUES = st.floats(min_value=1e-12, max_value=1e20)


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("2.5 us", Dimension.TIME, 2.5e-6),
        ("2.5 µs", Dimension.TIME, 2.5e-6),
        ("10ms", Dimension.TIME, 0.01),
        ("1 d", Dimension.TIME, 86400.0),
        ("80 GiB", Dimension.BYTES, 80 * 2**30),
        ("80 GB", Dimension.BYTES, 80e9),
        ("80 Gb", Dimension.BYTES, 10e9),
        ("80 Gbit", Dimension.BYTES, 10e9),
        ("400 Gb/s", Dimension.BANDWIDTH, 50e9),
        ("400Gbps", Dimension.BANDWIDTH, 50e9),
        ("400 Gbit/s", Dimension.BANDWIDTH, 50e9),
        ("400 GB/s", Dimension.BANDWIDTH, 400e9),
        ("1 Kib/s", Dimension.BANDWIDTH, 128.0),
        ("989 TFLOP/s", Dimension.FLOP_RATE, 989e12),
        ("1979 TOP/s", Dimension.FLOP_RATE, 1979e12),
        ("3.5 PFLOP", Dimension.FLOP, 3.5e15),
        ("10.2 kW", Dimension.POWER, 10200.0),
        ("3 kWh", Dimension.ENERGY, 10.8e6),
        ("6.88 USD/h", Dimension.PRICE_RATE, 6.88),
        ("1_000 GB", Dimension.BYTES, 1e12),
        ("  1.5e3   B ", Dimension.BYTES, 1500.0),
        (".5 s", Dimension.TIME, 0.5),
        ("+2 s", Dimension.TIME, 2.0),
        ("0", Dimension.TIME, 0.0),
        (0, Dimension.BYTES, 0.0),
        (0.0, Dimension.BYTES, 0.0),
    ],
)
def test_quantity_is_read_as_si(text, dimension, value):
    """Each form gives the SI float nearest to what is written."""
    assert parse_quantity(text, dimension) == value


@pytest.mark.parametrize(
    ("text", "dimension", "why"),
    [
        (400, Dimension.BANDWIDTH, "no unit"),
        (2.5, Dimension.TIME, "no unit"),
        ("400", Dimension.BANDWIDTH, "no unit"),
        (True, Dimension.BYTES, "no unit"),
        (False, Dimension.BYTES, "no unit"),
        (None, Dimension.BYTES, "no unit"),
        ([1, "GB"], Dimension.BYTES, "no unit"),
        ("fast", Dimension.BANDWIDTH, "not a number with a unit"),
        ("", Dimension.BANDWIDTH, "not a number with a unit"),
        ("nan GB", Dimension.BYTES, "not a number with a unit"),
        ("inf s", Dimension.TIME, "not a number with a unit"),
        ("0x10 s", Dimension.TIME, "unknown unit"),
        ("٤ s", Dimension.TIME, "not a number with a unit"),
        ("-1 GB", Dimension.BYTES, "negative"),
        ("-0 s", Dimension.TIME, "negative"),
        ("1e400 s", Dimension.TIME, "too large"),
        ("1e999999999999999999999 s", Dimension.TIME, "too large"),
        ("400 GBps", Dimension.BANDWIDTH, "write 'Gb/s' for bits or 'GB/s' for bytes"),
        ("400 gbps", Dimension.BANDWIDTH, "write 'Gb/s' for bits or 'GB/s' for bytes"),
        ("400 Gbitps", Dimension.BANDWIDTH, "is ambiguous"),
        ("400 Gibps", Dimension.BANDWIDTH, "write 'Gib/s' for bits or 'GiB/s' for bytes"),
        ("80 GB", Dimension.BANDWIDTH, "'GB' measures bytes"),
        ("80 GB/s", Dimension.BYTES, "'GB/s' measures bandwidth"),
        ("3 s", Dimension.POWER, "'s' measures time"),
        ("80 gb", Dimension.BYTES, "capitals matter: write 'GB' or 'Gb'"),
        ("3 US", Dimension.TIME, "capitals matter: write 'us'"),
        ("312 TFLOPS", Dimension.FLOP_RATE, "write 'TFLOP/s'"),
        ("312 TFLOP", Dimension.FLOP_RATE, "write 'TFLOP/s'"),
        ("312 TFLOP/s", Dimension.FLOP, "write 'TFLOP'"),
        ("3 parsecs", Dimension.BYTES, "unknown unit 'parsecs'"),
        ("2027-03-01", Dimension.TIME, "a date; count the time from the start"),
        ("2027-03-01", Dimension.BYTES, "unknown unit"),
        ("3 GB extra", Dimension.BYTES, "unknown unit 'GB extra'"),
        ("1 2 GB", Dimension.BYTES, "unknown unit"),
    ],
)
def test_quantity_is_refused_with_the_reason(text, dimension, why):
    """Bare, foreign, ambiguous, negative and infinite quantities are refused, and the message mends."""
    with pytest.raises(UnitError) as caught:
        parse_quantity(text, dimension)
    assert why in str(caught.value)
    assert "needed a quantity such as" in str(caught.value)


def test_unit_errors_are_value_errors_of_mpsim():
    """Callers may catch either."""
    assert issubclass(UnitError, MpsimError)
    assert issubclass(UnitError, ValueError)


def test_refusal_of_a_long_text_is_short():
    """A million characters are not printed."""
    with pytest.raises(UnitError) as caught:
        parse_quantity("1 " + "x" * 1_000_000, Dimension.TIME)
    assert len(str(caught.value)) < 300


@given(VALUES, DIMENSIONS)
def test_exact_format_reads_back_as_the_same_float(value, dimension):
    """format_exact and parse_quantity are inverse to the last bit."""
    assert parse_quantity(format_exact(value, dimension), dimension) == value


@given(VALUES, DIMENSIONS, st.integers(min_value=3, max_value=12))
def test_format_reads_back_within_its_digits(value, dimension, digits):
    """What is printed differs from the value by half a unit of the last digit at most."""
    text = format_quantity(value, dimension, digits=digits)
    assert math.isclose(parse_quantity(text, dimension), value, rel_tol=0.51 * 10.0 ** (1 - digits))


@given(st.floats(min_value=1e-6, max_value=1e6), st.sampled_from(["", "k", "M", "G", "T"]))
def test_a_byte_is_eight_bits(number, prefix):
    """Bits and bytes of one prefix differ by eight, in amounts and in rates."""
    for suffix, dimension in (("", Dimension.BYTES), ("/s", Dimension.BANDWIDTH)):
        size = parse_quantity(f"{number!r} {prefix}B{suffix}", dimension)
        bits = parse_quantity(f"{number!r} {prefix}b{suffix}", dimension)
        assert math.isclose(size, 8 * bits, rel_tol=1e-15)


@given(st.text(max_size=20))
def test_any_text_is_a_quantity_or_a_unit_error(text):
    """No text raises anything else, and what is accepted is finite and not negative."""
    for dimension in Dimension:
        try:
            value = parse_quantity(text, dimension)
        except UnitError:
            continue
        assert math.isfinite(value)
        assert value >= 0


def test_no_unit_belongs_to_two_dimensions():
    """A unit says what it measures, so the wrong dimension can always be told."""
    units = [unit for dimension in Dimension for unit in units_of(dimension)]
    assert len(units) == len(set(units))


@pytest.mark.parametrize("dimension", Dimension)
def test_the_dimension_is_called_by_its_si_unit(dimension):
    """One of the unit that names a dimension is 1.0 inside."""
    assert parse_quantity(f"1 {dimension.value}", dimension) == 1.0


@pytest.mark.parametrize(
    ("value", "dimension", "text"),
    [
        (0.0, Dimension.TIME, "0 s"),
        (1.0, Dimension.TIME, "1 s"),
        (0.99999, Dimension.TIME, "1 s"),
        (0.999, Dimension.TIME, "999 ms"),
        (1e-13, Dimension.TIME, "0.0001 ns"),
        (9000.0, Dimension.TIME, "9000 s"),
        (43180.0, Dimension.TIME, "11.99 h"),
        (30 * 86400.0, Dimension.TIME, "30 d"),
        (80e9, Dimension.BYTES, "80 GB"),
        (3e9, Dimension.POWER, "3 GW"),
        (math.inf, Dimension.TIME, "inf s"),
    ],
)
def test_quantities_are_printed_as_a_person_would(value, dimension, text):
    """The unit is the largest that leaves a number of 1 or more; hours and days begin where seconds have five digits, and hours are two days."""
    assert format_quantity(value, dimension) == text
