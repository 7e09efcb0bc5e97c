"""Where the weights of encoders lie on this machine, and how they get there when the user asks for it.

Beside fetched weights lies a record of the commit and the checksum they came with; weights that differ from it are
refused. Nothing here asks a server but `fetch_weights`.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlparse
from urllib.request import Request, urlopen

import torch

from smmil.encoders.table import EncoderInfo, encoder_info
from smmil.errors import ConfigError, DataError, MissingExtra
from smmil.files import check_once, read_json, write_json

_RECORD = "fetched.json"
_CONFIG = "config.json"
_USUAL = ("model.safetensors", "pytorch_model.bin")
_CHUNK = 1 << 20
_PATIENCE_S = 60  # without a byte from the server


def _weight_folders() -> list[Path]:
    """Where weights are looked for: $SMMIL_WEIGHTS when it is set, then torch's own folder of checkpoints."""
    own = os.environ.get("SMMIL_WEIGHTS")
    return ([Path(own).expanduser()] if own else []) + [Path(torch.hub.get_dir()) / "checkpoints"]


def find_weights(row: EncoderInfo, given: Path | None = None) -> Path | None:
    """The file of weights of this row: the given one (or in the given folder), in our folders, or in the hub's cache.

    Fetched weights are compared with the record of their checksum.
    """
    names = tuple(Path(file).name for file in row.files)
    if given is not None:
        inside = [given / name for name in names if (given / name).is_file()] if given.is_dir() else []
        return next(iter(inside), given)
    places = (folder / name for folder in _weight_folders() for name in row.files)
    path = next((path for path in places if path.is_file()), None)
    if path is None and row.family == "hub":
        with suppress(MissingExtra):  # without the library there is no cache of its
            path = _cached(row.hub, names, row.revision)
    if path is not None and path.with_name(_RECORD).is_file():
        check_once(path, _check_record)
    return path


def _commit_of(path: Path) -> str | None:
    """The commit of the hub that a file of weights came from: from its record, or its place in the hub's cache."""
    cached = path.parent.name if path.parent.parent.name == "snapshots" else None
    return _record(path.parent).get("revision", cached)


def _record(folder: Path) -> dict[str, str]:
    """What the weights in this folder were when they were fetched; empty: they were not."""
    path = folder / _RECORD
    content = read_json(path, dict) if path.is_file() else {}
    for key in ("file", "revision", "sha256") if content else ():
        if not isinstance(content.get(key), str):
            raise DataError(f"{path}: does not say the {key} of the weights; remove {folder} and fetch them again")
    return content


def _no_weights(row: EncoderInfo, more: str = "") -> DataError:
    """An error that says which file belongs where, and the command that fetches it; nothing is fetched by itself."""
    folders = " or ".join(map(str, _weight_folders()))
    if row.hub or row.url:
        more = f", or run `smmil encoders fetch {row.name}` where there is a network{_access(row)}{more}"
    return DataError(
        f"encoder {row.name}: no weights; put {row.files[0]} into {folders} (set SMMIL_WEIGHTS to use another folder)"
        f"{more}, or give the file with --weights FILE (in Python weights=); efficientnet-lite0 comes with the program "
        "and needs no download"
    )


def _access(row: EncoderInfo) -> str:
    """What the owner of the weights asks first."""
    ask = {"approval": "ask for access to", "terms": "accept the terms of"}.get(row.gate)
    return "" if ask is None else f" ({ask} huggingface.co/{row.hub} first, then set HF_TOKEN)"


def _cached(hub: str, names: tuple[str, ...], revision: str | None = None) -> Path | None:
    """A file of the hub's cache on this machine; asks no server."""
    try:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError
    except ModuleNotFoundError as problem:
        raise MissingExtra(str(problem.name), "timm", f"looking for {hub}") from None
    try:
        found = [try_to_load_from_cache(hub, name, revision=revision) for name in names]
    except HFValidationError as problem:
        raise ConfigError(f"encoder: {hub!r} is not a name on the hub ({problem}); write hf-hub:owner/name") from None
    return next((Path(path) for path in found if isinstance(path, str)), None)


OnBytes = Callable[[int, int | None], object]


def fetch_weights(name: str, *, token: str | None = None, on_bytes: OnBytes | None = None) -> Path:
    """Download the weights of an encoder into the first of our folders; the path of the file.

    An interrupted transfer is resumed, the checksum compared, and commit and checksum written beside the weights; a
    second call finds them there. Weights that the hub changes afterwards are refused, not replaced.

    token     access token of the hub for gated weights; None: $HF_TOKEN, or what `hf auth login` stored
    on_bytes  called with the number of bytes that are here, and of all
    """
    row = encoder_info(name)
    if not (row.hub or row.url):
        raise ConfigError(f"encoder {name}: its weights cannot be fetched by name; see the page about encoders")
    folder, tell = _weight_folders()[0], on_bytes or (lambda *_: None)
    with _explained(row):
        if row.hub:
            return _fetch_from_hub(row, folder / row.hub.replace("/", "--"), token, tell)
        path, mark = folder / row.files[0], re.search(r"-([0-9a-f]{8})\.", row.files[0])  # as torchvision names them
        if not path.is_file():
            _transfer(row.url, path, "" if mark is None else mark[1], {}, tell)
        return path


