"""How large a compressed picture says it is, so that nothing larger than promised is ever decoded."""

_JPEG_2000 = b"\xff\x4f\xff\x51"
_NO_LENGTH = {0x01, *range(0xD0, 0xD9)}
# Start-of-frame markers of JPEG (C4, C8 and CC mean other things) and of JPEG-LS (F7).
_START_OF_FRAME = {*range(0xC0, 0xD0), 0xF7} - {0xC4, 0xC8, 0xCC}
_NOT_FOUND = "the compressed picture does not tell its size"


def declared_size(codestream: bytes) -> tuple[int, int]:
    """(rows, columns) in the header of a JPEG, JPEG-LS or JPEG 2000 picture; ValueError when there is none."""
    start = codestream[:4096].find(_JPEG_2000)
    if start >= 0:
        return _jpeg_2000(codestream[start:])
    if codestream[:2] == b"\xff\xd8":
        return _jpeg(codestream)
    raise ValueError(_NOT_FOUND)


def _jpeg_2000(codestream: bytes) -> tuple[int, int]:
    """The extent of the reference grid minus its offset (ISO 15444-1, marker SIZ)."""
    if len(codestream) < 24:
        raise ValueError(_NOT_FOUND)
    right, bottom, left, top = (int.from_bytes(codestream[i : i + 4], "big") for i in (8, 12, 16, 20))
    return bottom - top, right - left


def _jpeg(codestream: bytes) -> tuple[int, int]:
    place = 2
    while place + 9 <= len(codestream) and codestream[place] == 0xFF:
        marker = codestream[place + 1]
        if marker in _START_OF_FRAME:
            rows, columns = codestream[place + 5 : place + 7], codestream[place + 7 : place + 9]
            return int.from_bytes(rows, "big"), int.from_bytes(columns, "big")
        length = 0 if marker in _NO_LENGTH else int.from_bytes(codestream[place + 2 : place + 4], "big")
        place += 2 + length
    raise ValueError(_NOT_FOUND)
