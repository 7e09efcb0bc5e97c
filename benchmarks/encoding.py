"""Do the cores wait while tiles are read from a slide and encoded?

    python benchmarks/encoding.py [SLIDE]

Without a slide, an H&E-like texture is written as a JPEG pyramid. Prints the share of the cores' time that goes into
encoding while tiles come from the file, and the rate divided by that of encoding the same tiles from memory.
Both ways take turns, medians of the rounds. On a machine that is busy with other things the share is too low; the line
after it counts the time a thread of the encoder was ready and waited for a core as well (Linux): only waiting for tiles
lowers that one.
"""

import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
import torch
from reading import texture

from smmil.encoders import Encoder, encode_stream, load_encoder
from smmil.images import open_slide
from smmil.runtime import available_cores
from smmil.synthetic import write_pyramid

TILES, ROUNDS = 128, 3


def corners(path: Path, side: int) -> list[tuple[int, int]]:
    with open_slide(path) as slide:
        width, height = slide.size
    places = [(x, y) for y in range(0, height - side + 1, side) for x in range(0, width - side + 1, side)]
    return places[:TILES]


def tiles(path: Path, side: int) -> Iterator[np.ndarray]:
    """Tiles of the slide, read when they are asked for, with a new handle: no cache is warm."""
    with open_slide(path) as slide:
        for x, y in corners(path, side):
            yield slide.read(x, y, side, side)


def seconds(run: Callable[[], object]) -> tuple[float, float]:
    """Wall time and the time all threads together spent on a core."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - cpu


@dataclass
class Workers:
    """When each thread of the encoder began and ended, and how long it ran or was ready to run in between."""

    marks: dict[int, list[tuple[float, float]]] = field(default_factory=dict)

    def mark(self, *_call: object) -> None:
        with open("/proc/thread-self/schedstat") as numbers:
            running, ready, _ = map(int, numbers.read().split())
        now = time.perf_counter(), (running + ready) / 1e9
        self.marks.setdefault(threading.get_ident(), [now, now])[1] = now

    def share(self) -> float:
        """Share of its time in which a thread did not wait for anything but a core."""
        spans = [(end[0] - start[0], end[1] - start[1]) for start, end in self.marks.values()]
        return sum(active for _, active in spans) / sum(wall for wall, _ in spans)


def share_not_waiting(encoder: Encoder, run: Callable[[], object]) -> float:
    workers = Workers()
    before, after = (
        encoder.network.register_forward_pre_hook(workers.mark),
        encoder.network.register_forward_hook(workers.mark),
    )
    run()
    before.remove()
    after.remove()
    return workers.share()


def reading_alone(path: Path, side: int) -> float:
    """CPU seconds of reading the tiles."""
    return seconds(lambda: sum(1 for _ in tiles(path, side)))[1]


def measure(encoder: Encoder, path: Path) -> dict[str, float]:
    """Share of the cores' time spent encoding, and the rate relative to memory."""
    cores, side = available_cores(), encoder.pixels
    memory = np.stack(list(tiles(path, side)))
    reading = reading_alone(path, side)
    encoder.encode(memory[:16])
    busy, ratio = [], []
    for _ in range(ROUNDS):
        wall, cpu = seconds(lambda: encode_stream(encoder, tiles(path, side)))
        busy.append((cpu - reading) / (cores * wall))
        ratio.append(seconds(lambda: encode_stream(encoder, memory))[0] / wall)
    ready = share_not_waiting(encoder, lambda: encode_stream(encoder, tiles(path, side)))
    rates = {"rate": len(memory) / wall, "reading": reading / len(memory)}
    return {"busy": median(busy), "ratio": median(ratio), "ready": ready} | rates


def main() -> None:
    torch.set_num_threads(available_cores())
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "texture.svs"
        path = Path(sys.argv[1]) if len(sys.argv) > 1 else write_pyramid(written, texture(), mpp=0.5)
        found = measure(load_encoder("efficientnet-lite0", device="cpu"), path)
    print(f"encoding tiles of a slide: {found['rate']:.0f} tiles/s on {available_cores()} cores")
    print(f"cores busy with the encoder: {found['busy']:.2f} of their time (goal 0.90)")
    print(f"threads of the encoder computing or ready to: {found['ready']:.2f} of their time")
    print(f"rate with reading: {found['ratio']:.2f} x the rate of the same tiles from memory")
    print(f"reading alone: {found['reading'] * 1000:.2f} ms of one core per tile")


if __name__ == "__main__":
    main()
