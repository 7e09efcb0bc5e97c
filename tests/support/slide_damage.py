"""Damage to one tile of a slide."""

import tifffile


def spoil_tile(path, column: int, row: int, page: int = 0) -> None:
    """Overwrite the compressed bytes of one tile."""
    with tifffile.TiffFile(path) as file:
        level = file.pages[page]
        index = row * -(-level.imagewidth // level.tilewidth) + column
        offset, count = level.dataoffsets[index], level.databytecounts[index]
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"\0" * count)
