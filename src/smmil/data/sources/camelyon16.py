"""CAMELYON16: lymph nodes with breast cancer metastases, 270 training and 129 test slides, official split."""

import re
from pathlib import Path

from smmil.data.manifest import Manifest
from smmil.data.sources import _by_stem, _count_lines, _DownloadedStudy
from smmil.errors import DataError
from smmil.files import need_file

# normal_086 turned out to hold tumour and is tumor_111; test_049 is a copy of another slide. Both were withdrawn.
WITHDRAWN = ("normal_086", "test_049")
EXPECTED = {"normal": 160, "tumor": 111, "test": 130}
# Not all lesions of these slides are outlined, according to the organisers: what is not outlined is unknown.
_PARTLY = (10, 15, 18, 20, 25, 29, 33, 34, 44, 46, 51, 54, 55, 56, 67, 79, 85, 92, 95, 110)
INCOMPLETE = (*(f"tumor_{number:03d}" for number in _PARTLY), "test_114")
_SLIDE = r"(normal|tumor|test)_\d{3}"


def camelyon16(root: str | Path, out: str | Path, *, allow_missing: bool = False) -> Manifest:
    """The table of CAMELYON16 from training/{normal,tumor}, testing/, lesion_annotations and reference.csv."""
    study = _DownloadedStudy("camelyon16", root, "training and testing of CAMELYON16", out, allow_missing)
    slides, outlines = (_by_stem(study.root, (ending,), _SLIDE) for ending in (".tif", ".xml"))
    if not slides:
        raise DataError(f"{root}: no slides normal_001.tif, tumor_001.tif, test_001.tif found; is this CAMELYON16?")
    used = sorted(set(slides) - set(WITHDRAWN))
    test_labels = _reference(study.root) if any(stem.startswith("test") for stem in used) else {}
    kinds = {stem: test_labels.get(stem, "") if stem.startswith("test") else stem.split("_")[0] for stem in used}
    labels = {stem: {"normal": "0", "tumor": "1"}.get(kind, "") for stem, kind in kinds.items()}
    expected = {f"{kind}_{n:03d}" for kind, count in EXPECTED.items() for n in range(1, count + 1)} - set(WITHDRAWN)
    lists = (
        ("slides", expected - set(used)),
        ("labels in reference.csv", {stem for stem in used if not labels[stem]}),
        ("lesion annotations", {stem for stem in used if labels[stem] == "1" and stem not in outlines}),
    )
    study.missing = study.refuse(_count_lines(lists))
    rows = [_row(study, stem, slides[stem], labels[stem], outlines.get(stem)) for stem in used if labels[stem]]
    study.notes.append("patients are not published: every slide counts as its own patient")
    return study.write(rows, withdrawn=sorted(set(slides) & set(WITHDRAWN)), licence="CC0")


def _reference(root: Path) -> dict[str, str]:
    """Tumor or Normal for every test slide, from reference.csv: slide, class, and more that is not used here."""
    places = sorted(path for path in root.rglob("reference.csv") if path.is_file())
    if len(places) != 1:
        raise DataError(f"{root}: {len(places)} files reference.csv with the labels of the test slides, expected one")
    found: dict[str, str] = {}
    text = need_file(places[0]).read_text(encoding="utf-8-sig", errors="replace")
    for number, line in enumerate(text.splitlines(), 1):
        fields = [part.strip().strip('"') for part in line.split(",")]
        stem = fields[0].lower().removesuffix(".tif")
        if not re.fullmatch(_SLIDE, stem):
            if number > 1 and line.strip():
                raise DataError(f"{places[0]}: line {number} is {line[:60]!r}; expected test_001,Tumor,…")
            continue
        if len(fields) < 2 or fields[1].lower() not in ("tumor", "normal"):
            raise DataError(f"{places[0]}: line {number} is {line[:60]!r}; expected Tumor or Normal after the slide")
        if found.setdefault(stem, fields[1].lower()) != fields[1].lower():
            raise DataError(f"{places[0]}: {stem} is given both as tumor and as normal; download it again")
    return found


def _row(study: _DownloadedStudy, stem: str, slide: Path, label: str, outline: Path | None) -> dict[str, str]:
    return {
        "id": stem,
        "path": study.place(slide),
        "label": label,
        "split": "test" if stem.startswith("test") else "train",
        "annotation": study.place(outline) if label == "1" else "",
        "annotation_kind": "asap" if label == "1" and outline is not None else "",
        "annotation_complete": "no" if stem in INCOMPLETE else "",
    }
