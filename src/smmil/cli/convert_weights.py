"""smmil convert-weights"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from smmil.foreign_weights import LAYOUTS

Source = StrEnum("Source", list(LAYOUTS))  # type: ignore[misc]


def convert_weights(
    checkpoint: Annotated[Path, Argument(help="The authors' checkpoint (.pt, .pth, .ckpt or .safetensors).")],
    source: Annotated[Source, Option("--from", help="Whose program wrote it.")],
    out: Annotated[Path, Option(help="Folder for the converted model; smmil predict takes it.")],
    set_: Annotated[
        list[str] | None, Option("--set", help="An option that the checkpoint does not tell: distill=maxmins")
    ] = None,
) -> None:
    """Bring a model trained with its authors' own program into smmil; for the same features it gives the same logits.

    Only weights are read: code inside the file is never run. What the checkpoint does not tell (of DTFD-MIL how it
    distils, of SETMIL how slides are laid out) is as in the program's own defaults, is printed, and can be set. Weights
    that have no use here are left out and listed.

    [bold]Examples[/bold]

      smmil convert-weights --from clam s_0_checkpoint.pt --out models/clam

      smmil convert-weights --from dtfd best_model.pth --set distill=maxmins --set pseudo_bags=5 --out models/dtfd

    Files of Lightning (TransMIL's epoch=07.ckpt) hold objects beside the weights and are refused; the error says how to
    take the weights out. Go on with: smmil predict models/clam --manifest bags.csv --out predictions
    """
    from smmil.errors import ConfigError
    from smmil.foreign_weights import convert_weights as convert

    options: dict[str, int | str] = {}
    for text in set_ or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set {text}: expected name=value, such as distill=maxmins")
        options[name] = {"true": True, "false": False}.get(value, int(value) if value.isdecimal() else value)
    found = convert(checkpoint, source.value, out, options)
    numbers = sum(p.numel() for p in found.model.parameters())
    made = found.shape
    print(f"{out}: {made['name']} for features of {made['in_dim']}, {made['n_classes']} logits, {numbers:,} parameters")
    print("options: " + (_listed(made["options"]) or "none"))
    if found.assumed:
        print(f"not told by the checkpoint: {_listed(found.assumed)}; change with --set")
    if made.get("link") == "sigmoid" and made["n_classes"] > 1:
        print("probabilities: a sigmoid per class, as in its program; they need not sum to 1")
    if found.dropped:
        print(f"left out, since they are computed anew or never used: {', '.join(found.dropped)}")


def _listed(options: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())
