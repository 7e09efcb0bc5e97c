"""smmil inspect: what is in a bag file or a manifest."""

import json
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Exit, Option

from smmil.cli.options import _right_verb
from smmil.errors import DataError


def inspect(
    paths: Annotated[list[Path], Argument(help="Feature files of any format, folders of them, or manifests.")],
    as_json: Annotated[bool, Option("--json", help="Print JSON, one object per file, for other programs.")] = False,
) -> None:
    """Show what is inside feature files and manifests, before any training.

    For a bag (native, TRIDENT, CLAM, STAMP, torchmil, LazySlide, WSInfer): instances, features, coordinates, how many
    neighbours they have, where the features come from, the rows that stand out, and whether the checksum matches. For
    a folder: how many bags, their sizes and formats, and how many of them have no neighbours at all. For a manifest:
    bags, labels, patients, splits, and files that are missing. A file that cannot be read does not stop the others.
    When there is anything to warn of, the exit code is 3.

    [bold]Examples[/bold]

      smmil inspect bags/slide_0001.h5

      smmil inspect features

      smmil inspect manifest.csv

      smmil inspect slide.zarr/tables/uni_tiles

      smmil inspect bags/*.h5 --json > facts.json
    """
    facts = [_facts_or_reason(path, alone=len(paths) == 1) for path in paths]
    if as_json:
        print(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        _show(facts)
    if any(one["warnings"] for one in facts):
        raise Exit(3)


def _facts_or_reason(path: Path, alone: bool) -> dict[str, Any]:
    """What is in a file, or why it cannot be read; a single file that cannot be read is an error of the command."""
    from smmil.data.manifest import describe_manifest
    from smmil.formats.inspection import describe, describe_folder, find_bags, find_or_none

    try:
        if not path.exists():
            raise DataError(f"{path}: no such file or folder")
        if (
            path.is_dir()
            and find_or_none(path) is None
            and not (path / "manifest.csv").is_file()
            and find_bags(path)[0]
        ):
            return describe_folder(path)
        is_manifest = path.suffix.lower() in (".csv", ".parquet") and find_or_none(path) is None
        return describe_manifest(path) if is_manifest else describe(path)
    except DataError as problem:
        reason = _right_verb(path) or str(problem)
        if alone:
            raise DataError(reason) from None
        return {"file": str(path), "not_readable": True, "warnings": [reason]}


def _show(facts: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    for one in facts:
        table = Table(title=escape(str(one["file"])), title_justify="left", show_header=False)
        for name, value in one.items():
            if name not in ("file", "warnings"):
                table.add_row(name.replace("_", " "), escape(_in_words(value)))
        console.print(table)
        for warning in one["warnings"]:
            console.print(f"[bold yellow]warning:[/] {escape(warning)}")


def _in_words(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_in_words(part)}" for name, part in value.items()) or "none"
    if isinstance(value, list):
        return " x ".join(map(_in_words, value)) or "none"
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
