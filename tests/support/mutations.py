"""Seeded damage to files: the same seed gives the same bytes."""

import os
import random
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

HUGE = (0, 1, 2**7, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**48, 2**63 - 1, 2**64 - 1)
WORDS = ("\x00", "\x07", "\ufffe", "NaN", "-inf", "1e999", "9" * 400, "../../..", "'", '"', "{", "[" * 50, "\r", ",",
         "&x", "*x", "!!python/name:os.system", "0001-99-99", "null", "\u202e")  # fmt: skip


def flip_bit(data: bytes, dice: random.Random) -> bytes:
    """One bit changed."""
    changed = bytearray(data)
    changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
    return bytes(changed)


def flip_bytes(data: bytes, dice: random.Random) -> bytes:
    """Two to sixteen bytes replaced by random ones."""
    changed = bytearray(data)
    for _ in range(dice.randint(2, 16)):
        changed[dice.randrange(len(changed))] = dice.randrange(256)
    return bytes(changed)


def truncate(data: bytes, dice: random.Random) -> bytes:
    """The end missing, as after an interrupted copy."""
    return data[: dice.randrange(len(data))]


def zero_block(data: bytes, dice: random.Random) -> bytes:
    """A block of zeros, as a file system leaves it after a crash."""
    start, size = dice.randrange(len(data)), dice.choice((4, 16, 512, 4096))
    return data[:start] + bytes(len(data[start : start + size])) + data[start + size :]


def swap_chunks(data: bytes, dice: random.Random) -> bytes:
    """Two chunks of the same size exchanged."""
    size = max(1, min(dice.choice((4, 64, 512)), len(data) // 2))
    first, second = sorted(dice.randrange(len(data) - size + 1) for _ in range(2))
    if second < first + size:
        return flip_bit(data, dice)
    changed = bytearray(data)
    changed[first : first + size], changed[second : second + size] = (
        data[second : second + size],
        data[first : first + size],
    )
    return bytes(changed)


def huge_number(data: bytes, dice: random.Random) -> bytes:
    """An aligned number of 2, 4 or 8 bytes replaced by an extreme one: sizes, counts and offsets of binary formats."""
    width, code = dice.choice(((2, "H"), (4, "I"), (8, "Q")))
    if len(data) < width:
        return flip_bit(data, dice)
    start = dice.randrange(len(data) - width + 1) // 2 * 2
    number = struct.pack(dice.choice("<>") + code, dice.choice(HUGE) % 2 ** (8 * width))
    return data[:start] + number + data[start + width :]


def change_text(data: bytes, dice: random.Random) -> bytes:
    """A number or word of a text replaced by a hostile one, or such a word inserted."""
    text = data.decode("utf-8", "replace")
    tokens = list(re.finditer(r"[\w.+-]+", text))
    word = dice.choice(WORDS)
    if not tokens or dice.random() < 0.2:
        at = dice.randrange(len(text) + 1)
        return (text[:at] + word + text[at:]).encode("utf-8", "replace")
    token = dice.choice(tokens)
    return (text[: token.start()] + word + text[token.end() :]).encode("utf-8", "replace")


def repeat_block(data: bytes, dice: random.Random) -> bytes:
    """A part of the file written twice."""
    start, end = sorted(dice.randrange(len(data) + 1) for _ in range(2))
    return data[:end] + data[start:]


Mutation = Callable[[bytes, random.Random], bytes]
BINARY: tuple[Mutation, ...] = (flip_bit, flip_bytes, truncate, zero_block, swap_chunks, huge_number, repeat_block)
TEXT: tuple[Mutation, ...] = (flip_bit, truncate, change_text, change_text, repeat_block, swap_chunks)


def mutation(data: bytes, number: int, seed: int, kinds: tuple[Mutation, ...]) -> tuple[str, bytes]:
    """The damaged copy of this number, with the name of what was done to it; it never equals the file."""
    dice = random.Random(f"{seed}/{number}")
    change = kinds[number % len(kinds)]
    changed = next((c for c in (change(data, dice) for _ in range(20)) if c != data), data[:-1])
    return change.__name__, changed


def mutations(data: bytes, count: int, seed: int, kinds: tuple[Mutation, ...]) -> Iterator[tuple[str, bytes]]:
    """`count` damaged copies of a file, each with the name of what was done to it; none equals the file."""
    return (mutation(data, number, seed, kinds) for number in range(count))


class Damaged(Sequence[Path]):
    """The files of a sample, damaged one at a time and in place: item `number` writes that damage, gives the file.

    The file damaged before is restored, also by a process that takes over from one that died.
    """

    def __init__(self, files: Sequence[Path], count: int, seed: int, kinds: tuple[Mutation, ...]):
        self.files, self.count, self.seed, self.kinds = [f for f in files if f.stat().st_size], count, seed, kinds
        self._whole = {file: file.read_bytes() for file in self.files}

    def __len__(self) -> int:
        return self.count

    def kind(self, number: int) -> str:
        return self.kinds[number % len(self.kinds)].__name__

    def __getitem__(self, number: int) -> Path:  # type: ignore[override]
        file = self._file(number)
        if number and (before := self._file(number - 1)) != file:
            self._put(before, self._whole[before], 0)
        self._put(file, mutation(self._whole[file], number, self.seed, self.kinds)[1], number + 1)
        return file

    def _file(self, number: int) -> Path:
        """Every kind of damage to each file in turn."""
        return self.files[number // len(self.kinds) % len(self.files)]

    def _put(self, file: Path, data: bytes, number: int) -> None:
        """Another time for each content: what was learnt about a file is kept by size and time."""
        if file.is_symlink() or not file.is_file():
            file.unlink(missing_ok=True)
        file.write_bytes(data)
        os.utime(file, (1_000_000_000 + number, 1_000_000_000 + number))
