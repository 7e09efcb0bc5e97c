"""What Sm costs: against ABMIL, against the matrix products that cannot be avoided, against torchmil.

Run with `make bench`. Every number is a ratio from one interleaved run on one thread; two settings of the allocator are
shown, glibc's own (what users get) and one that keeps large buffers (what the algorithms cost).
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable

import peer
import torch
from clock import interleaved, peak_memory
from rich.console import Console
from rich.table import Table
from slides import STEP, slide, tissue

from smmil.bag import Bag, BagBatch
from smmil.graph import grid_graph
from smmil.models import create_model
from smmil.nn import SmAttentionPool, kernels, sm_exact, sm_posterior

TUNED = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "17179869184"}
GOALS = {
    "step SmAP / ABMIL, N=10k P=2048": ("<=", 1.10),
    "step SmAP / ABMIL, N=60k P=512": ("<=", 1.30),
    "share of the GEMM limit, N=10k P=2048": (">=", 0.90),
    "step torchmil / SmAP, N=10k P=512": (">=", 4),
    "step torchmil / SmAP, N=60k P=512": (">=", 7),
    "memory torchmil / SmAP, N=10k P=512": (">=", 4),
    "memory torchmil / SmAP, N=60k P=512": (">=", 4),
    "pool torchmil / SmAP, N=10k": (">=", 10),
    "pool torchmil / SmAP, N=60k": (">=", 15),
    "batch of 1k, 3k, 10k, 20k: torchmil padded / packed": (">=", 10),
    "exact operator torchmil / smmil, N=10k, 512 columns": (">=", 100),
    "posterior mean and variance / step ABMIL, N=60k P=512": ("<=", 10),
    "posterior by 32 probes / step ABMIL, N=60k P=512": ("<=", 10),
    "graph torchmil / smmil, N=10k": (">=", 50),
    "graph torchmil / smmil, N=60k": (">=", 50),
}
# Fast paths that are switched off in turn; without the compiled products those with reused buffers serve, so the gain
# of the latter is seen only where the former are off too.
PATHS = {"plain": kernels.NAMES, **{f"without {name}": (name,) for name in ("fused_pool", "tanh_scores", "sm_numba")}}
PATHS["without sm_numba, sm_buffers"] = ("sm_numba", "sm_buffers")
SLIDES = ((10_000, 2048), (60_000, 512))


def our_step(model: torch.nn.Module, bags: list[Bag]):
    batch = BagBatch.pack(bags)

    def step():
        model.zero_grad()
        out = model(batch)
        torch.nn.functional.binary_cross_entropy_with_logits(out.logits[:, 0], batch.y.float()).backward()

    return step


def their_step(model: torch.nn.Module, bags: list[Bag]):
    if len(bags) == 1:
        x, adjacency, mask = bags[0].x[None], peer.adjacency(bags[0]), None
    else:
        x, adjacency, mask = peer.padded(bags)
    y = torch.ones(len(bags))

    def step():
        model.zero_grad()
        _, losses = model.compute_loss(y, x, adjacency, mask)
        sum(losses.values()).backward()

    return step


def gemm_limit(bag: Bag):
    """The matrix products of one step and nothing else: embedding, its weight gradient, attention layer three times."""
    n, width = bag.x.shape
    embed, project = torch.randn(512, width), torch.randn(100, 512)
    h, v, grad_embed, grad_project = (
        torch.empty(n, 512),
        torch.empty(n, 100),
        torch.empty(512, width),
        torch.empty(100, 512),
    )

    def products():
        torch.mm(bag.x, embed.T, out=h)
        torch.mm(h, project.T, out=v)
        torch.mm(v.T, h, out=grad_project)
        torch.mm(v, project, out=h)
        torch.mm(h.T, bag.x, out=grad_embed)

    return products


def pool_step(pool, *inputs):
    def step():
        pool.zero_grad()
        inputs[0].grad = None
        out = pool(*inputs)
        (out[0] if isinstance(out, tuple) else out).square().sum().backward()

    return step


def steps(rounds: int) -> dict[str, float]:
    found = {}
    for n, width, turns in ((10_000, 2048, 10 * rounds), (60_000, 512, 3 * rounds)):
        bag = slide(n, width)
        runs = {
            "abmil": our_step(create_model("abmil", width), [bag]),
            "sm_ap": our_step(create_model("sm_ap", width), [bag]),
            "gemm": gemm_limit(bag),
        }
        t = interleaved(runs, turns)
        found[f"step SmAP / ABMIL, N={n // 1000}k P={width}"] = t["sm_ap"] / t["abmil"]
        if width == 2048:
            found["share of the GEMM limit, N=10k P=2048"] = t["gemm"] / t["sm_ap"]
    for n in (10_000, 60_000):
        bag = slide(n, 512)
        t = interleaved(
            {"we": our_step(create_model("sm_ap", 512), [bag]), "they": their_step(peer.sm_abmil(512), [bag])}, rounds
        )
        found[f"step torchmil / SmAP, N={n // 1000}k P=512"] = t["they"] / t["we"]
    return found


def pools(rounds: int) -> dict[str, float]:
    found = {}
    for n in (10_000, 60_000):
        bag = slide(n, 512)
        h = bag.x.relu().requires_grad_()
        offsets = torch.tensor([0, n])
        theirs = h.detach()[None].clone().requires_grad_()
        runs = {
            "we": pool_step(SmAttentionPool(512, 100), h, offsets, bag.graph),
            "they": pool_step(peer.sm_pool(), theirs, peer.adjacency(bag)),
        }
        t = interleaved(runs, rounds)
        found[f"pool torchmil / SmAP, N={n // 1000}k"] = t["they"] / t["we"]
    return found


def batches(rounds: int) -> dict[str, float]:
    bags = [slide(n, 512, seed) for seed, n in enumerate((1000, 3000, 10_000, 20_000))]
    runs = {"we": our_step(create_model("sm_ap", 512), bags), "they": their_step(peer.sm_abmil(512), bags)}
    t = interleaved(runs, rounds)
    return {"batch of 1k, 3k, 10k, 20k: torchmil padded / packed": t["they"] / t["we"]}


def exact(rounds: int) -> dict[str, float]:
    bag = slide(10_000, 512)
    graph, theirs, dense = bag.graph.normalized(), peer.exact_sm(), peer.adjacency(bag, dense=True)
    runs = {"we": lambda: sm_exact(bag.x, graph, 0.5), "they": lambda: theirs(bag.x[None], dense)}
    t = interleaved(runs, max(1, rounds // 3))
    return {"exact operator torchmil / smmil, N=10k, 512 columns": t["they"] / t["we"]}


def posterior(rounds: int) -> dict[str, float]:
    """Mean and variance of every instance, exactly and by probes, over one training step of ABMIL."""
    bag = slide(60_000, 512)
    graph, u = bag.graph.normalized(), bag.x[:, 0]
    noise = bag.x[:, 1].exp()
    runs = {
        "step": our_step(create_model("abmil", 512), [bag]),
        "exact": lambda: sm_posterior(u, graph, noise, 1.0),
        "probes": lambda: sm_posterior(u, graph, noise, 1.0, method="probes"),
    }
    t = interleaved(runs, rounds)
    return {
        "posterior mean and variance / step ABMIL, N=60k P=512": t["exact"] / t["step"],
        "posterior by 32 probes / step ABMIL, N=60k P=512": t["probes"] / t["step"],
    }


def graphs(rounds: int) -> dict[str, float]:
    found = {}
    for n in (10_000, 60_000):
        coords = tissue(n)
        runs = {
            "we": lambda c=coords: grid_graph(c, STEP).normalized(),
            "they": lambda c=coords: peer.build_graph(c, STEP),
        }
        t = interleaved(runs, 5 * rounds)  # torchmil takes now 0.1 s, now 0.26 s
        found[f"graph torchmil / smmil, N={n // 1000}k"] = t["they"] / t["we"]
    return found


def memory(rounds: int) -> dict[str, float]:
    """Peak over the features, each measured in a process of its own."""
    found = {}
    for n in (10_000, 60_000):
        peaks = {who: float(_again(["--peak", who, str(n)], {})) for who in ("sm_ap", "torchmil")}
        found[f"memory torchmil / SmAP, N={n // 1000}k P=512"] = peaks["torchmil"] / peaks["sm_ap"]
    return found


def one_peak(who: str, n: int, width: int = 512) -> float:
    bag = slide(n, width)
    if who == "torchmil":
        step = their_step(peer.sm_abmil(width), [bag])
    else:
        step = our_step(create_model("sm_ap", width), [bag])
        step = _switched(step, who) if who in PATHS else step
    our_step(create_model("sm_ap", 512), [slide(1100, 512)])()  # large enough to load the compiled code, as torch is
    return peak_memory(step)


def paths(rounds: int) -> dict[str, float]:
    """A SmAP step with fast paths switched off, over the step with all of them: time, then peak memory."""
    found = {}
    for n, width in SLIDES:
        step = our_step(create_model("sm_ap", width), [slide(n, width)])
        t = interleaved({"all": step, **{path: _switched(step, path) for path in PATHS}}, 2 * rounds)
        found |= {f"time {path} / all, N={n // 1000}k P={width}": t[path] / t["all"] for path in PATHS}
    for n, width in SLIDES:
        peaks = {path: float(_again(["--peak", path, str(n), str(width)], {})) for path in ("sm_ap", *PATHS)}
        for path in PATHS:
            found[f"memory {path} / all, N={n // 1000}k P={width}"] = peaks[path] / peaks["sm_ap"]
    return found


def _switched(step: Callable[[], object], path: str) -> Callable[[], None]:
    def run() -> None:
        with kernels.disabled(*PATHS[path]):
            step()

    return run


PARTS = {f.__name__: f for f in (steps, memory, pools, batches, exact, posterior, graphs, paths)}


def _again(arguments: list[str], environment: dict[str, str]) -> str:
    command = [sys.executable, __file__, *arguments]
    return subprocess.run(
        command, env={**os.environ, **environment}, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def show(default: dict[str, float], tuned: dict[str, float]) -> None:
    table = Table(title=f"Sm, one thread, torch {torch.__version__}")
    for column in ("ratio", "goal", "glibc default", "tuned allocator", ""):
        table.add_column(column, justify="left" if column == "ratio" else "right")
    for name in default:
        sign, goal = GOALS.get(name, (">=", 0))
        good = default[name] <= goal if sign == "<=" else default[name] >= goal
        table.add_row(
            name,
            f"{sign} {goal:g}" if goal else "",
            f"{default[name]:.2f}",
            f"{tuned.get(name, float('nan')):.2f}",
            ("ok" if good else "missed") if goal else "",
        )
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=list(PARTS))
    parser.add_argument(
        "--rounds", type=int, default=3, help="turns each competitor takes, times what a part needs to be steady"
    )
    parser.add_argument("--json", action="store_true", help="print the ratios of this process only, as JSON")
    parser.add_argument(
        "--peak", nargs="+", metavar=("WHO", "N"), help="MB at the peak of one step; a width may follow"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if options.peak:
        print(one_peak(options.peak[0], *map(int, options.peak[1:])))
    elif options.json:
        print(json.dumps({k: v for part in options.parts for k, v in PARTS[part](options.rounds).items()}))
    else:
        again = ["--json", "--rounds", str(options.rounds), "--parts", *options.parts]
        default, tuned = (json.loads(_again(again, setting)) for setting in ({}, TUNED))
        show(default, tuned)


if __name__ == "__main__":
    main()
