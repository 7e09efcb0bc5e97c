"""Hostile files built by code: put in the place of a good one, under its name. None may hang, crash or be executed."""

import gzip
import io
import json
import os
import pickle
import random
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import h5py
import numpy as np
import torch

GIGABYTES = 4
MARKER = "executed"


class Payload:
    """Unpickled, it writes the marker; nothing else."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return open, (str(self.marker), "w")


@cache
def deflated_zeros(gigabytes: int) -> bytes:
    """Zeros packed to a thousandth: one packed megabyte, repeated."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return block * (gigabytes << 10) + packer.flush()


def zip_bomb(name: str) -> bytes:
    """A zip whose parts, under names that readers ask for, unpack to gigabytes."""
    if name.endswith(".xlsx"):
        parts = ["xl/worksheets/sheet1.xml"]
        more = {"[Content_Types].xml": XLSX_TYPES, "xl/workbook.xml": XLSX_BOOK, "_rels/.rels": XLSX_RELS,
                "xl/_rels/workbook.xml.rels": XLSX_SHEETS}  # fmt: skip
    else:
        parts, more = ["facts.npy", "case/data.pkl", "case/data/0"], {}
    data, stream = deflated_zeros(GIGABYTES), io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for part, text in more.items():
            archive.writestr(part, text)
    with zipfile.ZipFile(stream, "a") as archive:
        for part in parts:
            entry = zipfile.ZipInfo(part)
            entry.compress_type, entry.CRC = zipfile.ZIP_DEFLATED, 0
            entry.file_size, entry.compress_size = (GIGABYTES << 30) - 1, len(data)
            entry.header_offset = stream.tell()
            stream.write(entry.FileHeader() + data)
            archive.filelist.append(entry)
            archive.NameToInfo[part] = entry
        archive.start_dir, archive._didModify = stream.tell(), True
    return stream.getvalue()


TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml."
XLSX_TYPES = (
    '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
    f'<Override PartName="/xl/workbook.xml" ContentType="{TYPE}sheet.main+xml"/>'
    f'<Override PartName="/xl/worksheets/sheet1.xml" ContentType="{TYPE}worksheet+xml"/></Types>'
)
LINKS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
XLSX_BOOK = (
    f'<workbook xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main" xmlns:r="{LINKS}">'
    '<sheets><sheet name="a" sheetId="1" r:id="rId1"/></sheets></workbook>'
)
RELATIONS = '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
XLSX_RELS = (
    f'{RELATIONS}<Relationship Id="rId1" Type="{LINKS}/officeDocument" Target="xl/workbook.xml"/></Relationships>'
)
XLSX_SHEETS = (
    f'{RELATIONS}<Relationship Id="rId1" Type="{LINKS}/worksheet" Target="worksheets/sheet1.xml"/></Relationships>'
)


def gzip_bomb(_: str) -> bytes:
    header = gzip.compress(b"")[:10]
    return header + deflated_zeros(GIGABYTES) + struct.pack("<II", 0, (GIGABYTES << 30) & 0xFFFFFFFF)


def huge_array(_: str) -> bytes:
    """A NumPy file of a hundred bytes that promises a hundred terabytes."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f8", "fortran_order": False, "shape": (10**10, 10**3)})
    return stream.getvalue()


def huge_picture(_: str) -> bytes:
    """A PNG of 60,000 × 60,000 pixels in some bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


def huge_dataset(_: str) -> bytes:
    """HDF5 with empty data sets of a hundred terabytes."""
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        for name in ("features", "feats", "coords"):
            file.create_dataset(name, (10**10, 10**3), "f8", chunks=(1000, 1000))
    return stream.getvalue()


def alias_bomb(_: str) -> bytes:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    return "\n".join(lines).encode()


def entity_bomb(_: str) -> bytes:
    laughs = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 11))
    document = f'<!DOCTYPE a [<!ENTITY l0 "lol">{laughs}]><ASAP_Annotations>&l10;</ASAP_Annotations>'
    return f'<?xml version="1.0"?>{document}'.encode()


