"""The palette: one colour per kind of event, told apart by every eye."""

import itertools
import subprocess
import sys

import numpy as np
import pytest

from mpsim.plot.palette import EVENTS, MEMORY, RESOURCES, event_of_part, rgb, shades
from mpsim.training.vocabulary import PARTS

# Machado, Oliveira and Fernandes, A Physiologically-based Model for Simulation of Color Vision
# Deficiency, 2009, matrices for severity 1.0, on linear RGB.
EYES = {
    "trichromat": np.eye(3),
    "deuteranope": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "protanope": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
}
XYZ_OF_RGB = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)
WHITE = np.array([0.95047, 1.0, 1.08883])


def _lab(colour: str, eye: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of a colour as the eye sees it."""
    given = rgb(colour)
    linear = np.where(given <= 0.04045, given / 12.92, ((given + 0.055) / 1.055) ** 2.4)
    xyz = XYZ_OF_RGB @ np.clip(eye @ linear, 0, 1) / WHITE
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("eye", EYES)
@pytest.mark.parametrize(
    "palette", [EVENTS, MEMORY, RESOURCES], ids=["events", "memory", "resources"]
)
def test_any_two_colours_stay_apart(palette: dict[str, str], eye: str) -> None:
    """A CIE 1976 difference of 15 is some six just noticeable ones."""
    for one, other in itertools.combinations(palette, 2):
        apart = np.linalg.norm(_lab(palette[one], EYES[eye]) - _lab(palette[other], EYES[eye]))
        assert apart > 15, (one, other, apart)


def test_every_part_of_the_step_has_a_colour() -> None:
    """Parts are drawn as the kind of event they are named for."""
    assert [event_of_part(part) for part in PARTS] == [
        *("forward", "backward", "weight_gradient", "recompute", "tp", "cp", "ep", "pp", "dp"),
        *("bubble", "straggling", "optimizer", "host", "other"),
    ]


def test_later_chunks_are_lighter() -> None:
    """The first chunk has the colour itself, each later one a lighter shade."""
    assert np.array_equal(shades("#0072B2", 1), [rgb("#0072B2")])
    light = shades("#0072B2", 4)
    assert np.array_equal(light[0], rgb("#0072B2"))
    assert (np.diff(light, axis=0) > 0).all()
    assert light.max() <= 1


def test_importing_the_displays_does_not_import_matplotlib() -> None:
    """Only drawing pays for matplotlib, and nothing ever imports pyplot."""
    code = (
        "import sys, mpsim.plot; assert 'matplotlib' not in sys.modules;"
        "mpsim.plot.answer_chart(['pp 0'], {'': [0.5]}, ylabel='', answer='').plot();"
        "assert 'matplotlib' in sys.modules; assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
