"""What a task is: a case, how to prepare it, and what became of it. Plain data that can travel to other processes."""

from dataclasses import dataclass
from pathlib import Path

from smmil.prepare.recipe import Recipe


@dataclass(frozen=True)
class Case:
    """One slide, image or scan, and what the user says about it; texts are as in the table of labels."""

    id: str
    source: Path
    label: str = ""
    patient: str = ""
    split: str = ""
    mpp: float | None = None
    tissue: Path | None = None
    annotation: Path | None = None
    annotation_kind: str = "auto"
    annotation_complete: bool = True
    instance_labels: Path | None = None


@dataclass(frozen=True)
class Job:
    """A case with everything needed to prepare it in another process: plain data, no open files.

    positive         names or codes of lesions in annotations, or names in the column class of a table of points
    negatives_known  other cases are annotated, so a case of class 0 without annotation is free of lesions
    """

    case: Case
    recipe: Recipe
    recipe_digest: str
    out: Path
    points: Path | None = None
    weights: Path | None = None
    device: str = "auto"
    threads: int | None = None
    coverage: float = 0.5
    positive: tuple[str, ...] | None = None
    negatives_known: bool = False

    @property
    def bag_path(self) -> Path:
        return self.out / "bags" / f"{self.case.id}.h5"

    @property
    def preview_path(self) -> Path:
        return self.out / "previews" / f"{self.case.id}.png"

    @property
    def labels_path(self) -> Path:
        return self.out / "instance_labels" / f"{self.case.id}.csv"


@dataclass(frozen=True)
class Prepared:
    """What became of a case: `written`, `kept` (it was there already) or `no tissue`."""

    status: str
    instances: int = 0
    damaged: int = 0
    mpp_level0: float | None = None
    mpp_read: float | None = None
    labelled: bool = False
    notes: tuple[str, ...] = ()
