"""A CT or MR volume from the files of a DICOM series, sorted by where the slices lie, never by name or number.

A slice is a file, or a frame of a multi-frame (enhanced) file. Frames that lie in the same place (echoes, times …) are
divided into series of their own.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from smmil.errors import DataError
from smmil.files import digest
from smmil.images.dicom_file import (
    _PARTS,
    _frame_tags,
    _is_multi_frame,
    _numbers,
    _slice_header,
    _SliceHeader,
    dicom_errors,
    is_dicom,
    kind_of,
    read_tags,
)
from smmil.images.dicom_pixels import _read_hu
from smmil.images.volume import Turn, Volume, _doubles, _slice_normal, _Stack, _stack, _turned

# Files with these endings claim to be DICOM; any other file without the mark of DICOM is passed over.
_CLAIMS = ("", ".dcm", ".dicom", ".ima", ".img")
_ALIKE = 1e-3
_MODALITIES = ("CT", "MR")
_MOST, _DESCRIBED = "most-slices", "description:"


@dataclass(frozen=True)
class Series:
    """Slices of one CT or MR series; `key` stands for its UID, which may hold a date and so is not shown.

    files, tags  one per slice: a file with many frames is there as often
    parts        which of the echoes, times … of a multi-frame file, as words with numbers from 1
    """

    key: str
    files: tuple[Path, ...]
    tags: tuple[dict[str, Any], ...] = field(repr=False)
    uid: str = field(repr=False)
    parts: tuple[tuple[str, int], ...] = ()

    @property
    def modality(self) -> str:
        return kind_of(self.tags[0])

    @property
    def is_localizer(self) -> bool:
        return any("LOCALIZER" in f"{t.get('ImageType', '')}{t.get('FrameType', '')}" for t in self.tags)

    def describe(self) -> str:
        sizes = Counter(f"{t.get('Rows', '?')} x {t.get('Columns', '?')}" for t in self.tags)
        scout = ", MR" * (self.modality == "MR") + ", localizer" * self.is_localizer
        scout += "".join(f", {part} {number}" for part, number in self.parts)
        plural = "" if len(self.files) == 1 else "s"
        return f"{self.key} ({len(self.files)} slice{plural} of {sizes.most_common(1)[0][0]}{scout})"


@dataclass(frozen=True)
class DicomSlices:
    """Reads slice by slice from the files, turned as the volume is shown."""

    headers: tuple[_SliceHeader, ...]
    turn: Turn

    def __call__(self, index: int) -> np.ndarray:
        return np.ascontiguousarray(self.turn.show(_read_hu(self.headers[index])))

    @property
    def corners_mm(self) -> np.ndarray:
        """(slices, 3) where the first pixel of every slice lies as it is shown, LPS."""
        turn, first = self.turn, self.headers[0]
        flipped = (turn.flip_rows, turn.flip_columns) if turn.swap else (turn.flip_columns, turn.flip_rows)
        pixels = np.array([first.columns - 1, first.rows - 1]) * flipped * first.pixel_mm
        return np.stack([h.position + pixels @ h.orientation for h in self.headers])


def find_series(path: str | Path | Sequence[str | Path]) -> tuple[list[Series], tuple[str, ...]]:
    """All CT and MR series below a folder (or among the given files), largest first, and what was passed over."""
    files, where = _files(path)
    groups: dict[str, list[tuple[Path, dict[str, Any]]]] = {}
    others: Counter[str] = Counter()
    for file in files:
        if not is_dicom(file):
            if file.suffix.lower() in _CLAIMS:
                raise DataError(f"{file}: not a DICOM file (the mark DICM is missing); copy it again or move it out")
            others["not DICOM"] += 1
        elif (kind := kind_of(tags := read_tags(file))) not in _MODALITIES:
            others[kind] += 1
        elif not tags.get("SeriesInstanceUID"):
            raise DataError(f"{file}: SeriesInstanceUID is missing; export the series again with full headers")
        else:
            slices = _frame_tags(file, tags) if _is_multi_frame(tags) else [tags]
            groups.setdefault(str(tags["SeriesInstanceUID"]), []).extend((file, each) for each in slices)
    passed_over = ", ".join(f"{count} {kind}" for kind, count in sorted(others.items()))
    if not groups:
        raise DataError(
            f"{where}: no CT or MR slices found among {len(files)} file(s) ({passed_over or 'nothing else either'})"
        )
    found = [
        Series(
            digest(uid, *(f"{part} {number}" for part, number in parts))[:8],
            tuple(file for file, _ in group),
            tuple(tags for _, tags in group),
            uid,
            parts,
        )
        for uid, everything in groups.items()
        for parts, group in _divided(everything).items()
    ]
    notes = (f"other files passed over: {passed_over}",) if others else ()
    return sorted(found, key=lambda s: (-len(s.files), s.key)), notes


_Slices = list[tuple[Path, dict[str, Any]]]
_Parts = tuple[tuple[str, int], ...]


def _divided(slices: _Slices) -> dict[_Parts, _Slices]:
    """The slices by echo, time …: the fewest parts in which no two frames lie in the same place; else all together."""
    if not any("frame" in tags for _, tags in slices) or _lie_apart(slices):
        return {(): slices}
    numbers = {word: _numbered([str(tags.get(name, "")) for _, tags in slices]) for word, name in _PARTS.items()}
    differing = [word for word, ranks in numbers.items() if max(ranks) > 1]
    best: dict[_Parts, _Slices] = {(): slices}
    for chosen in (words for count in range(len(differing)) for words in combinations(differing, count + 1)):
        parts: dict[_Parts, _Slices] = {}
        for index, one in enumerate(slices):
            parts.setdefault(tuple((word, numbers[word][index]) for word in chosen), []).append(one)
        if (len(best) == 1 or len(parts) < len(best)) and all(map(_lie_apart, parts.values())):
            best = parts
    return best


def _lie_apart(slices: _Slices) -> bool:
    """Whether the slices have one orientation and no two the same place."""
    places, directions = set(), set()
    for file, tags in slices:
        with dicom_errors(file):
            places.add(tuple(np.round(_numbers(tags, "ImagePositionPatient", 3), 2).tolist()))
            directions.add(tuple(np.round(_numbers(tags, "ImageOrientationPatient", 6), 2).tolist()))
    return len(places) == len(slices) and len(directions) == 1


def _numbered(values: list[str]) -> list[int]:
    """The place of each value among those that differ, from 1: numbers by size, else words by their letters."""

    def size(text: str) -> tuple[bool, float, str]:
        try:
            return False, float(text), text
        except ValueError:
            return True, 0.0, text

    order = {value: number for number, value in enumerate(sorted(set(values), key=size), 1)}
    return [order[value] for value in values]


def _files(path: str | Path | Sequence[str | Path]) -> tuple[list[Path], str]:
    if not isinstance(path, (str, Path)):
        files = sorted(map(Path, path))
        return files, f"{len(files)} given file(s)" + (f", such as {files[0]}" if files else "")
    path = Path(path)
    if path.is_file():
        return [path], str(path)
    inside = (f for f in path.rglob("*") if not any(part.startswith(".") for part in f.relative_to(path).parts))
    return sorted(f for f in inside if not f.is_dir()), str(path)


def _open_series(
    path: str | Path | Sequence[str | Path],
    *,
    series: str | None = None,
    strict: bool = False,
    among_several: str | None = None,
) -> Volume:
    """The volume of one CT or MR series; see `smmil.images.volume.open_volume`."""
    name = Path(path).name if isinstance(path, (str, Path)) else f"{len(path)} files"
    found, notes = find_series(path)
    where = path if isinstance(path, (str, Path)) else name
    chosen = _choose(found, series or (among_several if len(found) > 1 else None), where)
    headers = [_slice_header(file, tags) for file, tags in zip(chosen.files, chosen.tags, strict=True)]
    _refuse_mixtures(headers)
    # Directions may differ in the last digit from slice to slice; take those of a slice that no file name decides on.
    typical = min(headers, key=lambda h: tuple(h.position))
    positions = np.stack([h.position for h in headers])
    pile = _stack(positions, typical.orientation, typical.pixel_mm, typical.thickness_mm or 1.0)
    if strict and pile.uneven:
        raise DataError(f"{chosen.files[0].parent}: {'; '.join(pile.uneven)}; find the missing slices, or allow them")
    others = f"{len(found) - 1} other series passed over" if len(found) > 1 else ""
    remarks = (*notes, *([others] if others else []), *_remarks(headers, pile))
    volume = _volume(name, headers, pile, remarks)
    return replace(volume, values="HU" if chosen.modality == "CT" else chosen.modality, series=chosen.key)


def _choose(found: list[Series], wanted: str | None, where: Any) -> Series:
    listed = ", ".join(series.describe() for series in found[:12])
    if wanted is None:
        ct = [series for series in found if series.modality == "CT"]
        if len(ct) == 1:
            return ct[0]  # MR beside the only CT series is passed over, as any other kind of file
        if len(found) > 1:
            ways = f"--series {_MOST}, --series {_DESCRIBED}axial, or series={found[0].key!r} (also as a column series)"
            raise DataError(f"{where}: {len(found)} series: {listed}; choose one, for example {ways}")
        return found[0]
    chosen = _matching(found, wanted)
    if not chosen:
        rules = f"a key, a SeriesInstanceUID, {_MOST}, {_DESCRIBED} and part of the description, or such as echo:1"
        raise DataError(f"{where}: the series asked for is not here; there are {listed}; expected {rules}")
    if len(chosen) > 1:
        several = ", ".join(series.describe() for series in chosen[:12])
        raise DataError(f"{where}: {len(chosen)} series fit what was asked for: {several}; choose one by its key")
    return chosen[0]


def _matching(found: list[Series], wanted: str) -> list[Series]:
    """The series that a rule means; more than one where it does not decide."""
    if wanted == _MOST:
        scans = [series for series in found if not series.is_localizer] or found
        most = max(len(series.files) for series in scans)
        return [series for series in scans if len(series.files) == most]
    if wanted.startswith(_DESCRIBED):
        part = wanted.removeprefix(_DESCRIBED).strip().lower()
        return [s for s in found if part and part in str(s.tags[0].get("SeriesDescription", "")).lower()]
    parts = {tuple(rule.split(":")) for rule in wanted.replace(" ", "").split(",")}
    return [series for series in found if wanted in (series.key, series.uid) or parts <= _words(series)]


def _words(series: Series) -> set[tuple[str, ...]]:
    return {(word, str(number)) for word, number in series.parts}


def _refuse_mixtures(headers: Sequence[_SliceHeader]) -> None:
    """One size, one orientation, one spacing, and no two slices in the same place."""
    _refuse_odd(headers, lambda h: (h.rows, h.columns), "rows and columns")
    _refuse_odd(headers, lambda h: h.orientation.ravel(), "an orientation of")
    _refuse_odd(headers, lambda h: h.pixel_mm, "a pixel spacing in mm of")
    pairs = _doubles(np.stack([h.position for h in headers]), headers[0].orientation)
    if pairs:
        one, other = (headers[i].place for i in pairs[0])
        raise DataError(
            f"{one}: lies in the same place as {other} ({len(pairs)} such pair(s) in the series); "
            "remove copies, or keep one acquisition"
        )


def _refuse_odd(headers: Sequence[_SliceHeader], trait: Callable[[_SliceHeader], Any], what: str) -> None:
    traits = np.stack([np.asarray(trait(h), dtype=np.float64) for h in headers])
    unlike = np.flatnonzero(np.abs(traits - traits[0]).max(1) > _ALIKE)
    if len(unlike):
        odd = unlike[0]
        raise DataError(
            f"{headers[odd].place}: has {what} {traits[odd].tolist()}, but {headers[0].path.name} in the series has "
            f"{traits[0].tolist()} ({len(unlike)} of {len(headers)} slices differ from it); keep files of one kind"
        )


def _remarks(headers: Sequence[_SliceHeader], pile: _Stack) -> list[str]:
    remarks = [*pile.uneven, *pile.remarks]
    if len(headers) == 1:
        known = "SliceThickness" if headers[0].thickness_mm else "1 mm, since SliceThickness is missing too"
        remarks.append(f"a single slice: the distance between slices is taken from {known}")
    if wrapped := sum(h.wraps_at_12_bits for h in headers):
        remarks.append(f"12-bit repair: in {wrapped} slice(s) stored values from 3096 on are read as value - 4096")
    if sum(h.unit_unspecified for h in headers):
        remarks.append("RescaleType says the unit is unspecified; taken as Hounsfield units")
    return remarks


def _volume(name: str, headers: Sequence[_SliceHeader], pile: _Stack, notes: tuple[str, ...]) -> Volume:
    turn = _turned(pile.affine, (headers[0].columns, headers[0].rows, len(headers)))
    ordered = tuple(headers[i] for i in (pile.order[::-1] if turn.flip_slices else pile.order))
    rows, columns = (headers[0].rows, headers[0].columns)[:: -1 if turn.swap else 1]
    volume = Volume(
        name=name,
        shape=(len(ordered), rows, columns),
        affine=turn.affine,
        positions_mm=np.stack([h.position for h in ordered]) @ _slice_normal(turn.affine),
        distance_mm=pile.distance_mm,
        source=DicomSlices(ordered, turn),
        notes=notes,
        sop_uids=tuple(h.sop_uid for h in ordered) if all(h.sop_uid for h in ordered) else (),
    )
    return volume if volume.plane == "axial" else replace(volume, notes=(*notes, f"{volume.plane} slices"))
