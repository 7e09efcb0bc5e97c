"""The rows of metrics.csv for TensorBoard, if it is installed and asked for."""

from pathlib import Path
from typing import Any

from smmil.errors import MissingExtra


class Board:
    """Writes each epoch's numbers as TensorBoard scalars; after a resume the later epochs are written anew."""

    def __init__(self, folder: Path, epoch: int):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtra("tensorboard", "tensorboard", "training.tensorboard") from None
        self._writer: Any = SummaryWriter(str(folder), purge_step=epoch + 1)

    def add(self, row: dict[str, Any]) -> None:
        for name, value in row.items():
            if name != "epoch":
                self._writer.add_scalar(name, value, row["epoch"])
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
