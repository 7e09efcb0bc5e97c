"""smmil convert-weights"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from smmil.foreign_weights import LAYOUTS

Source = StrEnum("Source", list(LAYOUTS))  # type: ignore[misc]


def convert_weights(
    checkpoint: Annotated[Path, Argument(help="The authors' checkpoint (.pt, .pth, .ckpt or .safetensors).")],
    source: Annotated[Source, Option("--from", help="Whose program wrote it.")],
    out: Annotated[Path, Option(help="Folder for the converted model; smmil predict takes it.")],
) -> None:
    """Bring a model trained with its authors' own program into smmil; the same weights give the same outputs.

    Only weights are read: code inside the file is never run. Weights that the published program stores and never uses
    are left out and listed.

    [bold]Examples[/bold]

      smmil convert-weights --from clam s_0_checkpoint.pt --out models/clam

      smmil convert-weights --from transmil epoch=07.ckpt --out models/transmil

    Go on with: smmil predict models/clam --manifest bags.csv --out predictions
    """
    from smmil.foreign_weights import convert_weights as convert

    found = convert(checkpoint, source.value, out)
    numbers = sum(p.numel() for p in found.model.parameters())
    made = found.shape
    print(f"{out}: {made['name']} for features of {made['in_dim']}, {made['n_classes']} logits, {numbers:,} parameters")
    print("options: " + (", ".join(f"{k}={v}" for k, v in made["options"].items()) or "none"))
    if found.dropped:
        print(f"left out, since its program never uses them: {', '.join(found.dropped)}")
