"""Tables and instance labels that are damaged or made to harm: one line that names the file, in seconds."""

import re
import struct
import zipfile
from contextlib import suppress

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.mutations import BINARY, TEXT, flip_bit, mutations
from support.sandbox import FAILURES, outcomes

from smmil.annotations.labels import read_slice_labels
from smmil.annotations.polygons import read_boxes
from smmil.data.foreign_tables import read_labels
from smmil.data.manifest import Manifest
from smmil.data.tables import read_instance_labels
from smmil.errors import DataError
from smmil.formats import read_bag
from smmil.images.matching import _in_table, find_features
from smmil.prepare.annotate import read_labels as read_sidecar
from smmil.prepare.selection import _read_points


def read_manifest(path):
    return Manifest.read(path).table.to_csv()


def read_parquet_features(path):
    return find_features(path, ["a"])


DOORS = {
    "labels": (read_labels, "id,label\na,0\nb,1\n"),
    "manifest": (read_manifest, "id,path,label\na,a.h5,0\nb,b.h5,1\n"),
    "instance labels": (lambda path: read_instance_labels(path).tolist(), "label\n0\n1\n-1\n"),
    "boxes": (lambda path: read_boxes(path).area.area, "x,y,width,height\n0,0,1,1\n3,4,5,6\n"),
    "slices": (lambda path: read_slice_labels(path).to_csv(), "ID,Label\nID_1_any,0\nID_2_any,1\n"),
    "points": (lambda path: _read_points(path, "a").xy.tolist(), "image,x,y\na,1,2\na,3,4\n"),
    "images": (lambda path: _in_table(path, ["a"]), "id,slide\na,x.svs\nb,y.svs\n"),
    "features": (read_parquet_features, "id,path\na,x.h5\nb,y.h5\n"),
    "sidecar": (lambda path: str(read_sidecar(path)), 'label,share,about\n0,0.5,"{}"\n1,1,\n'),
    "wsinfer": (lambda path: read_bag(path).n, "minx,miny,width,height,prob_a\n0,0,9,9,0.5\n9,0,9,9,0.5\n"),
}


def check(read, files, truth, *, refused=False):
    for file, found in zip(files, outcomes(read, files, truth), strict=True):
        assert found.kind not in FAILURES, (file.name, found)
        assert found.kind == "error" or not refused, (file.name, found)


def damaged(folder, good, count, kinds):
    files = []
    for number, (name, content) in enumerate(mutations(good.read_bytes(), count, 0, kinds)):
        files.append(folder / f"{number}-{name}{good.suffix}")
        files[-1].write_bytes(content)
    return files


@pytest.mark.parametrize("door", DOORS)
def test_no_csv_file_ends_in_a_traceback_or_keeps_us_waiting(tmp_path, door):
    read, text = DOORS[door]
    good = tmp_path / "good.csv"
    good.write_text(text)
    head, rest = text.split("\n", 1)
    hostile = {
        "nul": text.replace("0", "\0"),
        "only nul": "\0" * 5000,
        "digits": text.replace("1", "9" * 5000),
        "infinite": text.replace("1", "1e999"),
        "many names": ",".join([head, *(f"c{i}" for i in range(100_000))]) + "\n" + rest,
        "many commas": "\n\n" + head + "," * 100_000 + "\n" + rest,
        "a wide row": text + "," * 100_000 + "\n",
        "an open quote": f'{head}\n"{"x" * 100}',
        "nothing": "",
        "another encoding": text.encode("utf-16"),
        "an archive": b"PK\3\4" + bytes(100),
    }
    files = []
    for name, content in hostile.items():
        files.append(tmp_path / f"{name}.csv")
        files[-1].write_bytes(content if isinstance(content, bytes) else content.encode())
    truth = read(good)
    check(read, [*files, *damaged(tmp_path, good, 40, TEXT)], truth)
    check(read, [file for file in files if "million" in file.name], truth, refused=True)


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "good.xlsx"
    rows = {"id": [f"s{i}" for i in range(40)], "label": [str(i % 2) for i in range(40)]}
    pd.DataFrame(rows).to_excel(path, index=False)
    return path


def test_damage_to_an_excel_file_is_noticed(tmp_path, book):
    truth = read_labels(book)
    check(read_labels, damaged(tmp_path, book, 105, BINARY), truth)
    found = outcomes(read_labels, damaged(tmp_path, book, 60, (flip_bit,)), truth)
    assert {outcome.kind for outcome in found} <= {"error", "same"}


def changed(book, name, change):
    """The same file with another first sheet."""
    path = book.with_name(name)
    with zipfile.ZipFile(book) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for member in old.namelist():
            content = old.read(member)
            new.writestr(member, change(content) if member.endswith("sheet1.xml") else content)
    return path


