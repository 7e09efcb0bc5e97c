"""Slides put together from patch files."""

import pytest

from smmil.errors import DataError
from smmil.images import MosaicSlide


@pytest.mark.parametrize("name", ["absent.png", "9" * 5000])
def test_a_patch_that_is_not_there_is_named_however_long_its_name_is(tmp_path, name):
    table = tmp_path / "s.patches.csv"
    table.write_text(f"path,x,y\n{name},0,0\n")
    with pytest.raises(DataError, match=f"s.patches.csv: .*{name[:20]}.* is not there") as refused:
        MosaicSlide(table)
    assert len(str(refused.value)) < 700
