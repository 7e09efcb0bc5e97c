"""The published study from images to documentation: `make study IMAGES=folder` (some hours on two cores, resumable).

Needs the images of CRCHistoPhenotypes (png/ and nuclei.csv, see the docs on public data sets), which may not be passed
on. Repeating the command goes on where it stopped; what is done is kept. At the end the tables and figures that
docs/evidence.md shows are written into docs/evidence/; those on certainty come from certainty.py beside this file.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import certainty

HERE = Path(__file__).parent.parent
STUDIES = ("paper/crchisto", "ablations/difficulty")
SHOWN = (".md", ".csv", ".png")


def smmil(*words: object) -> None:
    """One command of smmil; its error ends the study."""
    done = subprocess.run([sys.executable, "-m", "smmil", *map(str, words)])
    if done.returncode:
        sys.exit(done.returncode)


def bags(images: Path, out: Path) -> Path:
    """Every nucleus as an instance: a crop of 27 pixels, seen by the embedded encoder at 64."""
    smmil("source", "crchisto", images, "--out", out / "crchisto")
    points, labels = out / "crchisto" / "points.csv", out / "crchisto" / "labels.csv"
    crops = ("--kind", "points", "--points", points, "--labels", labels, "--encoder-pixels", 64)
    smmil("prepare", images / "png", *crops, "--out", out / "bags")
    return out / "bags" / "manifest.csv"


def publish(study: Path, docs: Path) -> None:
    """Tables and figures beside the page that shows them."""
    docs.mkdir(parents=True, exist_ok=True)
    for path in sorted(study.glob("tables/*")) + sorted(study.glob("figures/*")):
        if path.suffix in SHOWN:
            shutil.copyfile(path, docs / f"{study.name}-{path.name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True, help="folder with png/ and nuclei.csv")
    parser.add_argument("--out", type=Path, default=Path("smmil-study"), help="where runs are kept")
    parser.add_argument("--workers", type=int, default=2, help="trainings at once, one thread each")
    parser.add_argument("--docs", type=Path, default=HERE / "docs" / "evidence", help="where tables and figures go")
    args = parser.parse_args()
    manifest = bags(args.images, args.out)
    data = ("--data", f"CRCHISTO={manifest}")
    for name in STUDIES:
        config, out = HERE / "configs" / f"{name}.yaml", ("--out", args.out / "study")
        smmil("experiment", "run", config, *out, *data, "--executor", "processes", "--workers", args.workers)
        smmil("experiment", "tables", config, *out, *data)
        smmil("experiment", "figures", config, *out, *data)
        publish(args.out / "study" / Path(name).name, args.docs)
    certainty.publish_all(manifest, args.out / "certainty", args.docs)


if __name__ == "__main__":
    main()
