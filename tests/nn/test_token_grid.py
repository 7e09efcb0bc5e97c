"""Grids against small maps drawn by hand, and their random changes against the same changes of dense feature maps."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.map_changes import literal_changes

from smmil.nn.token_grid import (
    EMPTY,
    GREY,
    GridAugmentation,
    GridLayout,
    gathered_positions,
    lattice_positions,
    lattice_step,
    square_side,
    window_index,
)

E = EMPTY


def test_the_step_is_the_smallest_difference_along_an_axis():
    assert lattice_step(torch.tensor([[100, 7], [356, 519], [868, 7]])) == (256.0,)
    assert lattice_step(torch.tensor([[0.5, 0.0], [0.5, 3.0]])) == (3.0,)


def test_scattered_or_single_points_have_no_step():
    assert lattice_step(torch.tensor([[100, 7], [356, 519], [871, 7]])) is None
    assert lattice_step(torch.tensor([[5, 5], [5, 5]])) is None
    assert lattice_step(torch.tensor([[5, 5]])) is None


def test_rows_come_from_y_and_columns_from_x():
    coords = torch.tensor([[1000, 50], [1256, 50], [1000, 562], [1512, 562]])
    assert lattice_positions(coords, (256.0,)).tolist() == [[0, 0], [0, 1], [2, 0], [2, 2]]
    assert lattice_positions(coords, (256.0, 512.0)).tolist() == [[0, 0], [0, 1], [1, 0], [1, 2]]


def test_points_off_the_lattice_take_the_nearest_cell():
    coords = torch.tensor([[0.0, 0.0], [0.4, 0.0], [0.5, 0.0], [1.5, 0.0], [2.5, 0.0]])
    assert lattice_positions(coords, (1.0,))[:, 1].tolist() == [0, 0, 1, 2, 3]


def test_instances_are_gathered_line_by_line():
    assert gathered_positions(5).tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1]]
    assert gathered_positions(1).tolist() == [[0, 0]]
    assert gathered_positions(4).tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]


def test_slices_are_gathered_in_their_own_order():
    assert gathered_positions(4, torch.tensor([[30.0], [-5], [7], [7]])).tolist() == [[1, 1], [0, 0], [0, 1], [1, 0]]
    cloud = torch.tensor([[0, 0, 1], [1, 0, 0], [0, 1, 0], [0, 0, 0]])
    assert gathered_positions(4, cloud).tolist() == [[1, 1], [0, 1], [1, 0], [0, 0]]


def test_positions_are_centred_with_the_odd_cell_behind():
    layout = GridLayout.centred(torch.tensor([[0, 0], [1, 2], [0, 2]]), 5)
    assert layout.cells.tolist() == [
        [E, E, E, E, E],
        [E, 0, E, 1, E],
        [E, E, E, 2, E],
        [E, E, E, E, E],
        [E, E, E, E, E],
    ]
    assert layout.place.tolist() == [0, 2, 1]


def test_what_does_not_fit_is_cropped_on_both_sides():
    rows = torch.stack([torch.arange(5), torch.zeros(5, dtype=torch.long)], 1)
    assert GridLayout.centred(rows, 2).cells.tolist() == [[1, E], [2, E]]
    both = torch.cartesian_prod(torch.arange(6), torch.arange(7))
    assert GridLayout.centred(both, 2).cells.tolist() == [[2 * 7 + 2, 2 * 7 + 3], [3 * 7 + 2, 3 * 7 + 3]]


def test_a_cell_with_two_instances_shows_their_mean():
    layout = GridLayout.centred(torch.tensor([[0, 1], [0, 0], [0, 1]]), 2)
    x = torch.tensor([[1.0, 2], [10, 20], [3, 6]])
    assert layout.place.tolist() == [1, 0, 1]
    assert layout.cell_rows(x).tolist() == [[10, 20], [2, 4], [0, 0], [0, 0]]
    assert layout.instance_values(torch.tensor([0.25])).tolist() == [0.25, 0.25, 0.25]


@pytest.mark.parametrize("side", [4, 5])
def test_a_token_is_read_at_its_four_cells(side):
    positions = torch.cartesian_prod(torch.arange(side), torch.arange(side)).flip(0)
    tokens = torch.arange(float(math.ceil(side / 2) ** 2))
    found = GridLayout.centred(positions, side).instance_values(tokens)
    expected = [tokens[int(r) // 2 * math.ceil(side / 2) + int(c) // 2].item() for r, c in positions]
    assert found.tolist() == expected


def test_instances_that_are_not_shown_read_zero():
    layout = GridLayout.centred(torch.stack([torch.zeros(5, dtype=torch.long), torch.arange(5)], 1), 3)
    assert layout.instance_values(torch.tensor([1.0, 2, 3, 4])).tolist() == [0, 1, 1, 2, 0]


def test_an_instance_in_several_cells_reads_their_mean():
    layout = GridLayout(torch.tensor([[0, 0, 1], [E, E, 0], [GREY, E, 1]]), torch.tensor([0, 1, 2]))
    assert layout.instance_values(torch.tensor([1.0, 2, 3, 6])).tolist() == pytest.approx([4 / 3, 4, 0])


def full_layout(side, seed=0):
    g = torch.Generator().manual_seed(seed)
    positions = torch.rand(side, side, generator=g).lt(0.6).nonzero()
    return GridLayout.centred(torch.cat([positions, torch.tensor([[0, 0], [side - 1, side - 1]])]), side)


def shown(layout, x):
    return layout.cell_rows(x)[layout.cells].numpy()


CHANGES = [
    GridAugmentation(),
    GridAugmentation(mirror=True),
    GridAugmentation(flip=True),
    GridAugmentation(turns=1),
    GridAugmentation(turns=2, mirror=True),
    GridAugmentation(zoom=13),
    GridAugmentation(zoom=19, corner=(1, 2)),
    GridAugmentation(zoom=16, corner=(0, 0)),
    GridAugmentation(cut=(3, 5)),
    GridAugmentation(cut=(-1, 4), turns=3),
    GridAugmentation(True, True, 15, (0, 0), (6, -1), 3),
    GridAugmentation(False, True, 18, (1, 0), (7, 7), 1),
]


@pytest.mark.parametrize("changes", CHANGES)
def test_changes_of_a_grid_are_those_of_the_feature_map(changes):
    layout = full_layout(16)
    x = torch.randn(len(layout.place), 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 1
    truth = literal_changes(shown(layout, x), changes)
    assert np.allclose(shown(layout.augmented(changes), x), truth, atol=1e-12)


def test_a_turn_moves_an_instance_where_its_score_is_read():
    layout = GridLayout.centred(torch.tensor([[0, 0], [3, 3], [0, 3]]), 4)
    tokens = torch.tensor([1.0, 2, 3, 4])
    assert layout.instance_values(tokens).tolist() == [1, 4, 2]
    assert layout.augmented(GridAugmentation(turns=1)).instance_values(tokens).tolist() == [3, 2, 1]


def test_draws_cover_their_range_and_follow_the_seed():
    torch.manual_seed(0)
    draws = [GridAugmentation.draw(48) for _ in range(2000)]
    zooms, cuts = ([getattr(d, name) for d in draws if getattr(d, name) is not None] for name in ("zoom", "cut"))
    assert (min(zooms), max(zooms)) == (38, 56)
    assert {(min(c[i] for c in cuts), max(c[i] for c in cuts)) for i in (0, 1)} == {(-3, 41)}
    assert {d.turns for d in draws} == {0, 1, 2, 3}
    for share in (
        *(np.mean([getattr(d, n) for d in draws]) for n in ("mirror", "flip")),
        len(zooms) / 2000,
        len(cuts) / 2000,
    ):
        assert share == pytest.approx(0.5, abs=0.05)
    for d in draws:
        assert all(0 <= c < max(1, (d.zoom or 0) - 48) or d.zoom is None for c in d.corner)
    torch.manual_seed(0)
    assert [GridAugmentation.draw(48) for _ in range(5)] == draws[:5]


@pytest.mark.parametrize("side", [1, 2, 3, 7, 8, 9])
def test_small_grids_survive_any_change(side):
    torch.manual_seed(side)
    layout = full_layout(side)
    for _ in range(50):
        changes = GridAugmentation.draw(side)
        assert layout.augmented(changes).cells.shape == (side, side)
        assert layout.augmented(replace(changes, cut=None)).shares is None


def holey_cells(side, seed=0, share=0.3):
    """A map with numbered cells in the upper left quarter, most of it empty."""
    g = torch.Generator().manual_seed(seed)
    cells = torch.full((side, side), EMPTY)
    spots = (torch.rand(side, side, generator=g) < share).nonzero()
    spots = spots[(spots < side / 2).all(1)]
    cells[spots[:, 0], spots[:, 1]] = torch.randperm(len(spots), generator=g)
    return cells, len(spots)


def dense(cells, rows):
    """(channels, side, side), zeros in empty cells."""
    return torch.where(cells[..., None] == EMPTY, 0, rows[cells]).permute(2, 0, 1)


@pytest.mark.parametrize(("kernel", "stride"), [(5, 2), (3, 1), (7, 1)])
@pytest.mark.parametrize("side", [1, 2, 5, 8])
def test_windows_are_those_of_unfold(side, kernel, stride):
    cells, count = holey_cells(side, share=0.9)
    rows = torch.randn(count + 1, 4, dtype=torch.float64)
    rows[-1] = 0
    ours = rows[window_index(cells, kernel, stride)].transpose(1, 2).flatten(1)
    truth = torch.nn.functional.unfold(dense(cells, rows)[None], kernel, stride=stride, padding=kernel // 2)[0].T
    assert torch.equal(ours, truth)
    assert len(ours) == math.ceil(side / stride) ** 2


def test_the_square_is_the_smallest_that_holds_all():
    assert [square_side(n) for n in (1, 2, 4, 5, 9, 10, 60_000)] == [1, 2, 2, 3, 3, 4, 245]