def star(_: str) -> bytes:
    """A polygon of 3,000 corners that crosses itself at every one of them."""
    turn = np.arange(3001) * np.pi * 1499 / 1500
    corners = np.round(24 + 20 * np.stack([np.cos(turn), np.sin(turn)], 1), 3).tolist()
    return json.dumps({"type": "Polygon", "coordinates": [corners]}, indent=0).encode()


def random_bytes(_: str) -> bytes:
    return random.Random(0).randbytes(5000)


BYTES: dict[str, Callable[[str], bytes]] = {
    "empty": lambda _: b"",
    "zeros": lambda _: bytes(5000),
    "noise": random_bytes,
    "brackets": lambda _: b"[" * 100_000,
    "braces": lambda _: b'{"a":' * 100_000,
    "dashes": lambda _: b"- " * 20_000,
    "xml_tree": lambda _: b"<a>" * 100_000,
    "digits": lambda _: b"id,label,path\n" + b"9" * 5_000 + b"," + b"9" * 5_000 + b",a\n",
    "number": lambda _: b"9" * 5_000,
    "columns": lambda _: b"id,label,path," + b"a," * 300_000 + b"\n1,1,1\n",
    "control": lambda _: bytes(range(32)) * 10,
    "date": lambda _: b"a: 0001-99-99\n",
    "alias_bomb": alias_bomb,
    "recursive_alias": lambda _: b"a: &a [*a]\nb: *a\n",
    "python_tag": lambda _: b"!!python/object/apply:os.getpid []\n",
    "entity_bomb": entity_bomb,
    "star": star,
    "zip_bomb": zip_bomb,
    "gzip_bomb": gzip_bomb,
    "huge_array": huge_array,
    "huge_picture": huge_picture,
    "huge_dataset": huge_dataset,
}


@cache
def _built(kind: str, suffix: str) -> bytes:
    return BYTES[kind](suffix)


def _pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps({"state_dict": Payload(path.parent / MARKER)}))


def _torch_pickle(path: Path) -> None:
    torch.save({"state_dict": Payload(path.parent / MARKER)}, path)


def _numpy_pickle(path: Path) -> None:
    with path.open("wb") as stream:
        np.save(stream, np.array([Payload(path.parent / MARKER)], dtype=object), allow_pickle=True)


def _folder(path: Path) -> None:
    path.mkdir()


def _lost_link(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


def _loop(path: Path) -> None:
    path.symlink_to(path)


PLACED: dict[str, Callable[[Path], None]] = {
    "pickle": _pickle,
    "torch_pickle": _torch_pickle,
    "numpy_pickle": _numpy_pickle,
    "folder": _folder,
    "lost_link": _lost_link,
    "loop": _loop,
}
# A pipe or device that the user names may be meant (`<(…)`); lying in a folder, or inside a sample, it is not.
PIPES: dict[str, Callable[[Path], None]] = {
    "pipe": lambda path: os.mkfifo(path),
    "device": lambda path: path.symlink_to("/dev/zero"),
}


class Hostile(Sequence[Path]):
    """Every hostile file in the place of each file of a sample; asking for one puts it there, restored is the other."""

    def __init__(self, files: Sequence[Path], pipes: bool = True):
        self._whole = {file: file.read_bytes() for file in files}
        kinds = [*BYTES, *PLACED, *(PIPES if pipes else ())]
        self.cases = [(kind, file) for file in files for kind in kinds]
        for file in files:  # once, before another process reads them
            for kind in BYTES:
                _built(kind, file.suffix)

    def __len__(self) -> int:
        return len(self.cases)

    def __getitem__(self, number: int) -> Path:  # type: ignore[override]
        kind, file = self.cases[number]
        if number and (before := self.cases[number - 1][1]) != file:
            _clear(before)
            before.write_bytes(self._whole[before])
        _clear(file)
        if kind in BYTES:
            file.write_bytes(_built(kind, file.suffix))
        else:
            (PLACED | PIPES)[kind](file)
        return file


def _clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
