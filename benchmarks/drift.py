"""Planted shifts and who notices them: the table of docs/drift.md (some minutes on one core, resumable).

    python benchmarks/drift.py --images crchisto/png --slide CMU-1-Small-Region.svs --out drift-study

Cases are fields of 448 x 448 pixels of the library's own drawn slides and, with --images, of CRCHistoPhenotypes (which
may not be passed on), and synthetic head scans. Every case is encoded as it is and after each planted shift;
what is encoded is kept. Then cases are divided again and again: most fit the summary, the others are looked at as they
are (false alarms) and shifted (alarms). Of the real fields those with odd numbers served to choose the facts of image
quality; only those with even numbers are looked at.
"""

import argparse
import io
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy.ndimage import gaussian_filter

from smmil.encoders import load_encoder
from smmil.evaluate.drift import DriftCase, fit_drift
from smmil.evaluate.folder_drift import folder_drift
from smmil.frame import Frame
from smmil.graph import chain_graph, grid_graph
from smmil.images import open_slide, open_volume
from smmil.images.quality import SLICE_FACTS, TILE_FACTS, slice_facts, tile_facts
from smmil.images.volume import window_channels
from smmil.prediction import Prediction
from smmil.synthetic.ct import synthetic_ct_scans
from smmil.synthetic.slides import stained_slides

SIDE, TILE = 448, 64
PIXELS = 64
STAINS = np.array([[0.65, 0.70, 0.29], [0.07, 0.99, 0.11], [0.27, 0.57, 0.78]])  # haematoxylin, eosin, rest
WINDOWS = ("brain", "subdural", "stroke")
# pictures, coordinates, frame, positions of slices, facts of image quality
Case = tuple[np.ndarray, np.ndarray, Frame, np.ndarray | None, np.ndarray]
Shift = Callable[[Any, np.random.Generator], Any]


def stain(image: np.ndarray, _: np.random.Generator, factor: float) -> np.ndarray:
    """More haematoxylin, less eosin."""
    density = -np.log((image.astype(np.float64) + 1) / 256)
    amounts = density @ np.linalg.inv(STAINS)
    back = 256 * np.exp(-(amounts * [factor, 1 / factor, 1]) @ STAINS) - 1
    return np.clip(np.rint(back), 0, 255).astype(np.uint8)


def blur(image: np.ndarray, _: np.random.Generator, sigma: float) -> np.ndarray:
    return gaussian_filter(image, (sigma, sigma, 0))


def jpeg(image: np.ndarray, _: np.random.Generator, quality: int) -> np.ndarray:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=quality)
    return np.asarray(Image.open(buffer).convert("RGB"))


def pen(image: np.ndarray, rng: np.random.Generator, share: float) -> np.ndarray:
    """A stroke of a blue or green marker of this share of the area, straight across the field."""
    rows, columns = np.indices(image.shape[:2])
    angle, place = rng.uniform(0, np.pi), rng.uniform(0.3, 0.7)
    across = (rows - place * SIDE) * np.cos(angle) + (columns - place * SIDE) * np.sin(angle)
    stroke = np.abs(across) < np.quantile(np.abs(across), share)
    ink = np.array([(30, 60, 160), (20, 120, 60)][int(rng.integers(2))])
    return np.where(stroke[..., None], np.rint(0.25 * image + 0.75 * ink), image).astype(np.uint8)


def magnified(image: np.ndarray, _: np.random.Generator, factor: float) -> np.ndarray:
    """The middle of the field, enlarged: a slide whose pixel size was stated wrongly."""
    keep = round(SIDE / factor)
    start = (SIDE - keep) // 2
    part = Image.fromarray(image[start : start + keep, start : start + keep])
    return np.asarray(part.resize((SIDE, SIDE), Image.Resampling.BICUBIC))


def as_it_is(case: Any, _: np.random.Generator) -> Any:
    return case


FIELD_SHIFTS: dict[str, Shift] = {
    "as it is": as_it_is,
    **{f"stain × {v}": partial(stain, factor=v) for v in (1.25, 1.5, 2)},
    **{f"blur σ = {v} px": partial(blur, sigma=v) for v in (1, 2, 3)},
    **{f"JPEG quality {v}": partial(jpeg, quality=v) for v in (40, 15, 5)},
    **{f"pen on {v:.0%}": partial(pen, share=v) for v in (0.05, 0.15, 0.3)},
    **{f"magnified × {v}": partial(magnified, factor=v) for v in (1.3, 2, 3)},
}


