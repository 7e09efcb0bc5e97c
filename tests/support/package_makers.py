"""Names that must not be told, slides, and a comparison of folders, for the tests of packages."""

from smmil.packaging.loading import _write_sums
from support import prepare_makers as makers

QUICK = ("training.epochs=2", "training.threads=1", "model.options.dim=8", "model.options.att_dim=4", "data.folds=2",
         "data.val_share=0.5", "training.lr=1e-2", "training.warmup_epochs=1", "model.name=sm_ap")  # fmt: skip
PATIENT, CASE, FOLDER = "Meier-Anna-1931", "acc4711", "home_of_eva_geheim"


def slide(path, seed: int, positive: bool):
    """Noisy tissue; positive slides have a dark square in it."""
    image = makers.speckled(seed, 256)
    if positive:
        image[96:128, 96:128] = makers.PLANTED
    return makers.write_slide(path, image)


def same_files(one, other) -> bool:
    names = [sorted(path.name for path in folder.glob("*.npz")) for folder in (one, other)]
    assert names[0]
    return names[0] == names[1] and all((one / n).read_bytes() == (other / n).read_bytes() for n in names[0])


def resum(folder) -> None:
    """SHA256SUMS anew, as somebody would who changes a file on purpose."""
    (folder / "SHA256SUMS").unlink()
    _write_sums(folder)
