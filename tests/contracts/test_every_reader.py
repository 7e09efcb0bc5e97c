"""Every reader of the project has a sample for fuzzing: the entries of its registries, and every call of a parser."""

import ast
import re
import sys
from pathlib import Path

import pytest
from fuzz.readers import READERS, names

from smmil.annotations.masks import PANDA
from smmil.data import sources
from smmil.foreign_weights.programs import PROGRAMS
from smmil.formats import READERS as FORMATS
from smmil.images.opening import READERS as SLIDES
from smmil.prepare.annotate import KINDS

SOURCE = Path(__file__).parents[2] / "src" / "smmil"
REGISTRIES = {
    "format": {reader.name for reader in FORMATS},
    "slide": set(SLIDES),
    "annotation": {*KINDS, *PANDA} - {"auto"},
    "weights": set(PROGRAMS),
    "source": set(sources.NAMES),
}
# Calls that turn the bytes of a file into something else.
PARSER = re.compile(
    r"read_(csv|excel|parquet|table|json|text|feather|pickle|xml|html|hdf|sql)|(np|torch|nibabel|nib|yaml)\.(\w*load\w*)|"
    r"loads|safe_open|load_file|dcmread|TiffFile|imread|Image\.open|OpenSlide|detect_format|h5py\.File|open_group|ZipFile|"
    r"parse_yaml|\w*parser\.Parse|fromfile|memmap|load_workbook|timm\.create_model"
)
# Functions that call a parser on nothing a stranger could have written, each with the reason.
EXEMPT = {
    "cli/experiment.py:_parameters": "text of the command line",
    "cli/train.py:_refuse_two_values": "text of the command line",
    "config.py:_apply": "text of the command line",
    "cli/source.py:source": "the file that the same command has just written",
    "encoders/networks.py:_prepare_torchvision": "a file of an installed package",
    "encoders/hub.py:_hub_network": "builds the network of a row of the table; its weights are read by _read_tensors",
    "encoders/networks.py:_timm_network": "builds a network by its name; its weights are read by _read_tensors",
    "experiments/paper/__init__.py:paper_table": "a file of this package",
    "experiments/study.py:_protocol": "a file of this package",
    "web/__init__.py:static_text": "a file of this package",
    "experiments/grid.py:_check_buildable": "text made from settings that were read and checked before",
    "experiments/run.py:_train_and_measure": "run.json of the training that the same function has just done",
    "prepare/case.py:_mark_truth": "a preview for looking, which is left alone when it cannot be read",
    "formats/native.py:_fill": "text that is about to be written",
    "packaging/writing.py:_fill": "text that is about to be written",
    "ranks.py:_exchange": "messages among the processes of one run, which the user's own torchrun connects",
    "packaging/loading.py:_preparation": "compared as a whole, as in prepare/pipeline.py:_bind_folder",
    "train/folder.py:write_facts": "text that is about to be written",
    "train/folder.py:add_timing": "lines are added to it; nothing in it is parsed",
}


def parsing_functions(text: str) -> dict[int, str]:
    """First line and name of every function that calls a parser itself (not to write a file)."""
    found: dict[int, str] = {}

    def visit(node: ast.AST, function: ast.FunctionDef | None) -> None:
        if isinstance(node, ast.FunctionDef):
            function = node
        if isinstance(node, ast.Call) and function is not None:
            called, modes = ast.unparse(node.func), [a.value for a in node.args if isinstance(a, ast.Constant)]
            last = called.rpartition(".")[2]
            if (
                PARSER.fullmatch(called) or PARSER.fullmatch(last) or re.search(rf"\.({PARSER.pattern})$", called)
            ) and ("w" not in modes):
                found[min([function.lineno, *(d.lineno for d in function.decorator_list)])] = function.name
        for child in ast.iter_child_nodes(node):
            visit(child, function)

    visit(ast.parse(text), None)
    return found


@pytest.mark.parametrize("kind", REGISTRIES)
def test_every_entry_of_a_registry_is_fuzzed(kind):
    missing = sorted(REGISTRIES[kind] - names(kind))
    assert not missing, f"reader {kind}:{missing[0]} has no sample for fuzzing; add one to tests/fuzz/readers.py"


def test_the_names_of_the_samples_differ():
    assert len({reader.name for reader in READERS}) == len(READERS)


def test_a_new_call_of_a_parser_is_found():
    code = (
        "def f(p):\n    import pandas as pd\n    return pd.read_csv(p)\n\ndef g(p):\n    with h5py.File(p, 'w'): pass\n"
    )
    assert parsing_functions(code) == {1: "f"}


def test_every_call_of_a_parser_is_reached_by_a_sample(tmp_path):
    doors = {
        (str(path), line): f"{path.relative_to(SOURCE).as_posix()}:{name}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line, name in parsing_functions(path.read_text(encoding="utf-8")).items()
    }
    called = set()

    def note(frame, event, _):
        if event == "call":
            called.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

    for number, reader in enumerate(READERS):
        (tmp_path / str(number)).mkdir()
        target = reader.make(tmp_path / str(number))
        sys.setprofile(note)
        try:
            reader.read(target)
        finally:
            sys.setprofile(None)
    unread = sorted(name for place, name in doors.items() if place not in called and name not in EXEMPT)
    assert not unread, f"reader {', '.join(unread)} has no sample for fuzzing; add one to tests/fuzz/readers.py"
    assert sorted(set(EXEMPT) - set(doors.values())) == [], "exempt, but there is no such reader any more"