def _fetch_from_hub(row: EncoderInfo, folder: Path, token: str | None, tell: OnBytes) -> Path:
    from huggingface_hub import HfApi

    record = _record(folder)
    revision = row.revision or record.get("revision") or "main"
    info: Any = HfApi(token=token).model_info(row.hub, revision=revision, files_metadata=True)
    there = {entry.rfilename: entry for entry in info.siblings}
    wanted = tuple(Path(file).name for file in row.files) if row.family == "hub" else _USUAL
    file = next((file for file in wanted if file in there), None)
    if file is None:
        raise DataError(
            f"encoder {row.name}: {row.hub} at {info.sha} has none of {', '.join(wanted)}; tell us about it"
        )
    path, stated = folder / file, getattr(there[file].lfs, "sha256", None)
    if record and (record.get("revision"), record.get("sha256")) != (info.sha, stated or record.get("sha256")):
        raise DataError(
            f"encoder {row.name}: {row.hub} now has other weights than were fetched (commit {info.sha}, then "
            f"{record.get('revision')}); keep yours, or remove {folder} to take the new ones"
        )
    for one in (*([_CONFIG] if row.family == "timm" else []), file):
        if not (folder / one).is_file():
            _transfer(*_address(row.hub, one, info.sha, folder, stated if one == file else None, token), tell)
    found = _sha256(path)
    content = {"hub": row.hub, "file": file, "revision": info.sha, "sha256": found, "bytes": path.stat().st_size}
    write_json(folder / _RECORD, content | {"licence": row.licence, "gate": row.gate})
    return path


def _address(
    hub: str, file: str, commit: str, folder: Path, stated: str | None, token: str | None
) -> tuple[str, Path, str, dict[str, str]]:
    """Where a file of the hub is transferred from and to, its checksum, and the token where the hub itself sends it."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.utils import build_hf_headers

    url = hf_hub_url(hub, file, revision=commit)
    place = get_hf_file_metadata(url, token=token).location
    if urlparse(place).scheme not in ("http", "https"):
        raise DataError(f"{url}: leads to {place[:200]}, which is no address of the network; nothing was fetched")
    headers = build_hf_headers(token=token) if urlparse(place).netloc == urlparse(url).netloc else {}
    return place, folder / file, stated or "", headers


def _transfer(url: str, path: Path, checksum: str, headers: dict[str, str], tell: OnBytes) -> None:
    """Stream a file whose SHA-256 begins with `checksum` to `path`; what an earlier call left of it is continued.

    The library of the hub resumes within one call only.
    """
    part = path.with_name(f"{path.name}.{checksum[:16]}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    start = part.stat().st_size if part.is_file() else 0
    request = Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    for name, value in headers.items():
        request.add_unredirected_header(name, value)  # the token is for this server alone
    with _continued(part, request) as answer:
        resumed = getattr(answer, "status", None) == 206
        length = answer.headers.get("Content-Length")
        total = None if length is None else int(length) + start * resumed
        with part.open("ab" if resumed else "wb") as file:
            while chunk := answer.read(_CHUNK):
                file.write(chunk)
                tell(file.tell(), total)
    if total is not None and (size := part.stat().st_size) != total:
        if size > total:  # two processes went on with the same part
            part.unlink()
        raise OSError(f"the connection broke after {size:,} of {total:,} bytes")
    found = _sha256(part)
    if not found.startswith(checksum):
        part.unlink()
        raise DataError(f"{path}: checksum {found[:16]}…, but {checksum[:16]}… is stated; removed, fetch it again")
    os.replace(part, path)


def _continued(part: Path, request: Request) -> Any:
    """The answer to a request for the rest of a file; one that is whole already is asked for from its beginning."""
    try:
        return urlopen(request, timeout=_PATIENCE_S)
    except HTTPError as problem:
        if problem.code != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
    part.unlink()  # all was here, or more; which of it, nobody knows
    request.remove_header("Range")
    return urlopen(request, timeout=_PATIENCE_S)


@contextmanager
def _explained(row: EncoderInfo) -> Iterator[None]:
    """Errors of the network in one line that says what to do."""
    try:
        from huggingface_hub import errors
    except ModuleNotFoundError as problem:
        raise MissingExtra(str(problem.name), "timm", f"fetching {row.name}") from None
    where = row.hub or row.url
    try:
        yield
    except (errors.GatedRepoError, errors.RepositoryNotFoundError) as problem:
        status = getattr(problem.response, "status_code", "refused")
        raise DataError(
            f"encoder {row.name}: {where} does not let you in ({status}); ask for access on huggingface.co/{where}, "
            "then set HF_TOKEN to a token of your account (or run `hf auth login`) and repeat the command"
        ) from None
    except errors.RevisionNotFoundError:
        raise DataError(
            f"encoder {row.name}: {where} no longer has the commit {row.revision}; tell us about it"
        ) from None
    except DataError:
        raise
    except Exception as problem:  # the libraries below share no class of errors for a lost connection
        if not _of_network(problem):
            raise
        cause = " ".join(str(problem).split())[:160] or type(problem).__name__
        raise DataError(
            f"encoder {row.name}: {where} could not be fetched ({cause}); check the network and repeat the command, "
            f"which goes on where it stopped; or fetch it elsewhere and put {row.files[0]} into {_weight_folders()[0]}"
        ) from None


def _of_network(problem: Exception) -> bool:
    """Whether an exception is one of the network: an OSError, or one of a library for HTTP."""
    libraries = ("http", "requests", "urllib")
    return isinstance(problem, OSError) or any(kind.__module__.startswith(libraries) for kind in type(problem).__mro__)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_record(path: Path) -> None:
    """Fetched weights are still what was fetched."""
    record = _record(path.parent)
    if record.get("file") == path.name and record.get("sha256") != _sha256(path):
        raise DataError(f"{path}: changed since it was fetched (see {_RECORD} beside it); remove it and fetch it again")