def real_fields(images: Path) -> dict[str, np.ndarray]:
    files = sorted(images.glob("*.png"))
    return {path.stem: np.asarray(Image.open(path).convert("RGB"))[:SIDE, :SIDE] for path in files}


def drawn_fields(out: Path) -> dict[str, np.ndarray]:
    stained_slides(out / "drawn", 80, patches=(60, 80))
    return {path.stem: middle(path) for path in sorted((out / "drawn" / "slides").glob("*.svs"))}


def middle(path: Path) -> np.ndarray:
    with open_slide(path) as slide:
        (width, height), _ = slide.size, slide.mpp
        return slide.read((width - SIDE) // 2, (height - SIDE) // 2, SIDE, SIDE)


def other_tissue(path: Path) -> dict[str, np.ndarray]:
    """Fields with little glass of one slide of another organ."""
    with open_slide(path) as slide:
        places = [(x, y) for y in range(0, slide.size[1] - SIDE, SIDE) for x in range(0, slide.size[0] - SIDE, SIDE)]
        found = {f"x{x}y{y}": slide.read(x, y, SIDE, SIDE) for x, y in places}
    return {name: field for name, field in found.items() if (field.min(-1) < 210).mean() > 0.5}


def tiled(image: np.ndarray) -> Case:
    corners = [(x, y) for y in range(0, SIDE, TILE) for x in range(0, SIDE, TILE)]
    tiles = np.stack([image[y : y + TILE, x : x + TILE] for x, y in corners])
    frame = Frame((TILE, TILE), (0.5, 0.5), "um")
    return tiles, np.array(corners), frame, None, np.stack([tile_facts(tile) for tile in tiles])


Scan = tuple[np.ndarray, np.ndarray]  # HU (slices, rows, columns), positions in mm


def shades(scan: Scan, _: np.random.Generator, centre: float = 0.0, width: float = 1.0) -> tuple[np.ndarray, ...]:
    """Seen through windows whose centres are moved and whose widths are changed."""
    hu, positions = scan
    return (hu - centre) / width + 40 * (1 - 1 / width), positions


def agent(scan: Scan, _: np.random.Generator, gain: float) -> Scan:
    """A contrast agent: vessels and tissue between 15 and 100 HU become brighter."""
    hu, positions = scan
    return np.where((hu > 15) & (hu < 120), hu + gain, hu), positions


def noisy(scan: Scan, rng: np.random.Generator, deviation: float) -> Scan:
    return scan[0] + rng.normal(0, deviation, scan[0].shape), scan[1]


def every_second(n: int, _: np.random.Generator) -> np.ndarray:
    return np.arange(0, n, 2)


def gap(n: int, rng: np.random.Generator, share: float) -> np.ndarray:
    """A block of slices is missing somewhere inside."""
    size = max(1, round(share * n))
    start = int(rng.integers(1, n - size))
    return np.r_[0:start, start + size : n]


def cut(n: int, _: np.random.Generator, share: float) -> np.ndarray:
    """The lowest slices are missing."""
    return np.arange(round(share * n), n)


SCAN_SHIFTS: dict[str, Shift] = {
    "as it is": as_it_is,
    **{f"window centre + {v} HU": partial(shades, centre=v) for v in (3, 8, 20)},
    **{f"window width × {v}": partial(shades, width=v) for v in (1.2, 1.5, 2.5)},
    **{f"contrast agent + {v} HU": partial(agent, gain=v) for v in (5, 10, 25)},
    **{f"noise + {v} HU": partial(noisy, deviation=v) for v in (3, 8)},
}
MISSING_SLICES: dict[str, Callable[[int, np.random.Generator], np.ndarray]] = {
    "every second slice": every_second,
    **{f"gap of {v:.0%} of the slices": partial(gap, share=v) for v in (0.03, 0.1, 0.25)},
    **{f"lowest {v:.0%} of the slices cut off": partial(cut, share=v) for v in (0.1, 0.25, 0.5)},
}


def scans(out: Path, n: int) -> dict[str, Scan]:
    """Synthetic head scans, one per patient (every fourth is a second scan of one and is left out)."""
    table = synthetic_ct_scans(out / "scans", n, size=96) if not (out / "scans" / "labels.csv").exists() else None
    del table
    folders = [path for i, path in enumerate(sorted((out / "scans" / "scans").iterdir())[:n]) if i % 4 != 3]
    volumes = {path.name: open_volume(path) for path in folders}
    return {name: (np.asarray(v.hu, np.float32), np.asarray(v.positions_mm)) for name, v in volumes.items()}


def sliced(scan: Scan) -> Case:
    hu, positions = scan
    pictures = [np.rint(window_channels(one, WINDOWS).transpose(1, 2, 0) * 255).astype(np.uint8) for one in hu]
    spacing = float(np.median(np.diff(positions)))
    facts = np.stack([slice_facts(one) for one in hu])
    return np.stack(pictures), np.arange(len(hu))[:, None], Frame((1.0,), (spacing,), "mm"), positions, facts


def encode(cases: Mapping[str, Any], shift: Shift, cut_up: Callable[[Any], Case], encoder: Any, path: Path) -> None:
    """Encode all cases after a shift into one file."""
    content: dict[str, np.ndarray] = {}
    for number, (name, case) in enumerate(cases.items()):
        pictures, coords, frame, positions, facts = cut_up(shift(case, np.random.default_rng(number)))
        groups = [pictures[i : i + 64] for i in range(0, len(pictures), 64)]
        content[f"x/{name}"] = np.concatenate([encoder.encode(group) for group in groups])
        content[f"quality/{name}"] = facts
        content[f"coords/{name}"] = coords
        content[f"frame/{name}"] = np.array(json.dumps(frame.to_dict()))
        if positions is not None:
            content[f"positions/{name}"] = positions
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **content)
    print(path, flush=True)


