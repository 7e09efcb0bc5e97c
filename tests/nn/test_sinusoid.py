import math

import torch

from smmil.nn.sinusoid import sinusoids


def test_even_channels_are_sines_and_odd_ones_the_cosines_beside_them():
    table = sinusoids(5, 6)
    for p in range(5):
        for pair, speed in enumerate((1, 10000 ** (-1 / 3), 10000 ** (-2 / 3))):
            assert math.isclose(table[p, 2 * pair], math.sin(p * speed), abs_tol=1e-14)
            assert math.isclose(table[p, 2 * pair + 1], math.cos(p * speed), abs_tol=1e-14)


def test_positions_do_not_depend_on_how_many_follow():
    assert torch.equal(sinusoids(10, 8)[:4], sinusoids(4, 8))
