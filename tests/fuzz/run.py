"""Fuzz readers and print what came out: python tests/fuzz/run.py --count 10000 [--reader NAME …]

--seed N   another series of damage         --detail N   shows the first failures of each reader, with their numbers
--jobs N   readers at a time                --write docs/security.md   puts the table into that page
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from support.mutations import Damaged
from support.sandbox import FAILURES, Outcome, outcomes

from fuzz.readers import READERS, FuzzReader
from fuzz.samples import content

COLUMNS = ("cases", "error", "same", "unnoticed", "bits", "traceback", "hang", "crash", "memory")
PLACE = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # in memory: many small files are written and synced
BEGIN, END = "<!-- table of tests/fuzz/run.py -->", "<!-- end of the table -->"


@dataclass(frozen=True)
class Result:
    """What came out of one reader; `bits` of the unnoticed ones are single flipped bits."""

    reader: FuzzReader
    found: list[Outcome]
    kinds: list[str]
    seconds: float

    @property
    def counts(self) -> Counter[str]:
        bits = sum(o.kind == "unnoticed" and k == "flip_bit" for o, k in zip(self.found, self.kinds, strict=True))
        return Counter(o.kind for o in self.found) + Counter(cases=len(self.found), bits=bits)

    @property
    def failures(self) -> list[str]:
        """One line for each failure: number of the mutation, kind of damage, what happened."""
        rows = enumerate(zip(self.found, self.kinds, strict=True))
        return [f"{self.reader.name} #{n} {k}: {o.kind}: {o.detail}" for n, (o, k) in rows if o.kind in FAILURES]

    @property
    def problems(self) -> list[str]:
        """Failures, and more unnoticed damage than the format may have (beyond chance); empty when all is well."""
        n, most, bits = max(1, len(self.found)), self.reader.ceiling, self.counts["bits"]
        share, chance = self.counts["unnoticed"] / n, 2 * (most * (1 - most) / n) ** 0.5
        over = [f"{self.reader.name}: {share:.1%} unnoticed, at most {most:.0%}: {self.reader.reason}"]
        flipped = [f"{self.reader.name}: {bits} flipped bits unnoticed, though the file carries a checksum"]
        return self.failures + over * (share > most + chance) + flipped * (self.reader.sealed and bits > 0)


def fuzz(reader: FuzzReader, folder: Path, count: int = 0, seed: int = 0, rounds: int = 0) -> Result:
    """Read damaged copies of the reader's sample, each in a limit of time and memory.

    There are `count` of them, or so many `rounds` of all kinds of damage, and at least one round for each file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = reader.make(folder)
    truth = content(reader.read(target))
    if content(reader.read(target)) != truth:
        raise AssertionError(f"{reader.name}: the sample is not read twice alike, so damage cannot be seen")
    files = reader.files(folder, target)
    count = count or max(rounds, len(files)) * len(reader.kinds)
    damaged, begun = Damaged(files, count, seed, reader.kinds), time.monotonic()
    found = outcomes(lambda _: content(reader.read(target)), damaged, truth, named=reader.named(folder, target))
    return Result(reader, found, [damaged.kind(n) for n in range(count)], time.monotonic() - begun)


def table(results: Iterable[Result]) -> str:
    """The results as a table in Markdown, one row per reader and the sums."""
    rows = [(r.reader.name, r.counts, f"{r.reader.ceiling:.0%}{' ✓' if r.reader.sealed else ''}") for r in results]
    total: Counter[str] = sum((counts for _, counts, _ in rows), Counter())
    lines = [f"| reader | {' | '.join(COLUMNS)} | ceiling |", f"|---|{'---:|' * (len(COLUMNS) + 1)}"]
    for name, counts, ceiling in [*rows, ("all", total, "")]:
        lines.append(f"| {name} | {' | '.join(f'{counts[column]:,}' for column in COLUMNS)} | {ceiling} |")
    return "\n".join(lines)


def _fuzz_one(number: int, folder: Path, count: int, seed: int) -> tuple[list[Outcome], list[str], float]:
    """The work of another process, for the reader of this number."""
    result = fuzz(READERS[number], folder, count, seed)
    return result.found, result.kinds, result.seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--reader", action="append", default=[], help="part of a name; may be repeated")
    parser.add_argument("--write", type=Path, help="put the table between the marks of this page")
    parser.add_argument("--detail", type=int, default=0, help="how many failures of each reader to show")
    given = parser.parse_args()
    chosen = [r for r in READERS if not given.reader or any(part in r.name for part in given.reader)]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    forking = multiprocessing.get_context("fork")  # readers are functions without a name: not to be sent elsewhere
    with (
        tempfile.TemporaryDirectory(dir=PLACE) as place,
        ProcessPoolExecutor(given.jobs, forking, torch.set_num_threads, (1,)) as pool,
    ):
        works = [
            pool.submit(_fuzz_one, n, Path(place) / str(n), given.count, given.seed) for n in map(READERS.index, chosen)
        ]
        results = []
        for reader, work in zip(chosen, works, strict=True):
            found, kinds, seconds = work.result()
            results.append(done := Result(reader, found, kinds, seconds))
            print(f"{reader.name}: {dict(done.counts)} in {seconds:.1f} s", file=sys.stderr, flush=True)  # noqa: T201
            for line in done.problems[: given.detail]:
                print(f"  {line[:400]}", file=sys.stderr)  # noqa: T201
    print(table(results))  # noqa: T201
    if given.write:
        page = given.write.read_text(encoding="utf-8")
        before, after = page.split(BEGIN)[0], page.split(END)[1]
        given.write.write_text(f"{before}{BEGIN}\n{table(results)}\n{END}{after}", encoding="utf-8")
    return int(any(r.problems for r in results))


if __name__ == "__main__":
    sys.exit(main())