def encode_all(images: Path | None, slide: Path | None, out: Path) -> None:
    encoder = load_encoder("efficientnet-lite0", device="cpu", pixels=PIXELS)
    jobs: list[tuple[str, Any, dict[str, Shift], Any]] = [
        ("scans", lambda: scans(out, 80), SCAN_SHIFTS, sliced),
        ("drawn", lambda: drawn_fields(out), FIELD_SHIFTS, tiled),
    ]
    if images is not None:
        jobs.append(("real", lambda: real_fields(images), FIELD_SHIFTS, tiled))
    for kind, cases_of, shifts, cut_up in jobs:
        place = out / "features" / kind
        missing = {name: shift for name, shift in shifts.items() if not (place / f"{name}.npz").exists()}
        cases = cases_of() if missing else {}
        for name, shift in missing.items():
            encode(cases, shift, cut_up, encoder, place / f"{name}.npz")
    for kind in ("drawn", "real")[: 1 if images is None else 2]:
        place = out / "features" / kind / "another tissue.npz"
        if slide is not None and not place.exists():
            encode(other_tissue(slide), as_it_is, tiled, encoder, place)


def read(path: Path, rows: Callable[[int, np.random.Generator], np.ndarray] | None = None) -> dict[str, DriftCase]:
    """Encoded cases by name; `rows` says which slices of a scan are left."""
    with np.load(path) as file:
        content = {name: file[name] for name in file.files}
    found = {}
    for number, name in enumerate(key[2:] for key in content if key.startswith("x/")):
        x, coords, positions = content[f"x/{name}"], content[f"coords/{name}"], content.get(f"positions/{name}")
        facts = content[f"quality/{name}"]
        frame = Frame.from_dict(json.loads(str(content[f"frame/{name}"])))
        if positions is not None and rows is not None:
            kept = rows(len(x), np.random.default_rng(number))
            x, positions, coords, facts = x[kept], positions[kept], np.arange(len(kept))[:, None], facts[kept]
            frame = Frame((1.0,), (float(np.median(np.diff(positions))),), "mm")
        graph = chain_graph(len(x)) if positions is not None else grid_graph(coords, TILE)
        named = TILE_FACTS if positions is None else SLICE_FACTS
        found[name] = DriftCase(name, x, coords, frame, graph.edges().numpy(), positions, facts, named)
    return found


