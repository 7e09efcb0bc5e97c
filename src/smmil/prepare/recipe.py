"""Every choice that changes pixels or features, in one frozen object with a fingerprint."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from smmil.config import checked, read_yaml
from smmil.encoders.table import is_outside
from smmil.errors import ConfigError, require_trust_code
from smmil.files import digest
from smmil.images.volume import PRESETS, RSNA, check_window

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Side = Annotated[int, Field(ge=1, le=8192)]
KINDS = ("slide", "ct", "mr", "stack", "points", "patches")
SCANS = ("ct", "mr", "stack")
# What kinds of sources a kind of recipe takes; NIfTI does not say whether it is CT or MR.
SOURCES = {"slide": ("slide", "patches"), "points": ("slide", "patches"), "patches": ("patches",), "ct": ("ct", "mr")}
SOURCES |= {"mr": ("ct", "mr"), "stack": ("stack",)}
# How the slices of a scan are shown unless windows are given: MR has no unit, pictures have shades from 0 to 255.
_WINDOWS = {"mr": ("p1/99",), "stack": ("127.5/255",)}


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class TissueRecipe(_Part):
    """Where the tissue is, and how much of it a tile needs.

    method         otsu: saturation above Otsu's threshold; grey: darker than the glass, dark: brighter than a dark
                   background, both for images without colour; none: everything inside the bounds is tissue
    resolution_um  size of a mask pixel, the same for every slide whatever its magnification
    lowest         Otsu's threshold on saturation or shade (0 to 1) is kept between these two: glass is not split into
    highest        halves, and neither is a slide without any glass
    darkest        pixels darker than this (0 to 1) are ink, folds or the edge of the scan
    smallest_um2   smaller pieces are dust
    hole_um2       smaller holes are filled
    share          a tile is kept when at least this share of its area is tissue
    pen            exclude: felt pen on the glass or over tissue is none; for H&E and brown chromogens
    origin         where outlines and annotations in GeoJSON count from: level0 (TRIDENT) or bounds (QuPath)
    """

    method: Literal["otsu", "grey", "dark", "none"] = "otsu"
    resolution_um: Positive = 8.0
    lowest: Share = 0.05
    highest: Share = 0.15
    darkest: Share = 0.1
    smallest_um2: NotNegative = 10_000.0
    hole_um2: NotNegative = 10_000.0
    share: Annotated[float, Field(gt=0, le=1)] = 0.25
    pen: Literal["keep", "exclude"] = "keep"
    origin: Literal["level0", "bounds"] = "level0"


class PatchRecipe(_Part):
    """Patches of a scan in place of whole slices: squares within a slice, or boxes of several slices.

    side_mm       width and height of a patch; or give side_px, in voxels
    depth_mm      its thickness; or give depth_slices (1: squares within a slice)
    overlap       share of a patch by which neighbours overlap, along both sides and through the slices of a box
    foreground    what counts as body: auto (CT: above -300 HU; else above Otsu's threshold), none (everything), voxels
                  above a value such as -300, or above a percentile such as p60; holes within a slice are filled
    share         a patch is kept when more than this share of it is body; 0: one voxel is enough
    slices        of how many slices, evenly spread over it, the features of a box are made
    encode        mean of their features; concat: one after the other; whole: the encoder takes all of them at once
    """

    side_mm: Positive | None = None
    side_px: Side | None = None
    depth_mm: Positive | None = None
    depth_slices: Side | None = None
    overlap: Annotated[float, Field(ge=0, lt=1)] = 0.0
    foreground: str = "auto"
    share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    slices: Annotated[int, Field(ge=1, le=64)] = 3
    encode: Literal["mean", "concat", "whole"] = "mean"

    @field_validator("foreground", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        """YAML reads -300 as a number."""
        return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else value

    @model_validator(mode="after")
    def _makes_sense(self) -> "PatchRecipe":
        if (self.side_mm is None) == (self.side_px is None):
            raise ValueError("patches of a scan have one width: give side_mm (--patch-mm) or side_px (--patch-px)")
        if self.depth_mm is not None and self.depth_slices is not None:
            raise ValueError("patches of a scan have one thickness: give depth_mm or depth_slices")
        if not re.fullmatch(r"auto|none|-?\d+(\.\d+)?|p\d{1,2}(\.\d+)?", self.foreground):
            raise ValueError(
                f"foreground {self.foreground!r}: expected auto, none, a value such as -300, or a percentile (p60)"
            )
        return self

    @property
    def looks(self) -> int:
        """Slices of which the features of a patch are made; 1 within a slice."""
        flat = self.depth_mm is None and self.depth_slices in (None, 1)
        return 1 if flat and self.encode != "whole" else self.slices


class Recipe(_Part):
    """From the pixels of a case to its instances and their features.

    kind         slide: tiles on a lattice; points: crops around given points; patches: files with a place each;
                 ct, mr: slices of scans; stack: slices that are pictures
    tile_um      width of a tile; or give tile_px and tile_mpp, and it is their product
    pixels       side in pixels at which a tile is read; None: what the encoder takes
    overlap_um   how far neighbouring tiles overlap
    reader       library that decodes slides; None: the usual one for the file
    max_damaged  a slide fails when more than this share of its tiles cannot be decoded
    crop_px      side of a crop around a point, in pixels of the image
    first_pixel  whether the coordinates of points begin at 0 or at 1
    neighbours   nearest points that are neighbours of a point
    graph        neighbours of patches: grid (those that touch), or knn where patches were sampled sparsely
    stain        colours of every slide brought to one target: macenko or reinhard; None: as they are
    stain_reference  picture whose colours are the target in place of published ones; `plan` puts its checksum here
    stain_target     and the numbers found in it there, in the order of `smmil.prepare.stain`
    windows      scans: three windows as colours, or one; by name, as centre/width, or percentiles such as p1/99
    triplets     scans: the slice below, itself and the slice above as colours, through a single window
    patch        scans: cut into patches; None: every slice is an instance
    encoder      name of an encoder, or `package.module:function` that gives one
    autocast     encoder in 16 bits: true, float16 or bfloat16
    encoder_pixels  side at which the encoder looks at an instance; None: what it was trained on. Less is faster
    """

    kind: Literal["slide", "ct", "mr", "stack", "points", "patches"] = "slide"
    tile_um: Positive = 256.0
    tile_px: Side | None = None
    tile_mpp: Positive | None = None
    pixels: Side | None = None
    overlap_um: NotNegative = 0.0
    tissue: TissueRecipe = TissueRecipe()
    reader: Literal["openslide", "tifffile", "pillow"] | None = None
    max_damaged: Share = 0.1
    crop_px: Side = 27
    first_pixel: Literal[0, 1] = 1
    neighbours: Annotated[int, Field(ge=1)] = 5
    graph: Literal["grid", "knn"] = "grid"
    stain: Literal["macenko", "reinhard"] | None = None
    stain_reference: str | None = None
    stain_target: tuple[float, ...] | None = None
    windows: tuple[str, ...] = RSNA
    triplets: bool = False
    patch: PatchRecipe | None = None
    encoder: str = "efficientnet-lite0"
    autocast: bool | Literal["float16", "bfloat16"] = False
    encoder_pixels: Side | None = None

    @model_validator(mode="before")
    @classmethod
    def _tile_from_pixels(cls, content: Any) -> Any:
        """Two ways to say the same size become the same recipe."""
        if not isinstance(content, dict) or (content.get("tile_px") is None and content.get("tile_mpp") is None):
            return content
        px, mpp, um = (content.get(name) for name in ("tile_px", "tile_mpp", "tile_um"))
        if not isinstance(px, int) or not isinstance(mpp, int | float) or um not in (None, px * mpp):
            raise ValueError("give tile_um, or tile_px together with tile_mpp")
        if content.get("pixels") not in (None, px):
            raise ValueError(f"tile_px is {px}, so pixels cannot be {content['pixels']}; leave one out")
        return content | {"tile_um": float(px * mpp), "pixels": px, "tile_mpp": float(mpp)}

    @model_validator(mode="before")
    @classmethod
    def _windows_of_kind(cls, content: Any) -> Any:
        """Windows in Hounsfield units are the default of CT alone."""
        if not isinstance(content, dict) or content.get("windows") is not None:
            return content
        return content | {"windows": _WINDOWS[content["kind"]]} if content.get("kind") in _WINDOWS else content

    @model_validator(mode="after")
    def _makes_sense(self) -> "Recipe":
        if self.overlap_um >= self.tile_um:
            raise ValueError(f"an overlap of {self.overlap_um:g} µm leaves nothing of a tile of {self.tile_um:g} µm")
        if self.tissue.lowest > self.tissue.highest:
            raise ValueError("tissue.lowest must not be above tissue.highest")
        if self.tissue.pen == "exclude" and self.tissue.method != "otsu":
            raise ValueError(f"pen is told from tissue by colour, which tissue {self.tissue.method} does not look at")
        if self.stain is None and self.stain_reference is not None:
            raise ValueError("stain_reference needs stain: macenko or reinhard")
        numbers = None if self.stain_target is None else len(self.stain_target)
        if numbers not in (None, {"macenko": 8, "reinhard": 6}.get(self.stain or "")) or (
            numbers and self.stain_reference is None
        ):
            raise ValueError("stain_target is found in stain_reference; leave it out")
        if self.kind in SCANS:
            self._check_windows()
        return self

    def _check_windows(self) -> None:
        if self.triplets and len(self.windows) != 1:
            raise ValueError(f"triplets need a single window, got {', '.join(self.windows)}")
        if len(self.windows) not in (1, 3):
            raise ValueError(f"give one window or three (the colours), got {len(self.windows)}")
        for name in self.windows:
            try:
                check_window(name)
            except ConfigError as problem:
                raise ValueError(str(problem)) from None
            if self.kind != "ct" and name in PRESETS:
                raise ValueError(
                    f"window {name!r} is in Hounsfield units, which {_CASES[self.kind]} have not; try p1/99"
                )

    @property
    def cut(self) -> PatchRecipe | None:
        """How scans are cut into patches; None: whole slices, or other cases than scans."""
        return self.patch if self.kind in SCANS else None

    def settings(self) -> dict[str, Any]:
        """The choices that count for this kind, as plain data: a CT recipe does not change with a tile size."""
        dumped = self.model_dump(mode="json", exclude={"tile_px", "tile_mpp"})
        # what earlier versions did not have counts only when it is chosen, so that their fingerprints stay
        if self.tissue.pen == "keep":
            del dumped["tissue"]["pen"]
        unset = {name for name in (*_STAINS, "patch") if dumped[name] is None}
        own = {*_SHARED, *_OWN[self.kind]} - unset
        return {name: value for name, value in dumped.items() if name in own}

    def digest(self, encoder_id: str) -> str:
        """Fingerprint of these choices and of the encoder's weights (`name@revision`)."""
        return digest(json.dumps(self.settings(), sort_keys=True), encoder_id)[:16]


_SHARED = ("kind", "encoder", "autocast", "encoder_pixels")
_STAINS = ("stain", "stain_reference", "stain_target")
_OWN = {
    "slide": ("tile_um", "pixels", "overlap_um", "tissue", "reader", "max_damaged", *_STAINS),
    "points": ("pixels", "reader", "max_damaged", "crop_px", "first_pixel", "neighbours", *_STAINS),
    "patches": ("pixels", "max_damaged", "graph", "neighbours", *_STAINS),
    **dict.fromkeys(SCANS, ("windows", "triplets", "patch")),
}
_NEITHER: dict[str, tuple[str, ...]] = {
    "mpp": ("slide", "points", "patches"),
    "coverage": ("slide", "points", "patches"),
}
_NEITHER["series"] = ("ct", "mr")
_TYPED = {"windows": "--window", "patch": "--patch-mm, --patch-px"}
_CASES = {"slide": "slides", "points": "crops around points", "patches": "patch files"}
_CASES |= {"ct": "CT scans", "mr": "MR scans", "stack": "stacks of pictures"}


def refuse_unused(chosen: Mapping[str, Any], kind: str, patches: bool = False) -> None:
    """Refuse choices made for this run that change nothing for its kind of cases; a recipe file may serve several.

    patches  scans are cut into patches, which a mask may cover in part
    """
    shared = (*_SHARED, "coverage") if patches else _SHARED
    for name in (name for name, value in chosen.items() if value is not None and name not in shared):
        own = "tile_um" if name in ("tile_px", "tile_mpp") else name
        kinds = _NEITHER.get(name) or [k for k in KINDS if own in _OWN[k]]
        if kind not in kinds:
            typed = _TYPED.get(name, f"--{name.replace('_', '-')}")
            if name == "tissue":
                typed = {"share": "--tissue-share", "pen": "--pen"}.get(next(iter(chosen[name])), "--tissue")
            meant = " and ".join(_CASES[k] for k in kinds if k not in SCANS[1:])
            meant += " and patches of scans" if name == "coverage" else ""
            raise ConfigError(f"{typed}: is for {meant}, but these are {_CASES[kind]}; leave it out")


def load_recipe(
    path: str | Path | None = None, changes: Mapping[str, Any] | None = None, *, trust_code: bool = False
) -> Recipe:
    """The recipe in a YAML file with changes on top; unknown keys are refused by name; paths count from the file.

    trust_code  the file may name an encoder outside smmil, which means running that code; the changes always may
    """
    content = {} if path is None else read_yaml(path, "recipe", "lines such as tile_um: 256")
    if (
        path is not None
        and isinstance(picture := content.get("stain_reference"), str)
        and "stain_target" not in content
    ):
        content = content | {"stain_reference": str(Path(path).parent / picture)}
    merged = _merged(content, {name: value for name, value in (changes or {}).items() if value is not None})
    # lists as YAML has them become tuples, which a frozen recipe keeps
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in merged.items()}
    recipe = checked(Recipe, plain, "the recipe" if path is None else str(path))
    if path is not None and is_outside(recipe.encoder):
        require_trust_code(recipe.encoder, path, trust_code or (changes or {}).get("encoder") or False)
    return recipe


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """A size given on top replaces the size below, in whichever of its two forms that was given."""
    sizes = ("tile_um", "tile_px", "tile_mpp")
    if any(name in above for name in sizes):
        below = {name: value for name, value in below.items() if name not in sizes}
    inner = {}
    for part in ("tissue", "patch"):
        if part in above and isinstance(below.get(part, {}), dict):
            inner[part] = _without_rivals(below.get(part, {}), above[part]) | above[part]
    return below | above | inner


def _without_rivals(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """The choices below, without the other form of a size that is given on top."""
    rivals = ({"side_mm", "side_px"}, {"depth_mm", "depth_slices"})
    replaced = set().union(*(both for both in rivals if both & above.keys()))
    return {name: value for name, value in below.items() if name not in replaced}