def far_cell(column, row):
    cell = f'<row r="{row}"><c r="{column}{row}" t="inlineStr"><is><t>x</t></is></c></row></sheetData>'.encode()
    return lambda sheet: re.sub(rb"<dimension[^>]*>", b"", sheet).replace(b"</sheetData>", cell)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (far_cell("A", 1_048_576), "delete what is far below or right of the table"),
        (far_cell("XFD", 1_048_576), "delete what is far below or right of the table"),
        (far_cell("A", 10**15), "delete what is far below or right of the table"),
        (far_cell("A", "9" * 5000), "not readable as a table"),
        (lambda sheet: sheet + b" " * (300 << 20), "would unpack to 314,5"),
        (lambda sheet: sheet.replace(b"</sheetData>", b"<row/>" * (1 << 20) + b"</sheetData>"), "delete what is far"),
        (lambda sheet: b'<!DOCTYPE x [<!ENTITY a "b">]>' + sheet, "declares a document type"),
    ],
)
def test_an_excel_file_that_grows_when_read_is_refused(book, change, words):
    (found,) = outcomes(read_labels, [changed(book, "hostile.xlsx", change)], None, memory=1 << 30)
    assert found.kind == "error", found
    assert words in found.detail


@pytest.mark.parametrize("name", ["old.xls", "old.xlsx"])
def test_an_old_excel_file_is_called_by_its_name(tmp_path, name):
    (tmp_path / name).write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(4000))
    (found,) = outcomes(read_labels, [tmp_path / name], None)
    assert "no Excel file of today's format (.xlsx)" in found.detail
    assert "openpyxl" not in found.detail
    assert "no such file" in outcomes(read_labels, [tmp_path / "none.xlsx"], None)[0].detail


@pytest.mark.parametrize("read", [read_manifest, read_parquet_features])
def test_parquet_tables(tmp_path, read):
    good, wide, bomb, strange = (tmp_path / f"{name}.parquet" for name in ("good", "wide", "bomb", "strange"))
    Manifest(pd.DataFrame({"id": ["a", "b"], "path": ["a.h5", "b.h5"]}), tmp_path).write(good)
    pq.write_table(pa.table({f"c{i}": [1] for i in range(3000)}), wide)
    many = pa.DictionaryArray.from_arrays(np.zeros(11_000_000, np.int8), ["a"])
    pq.write_table(pa.table({"id": many, "path": many}), bomb)
    pq.write_table(pa.table({"id": [{"a": [1]}], "path": [b"\xff\0"]}), strange)
    truth = read(good)
    check(read, [strange, *damaged(tmp_path, good, 70, BINARY)], truth)
    check(read, [wide, bomb], truth, refused=True)


def flips(data, places):
    for place in places:
        for bit in range(8):
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            yield bytes(changed)


def unnoticed_flips(folder, places):
    """Single flipped bits of a manifest in Parquet that are read as another table; `places` chooses bytes of it."""
    good = folder / "m.parquet"
    rows = [str(n) for n in range(12)]
    Manifest(pd.DataFrame({"id": rows, "path": [f"{n}.h5" for n in rows], "label": rows}), folder).write(good)
    truth, data, found = read_manifest(good), good.read_bytes(), 0
    for changed in flips(data, places(data)):
        good.write_bytes(changed)
        with suppress(DataError):
            found += read_manifest(good) != truth
    return found


def test_numbers_of_rows_in_a_parquet_footer_check_each_other(tmp_path):
    def counts(data):
        footer = len(data) - 8 - struct.unpack("<i", data[-8:-4])[0]
        return [place for place in range(footer, len(data)) if data[place] == 2 * 12]  # 12 as thrift writes it

    assert unnoticed_flips(tmp_path, counts) == 0


@pytest.mark.slow
def test_no_flipped_bit_of_a_parquet_manifest_passes(tmp_path):
    assert unnoticed_flips(tmp_path, lambda data: range(len(data))) == 0


def test_a_parquet_table_may_have_lists_beside_its_texts(tmp_path):
    pq.write_table(pa.table({"id": ["a", "b"], "path": ["a.h5", "b.h5"], "seen": [[1, 2], []]}), tmp_path / "m.parquet")
    assert list(Manifest.read(tmp_path / "m.parquet").table.id) == ["a", "b"]


def npy(header, body=b""):
    text = header.encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body


def test_instance_labels_that_are_damaged_or_lie_about_their_size(tmp_path):
    good = tmp_path / "good.npy"
    np.save(good, np.arange(50) % 2)
    archive = tmp_path / "archive.npz"
    np.savez(archive, labels=np.arange(3))
    start = "{'descr': '<i8', 'fortran_order': False, 'shape': "
    hostile = {
        "archive": archive.read_bytes(),
        "huge": npy(start + "(1000000000000,), }\n"),
        "open": npy(start + "(10,), \n"),
        "quote": npy(start + "(10L,, " + 3 * "'"),
        "deep": npy("(" * 5000),
        "objects": npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n", b"cos\nsystem\n"),
        "none": b"",
    }
    files = []
    for name, content in hostile.items():
        files.append(tmp_path / f"{name}.npy")
        files[-1].write_bytes(content)

    def read(path):
        return read_instance_labels(path).tolist()

    check(read, files, None, refused=True)
    check(read, damaged(tmp_path, good, 140, BINARY), read(good))