def kept_back(name: str) -> bool:
    """Fields of CRCHistoPhenotypes with even numbers, on which nothing was chosen; all other cases."""
    return not name.startswith("img") or int(name[3:]) % 2 == 0


def measure(place: Path, divisions: int, alone: bool, share: float = 0.75) -> tuple[str, list[str]]:
    """Facts about the divisions, and for every shift AUROC, share of alarms, and of alarms on folders of ten.

    alone  fields that were kept back also fit the summary alone; else all do. Only those kept back are looked at.
    """
    usual = {name: case for name, case in read(place / "as it is.npz").items() if not alone or kept_back(name)}
    shifted = {path.stem: path for path in place.glob("*.npz") if path.stem != "as it is"}
    order = [*FIELD_SHIFTS, "another tissue", *SCAN_SHIFTS]
    cases = {name: read(shifted[name]) for name in order if name in shifted}
    if place.name == "scans":
        cases |= {name: read(place / "as it is.npz", rows) for name, rows in MISSING_SLICES.items()}
    rows: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ("as it is", *cases)}
    for turn in range(divisions):
        names = np.random.default_rng(turn).permutation(sorted(usual)).tolist()
        fitted, others = names[: round(share * len(names))], names[round(share * len(names)) :]
        others = [name for name in others if kept_back(name)]
        summary = fit_drift({name: f"{turn} {name}" for name in fitted}, usual.__getitem__)
        plain = [summary.applied(Prediction(n, [0.5], np.zeros(len(usual[n].x))), usual[n]) for n in others]
        clean = np.array([summary.examine(usual[n]).score for n in others])
        rows["as it is"].append((0.5, alarms(plain), folders(plain)))
        for name, moved in cases.items():
            chosen = [moved[n] for n in (others if others[0] in moved else moved)]
            found = [summary.applied(Prediction(c.id, [0.5], np.zeros(len(c.x))), c) for c in chosen]
            scores = np.array([summary.examine(c).score for c in chosen])
            rows[name].append((auroc(clean, scores), alarms(found), folders(found)))
    facts = (
        f"{summary.reference} + {summary.patients} cases fitted, about {len(others)} looked at, {divisions} divisions"
    )
    return facts, [line(name, np.nanmean(values, axis=0)) for name, values in rows.items()]


def auroc(usual: np.ndarray, strange: np.ndarray) -> float:
    return float(((strange[:, None] > usual) + 0.5 * (strange[:, None] == usual)).mean())


def alarms(predictions: list[Prediction]) -> float:
    return float(np.mean([p.meta["drift"]["alarm"] for p in predictions]))


def folders(predictions: list[Prediction], size: int = 10) -> float:
    """Share of folders of ten cases that raise the alarm as a whole."""
    parts = [predictions[i : i + size] for i in range(0, len(predictions) - size + 1, size)]
    found = [folder_drift(part) for part in parts]
    return float(np.mean([one.alarm for one in found if one is not None])) if parts else float("nan")


def line(name: str, values: np.ndarray) -> str:
    score = "–" if name == "as it is" else f"{values[0]:.2f}"
    return f"| {name} | {score} | {values[1]:.0%} | {values[2]:.0%} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="folder png of CRCHistoPhenotypes; else drawn slides alone")
    parser.add_argument("--slide", type=Path, help="a slide of another tissue")
    parser.add_argument("--out", type=Path, default=Path("drift-study"), help="where scans and features are kept")
    parser.add_argument("--divisions", type=int, default=10, help="how often cases are divided")
    args = parser.parse_args()
    encode_all(args.images, args.slide, args.out)
    for place in sorted((args.out / "features").iterdir()):
        for alone in (False, True) if place.name == "real" else (False,):
            facts, table = measure(place, args.divisions, alone)
            title = f"{place.name}{', half that was kept back' * alone}"
            print(f"\n{title}: {facts}\n\n| shift | AUROC | alarms | folders of 10 |\n|---|---:|---:|---:|")
            print("\n".join(table), flush=True)


if __name__ == "__main__":
    main()
