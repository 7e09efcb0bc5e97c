import re
from pathlib import Path

import numpy as np
import pytest
from support.ct_makers import series, voxels

from smmil.errors import ConfigError
from smmil.images.volume import PRESETS, RSNA, open_volume, parse_window, triplet, triplets, window, window_channels


def test_a_window_is_a_ramp_between_its_ends():
    hu = np.array([-1000, 0, 20, 40, 60, 80, 1000])
    shades = window(hu, 40, 80)
    assert shades.tolist() == [0, 0, 0.25, 0.5, 0.75, 1, 1]
    assert shades.dtype == np.float32


def test_the_three_rsna_windows_by_hand():
    assert [PRESETS[name] for name in RSNA] == [(40, 80), (80, 200), (30, 30)]
    channels = window_channels(np.array([[-20, 30], [45, 180]], dtype=np.float32))
    assert channels.shape == (3, 2, 2)
    expected = [[0, 0.375, 0.5625, 1], [0, 0.25, 0.325, 1], [0, 0.5, 1, 1]]
    assert np.allclose(channels.reshape(3, 4), expected, atol=1e-6)


def test_windows_come_by_name_by_text_or_as_pairs():
    assert parse_window("lung") == (-600, 1500)
    assert parse_window("-600/1500") == parse_window((-600, 1500)) == (-600.0, 1500.0)
    hu = np.linspace(-1000, 1000, 50)
    assert np.array_equal(window_channels(hu, ["brain"]), window_channels(hu, [(40, 80)]))


@pytest.mark.parametrize("wrong", ["brian", "40", "40/80/1", "40/0", "40/-3", "nan/80", (40, 0), (float("inf"), 80)])
def test_senseless_windows_are_refused(wrong):
    with pytest.raises(ConfigError, match="window"):
        parse_window(wrong)


def test_a_misspelt_window_gets_a_suggestion_and_a_word_is_no_list():
    with pytest.raises(ConfigError, match="did you mean brain"):
        parse_window("brian")
    for wrong in ("brain", []):
        with pytest.raises(ConfigError, match="expected a list"):
            window_channels(np.zeros(3), wrong)
    with pytest.raises(ConfigError, match="positive"):
        window(np.zeros(3), 40, 0)


def test_a_triplet_is_the_slice_and_its_neighbours_and_repeats_at_the_ends(tmp_path):
    hu, _ = series(tmp_path)
    volume = open_volume(tmp_path)
    assert np.array_equal(triplet(volume, 2), hu[1:4])
    assert np.array_equal(triplet(volume, 0), hu[[0, 0, 1]])
    assert np.array_equal(triplet(volume, 5), hu[[4, 5, 5]])


@pytest.mark.parametrize("n", [1, 2, 6])
def test_all_triplets_in_turn_read_each_slice_once(tmp_path, n):
    series(tmp_path, voxels(n))
    volume = open_volume(tmp_path)
    asked = []
    counting = type(volume)(**{**vars(volume), "source": lambda i: asked.append(i) or volume.slice_hu(i)})
    found = list(triplets(counting))
    assert asked == list(range(n))
    assert all(np.array_equal(found[i], triplet(volume, i)) for i in range(n))


def test_the_examples_of_the_page_on_ct_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[2] / "docs" / "ct.md"
    examples = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert examples
    for example in examples:
        exec(compile(example, str(page), "exec"), {})
