"""What a training step costs on a CUDA card: milliseconds and peak memory of the main models at 1k, 10k and 60k rows.

`python benchmarks/gpu.py` prints one table, each time also as a multiple of ABMIL's at the same size. Without a card it
says so and ends with 0.
"""

import argparse
import statistics
import time

import torch
from rich.console import Console
from rich.table import Table
from slides import slide

from smmil.bag import BagBatch
from smmil.losses import total_loss
from smmil.models import create_model

MODELS = ("abmil", "sm_ap", "transformer_abmil", "clam", "dsmil", "trans_mil")
SIZES = (1_000, 10_000, 60_000)
_BASE = "abmil"


def step_cost(name: str, batch: BagBatch, *, repeats: int, autocast: bool) -> tuple[float, float]:
    """Median milliseconds of a step (forward, backward, Adam) and its peak memory in MB over what it begins with."""
    torch.manual_seed(0)
    model = create_model(name, batch.x.shape[1]).cuda().train()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-4)
    moments, before = [], 0
    for turn in range(repeats + 3):  # three to warm up
        if turn == 3:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
            output = model(batch)
        total_loss(output, batch.y)[0].backward()
        optimiser.step()
        torch.cuda.synchronize()
        moments.append(1000 * (time.perf_counter() - begin))
    return statistics.median(moments[3:]), (torch.cuda.max_memory_allocated() - before) / 1e6


def measured(name: str, batch: BagBatch, options: argparse.Namespace) -> tuple[float, float] | None:
    """The cost of a step; None where the card has too little memory."""
    try:
        return step_cost(name, batch, repeats=options.repeats, autocast=options.autocast)
    except torch.OutOfMemoryError:
        return None
    finally:
        torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--autocast", action="store_true", help="bfloat16 in the forward pass")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU here: nothing measured")
        return
    table = Table("model", "rows", "ms a step", f"x {_BASE}", "MB", title=torch.cuda.get_device_name())
    for size in options.sizes:
        batch = BagBatch.pack([slide(size, options.width)]).to("cuda")
        base = measured(_BASE, batch, options)
        for name in options.models:
            found = base if name == _BASE else measured(name, batch, options)
            if found is None:
                table.add_row(name, f"{size:,}", "out of memory", "", "")
                continue
            ratio = "" if base is None else f"{found[0] / base[0]:.2f}"
            table.add_row(name, f"{size:,}", f"{found[0]:.2f}", ratio, f"{found[1]:,.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
