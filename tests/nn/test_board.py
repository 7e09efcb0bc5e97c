"""Boards against small maps drawn by hand, and their random changes against the same changes of dense feature maps."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from map_changes import literal_changes

from smmil.nn.board import (
    GREY,
    Board,
    board_side,
    gathered_spots,
    lattice_spots,
    lattice_step,
    lay_out,
    place_rows,
    read_out,
)
from smmil.nn.shuffle_board import Changes, changed, draw_changes
from smmil.nn.windows import EMPTY

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
    assert lattice_spots(coords, (256.0,)).tolist() == [[0, 0], [0, 1], [2, 0], [2, 2]]
    assert lattice_spots(coords, (256.0, 512.0)).tolist() == [[0, 0], [0, 1], [1, 0], [1, 2]]


def test_points_off_the_lattice_take_the_nearest_cell():
    coords = torch.tensor([[0.0, 0.0], [0.4, 0.0], [0.5, 0.0], [1.5, 0.0], [2.5, 0.0]])
    assert lattice_spots(coords, (1.0,))[:, 1].tolist() == [0, 0, 1, 2, 3]


def test_instances_are_gathered_line_by_line():
    assert gathered_spots(5).tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1]]
    assert gathered_spots(1).tolist() == [[0, 0]]
    assert gathered_spots(4).tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]


def test_slices_are_gathered_in_their_own_order():
    assert gathered_spots(4, torch.tensor([[30.0], [-5], [7], [7]])).tolist() == [[1, 1], [0, 0], [0, 1], [1, 0]]
    cloud = torch.tensor([[0, 0, 1], [1, 0, 0], [0, 1, 0], [0, 0, 0]])
    assert gathered_spots(4, cloud).tolist() == [[1, 1], [0, 1], [1, 0], [0, 0]]


def test_the_board_grows_to_the_bounding_square():
    spots = torch.tensor([[0, 0], [3, 9]])
    assert (board_side(spots, 4), board_side(spots, 10), board_side(spots, 48)) == (10, 10, 48)


def test_spots_are_centred_with_the_odd_cell_behind():
    board = lay_out(torch.tensor([[0, 0], [1, 2], [0, 2]]), 5)
    assert board.cells.tolist() == [
        [E, E, E, E, E],
        [E, 0, E, 1, E],
        [E, E, E, 2, E],
        [E, E, E, E, E],
        [E, E, E, E, E],
    ]
    assert board.place.tolist() == [0, 2, 1]


def test_what_does_not_fit_is_cropped_on_both_sides():
    rows = torch.stack([torch.arange(5), torch.zeros(5, dtype=torch.long)], 1)
    assert lay_out(rows, 2).cells.tolist() == [[1, E], [2, E]]
    both = torch.cartesian_prod(torch.arange(6), torch.arange(7))
    assert lay_out(both, 2).cells.tolist() == [[2 * 7 + 2, 2 * 7 + 3], [3 * 7 + 2, 3 * 7 + 3]]


def test_a_cell_with_two_instances_shows_their_mean():
    board = lay_out(torch.tensor([[0, 1], [0, 0], [0, 1]]), 2)
    x = torch.tensor([[1.0, 2], [10, 20], [3, 6]])
    assert board.place.tolist() == [1, 0, 1]
    assert place_rows(x, board).tolist() == [[10, 20], [2, 4], [0, 0], [0, 0]]
    assert read_out(torch.tensor([0.25]), board).tolist() == [0.25, 0.25, 0.25]


@pytest.mark.parametrize("side", [4, 5])
def test_a_token_is_read_at_its_four_cells(side):
    spots = torch.cartesian_prod(torch.arange(side), torch.arange(side)).flip(0)
    tokens = torch.arange(float(math.ceil(side / 2) ** 2))
    found = read_out(tokens, lay_out(spots, side))
    expected = [tokens[int(r) // 2 * math.ceil(side / 2) + int(c) // 2].item() for r, c in spots]
    assert found.tolist() == expected


def test_instances_that_are_not_shown_read_zero():
    board = lay_out(torch.stack([torch.zeros(5, dtype=torch.long), torch.arange(5)], 1), 3)
    assert read_out(torch.tensor([1.0, 2, 3, 4]), board).tolist() == [0, 1, 1, 2, 0]


def test_an_instance_in_several_cells_reads_their_mean():
    board = Board(torch.tensor([[0, 0, 1], [E, E, 0], [GREY, E, 1]]), torch.tensor([0, 1, 2]))
    assert read_out(torch.tensor([1.0, 2, 3, 6]), board).tolist() == pytest.approx([4 / 3, 4, 0])


def full_board(side, seed=0):
    g = torch.Generator().manual_seed(seed)
    spots = torch.rand(side, side, generator=g).lt(0.6).nonzero()
    return lay_out(torch.cat([spots, torch.tensor([[0, 0], [side - 1, side - 1]])]), side)


def shown(board, x):
    return place_rows(x, board)[board.cells].numpy()


CHANGES = [
    Changes(),
    Changes(mirror=True),
    Changes(flip=True),
    Changes(turns=1),
    Changes(turns=2, mirror=True),
    Changes(zoom=13),
    Changes(zoom=19, corner=(1, 2)),
    Changes(zoom=16, corner=(0, 0)),
    Changes(cut=(3, 5)),
    Changes(cut=(-1, 4), turns=3),
    Changes(True, True, 15, (0, 0), (6, -1), 3),
    Changes(False, True, 18, (1, 0), (7, 7), 1),
]


@pytest.mark.parametrize("changes", CHANGES)
def test_changes_of_a_board_are_those_of_the_feature_map(changes):
    board = full_board(16)
    x = torch.randn(len(board.place), 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 1
    truth = literal_changes(shown(board, x), changes)
    assert np.allclose(shown(changed(board, changes), x), truth, atol=1e-12)


def test_a_turn_moves_an_instance_where_its_score_is_read():
    board = lay_out(torch.tensor([[0, 0], [3, 3], [0, 3]]), 4)
    tokens = torch.tensor([1.0, 2, 3, 4])
    assert read_out(tokens, board).tolist() == [1, 4, 2]
    assert read_out(tokens, changed(board, Changes(turns=1))).tolist() == [3, 2, 1]


def test_draws_cover_their_range_and_follow_the_seed():
    torch.manual_seed(0)
    draws = [draw_changes(48) for _ in range(2000)]
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
    assert [draw_changes(48) for _ in range(5)] == draws[:5]


@pytest.mark.parametrize("side", [1, 2, 3, 7, 8, 9])
def test_small_boards_survive_any_change(side):
    torch.manual_seed(side)
    board = full_board(side)
    for _ in range(50):
        changes = draw_changes(side)
        assert changed(board, changes).cells.shape == (side, side)
        assert changed(board, replace(changes, cut=None)).shares is None
