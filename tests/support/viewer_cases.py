"""Studies for the tests of the viewer: slides with a planted square, scans, models, bags; and how to ask the server."""

import asyncio
import json
from typing import NamedTuple
from urllib.parse import unquote

import numpy as np

from smmil.bag import Bag
from smmil.formats import write_bag
from smmil.prediction import Prediction
from smmil.viewer.data import ViewerData
from smmil.viewer.server import _create_app
from support.export_makers import scan_case, slide_case


def renamed(prediction, id_, **changes):
    return Prediction(**{**vars(prediction), "id": id_, **changes})


def save(folder, *predictions):
    for number, prediction in enumerate(predictions):
        prediction.save(folder / f"{number:03}.npz")
    return folder


class Answer(NamedTuple):
    status_code: int
    headers: dict
    content: bytes

    @property
    def text(self):
        return self.content.decode()

    def json(self):
        return json.loads(self.content)


class Client:
    """Asks the application as uvicorn does, without a client library that would mend the address on the way."""

    def __init__(self, app, host="127.0.0.1:8000"):
        self.app, self.host = app, host

    def get(self, path, headers=None, method="GET"):
        where, _, query = path.partition("?")
        return self.raw(where.encode(), query.encode(), headers, method)

    def raw(self, path, query=b"", headers=None, method="GET"):
        return asyncio.run(self._ask(path, query, headers, method))

    def all(self, requests):
        """The answers to many (raw path, query), in order."""

        async def each():
            return [await self._ask(path, query) for path, query in requests]

        return asyncio.run(each())

    async def _ask(self, path, query, headers=None, method="GET"):
        got = {"status": None, "headers": {}, "body": b""}
        lines = {"host": self.host, **(headers or {})}
        scope = {
            "type": "http", "http_version": "1.1", "method": method, "scheme": "http", "root_path": "",
            "path": unquote(path.decode("latin-1")), "raw_path": path, "query_string": query,
            "headers": [(k.lower().encode(), v.encode("latin-1")) for k, v in lines.items() if v is not None],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000),
        }  # fmt: skip

        async def receive():
            if "asked" in got:
                await asyncio.Event().wait()  # the browser stays until it has its answer
            got["asked"] = True
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message):
            if message["type"] == "http.response.start":
                got["status"] = message["status"]
                got["headers"] = {k.decode().lower(): v.decode("latin-1") for k, v in message["headers"]}
            else:
                got["body"] += message.get("body", b"")

        await self.app(scope, receive, send)
        return Answer(got["status"], got["headers"], got["body"])


def client_of(study, **options):
    return Client(_create_app(study, **options))


def small_study(tmp_path, flavour="aperio", second_model=True, **options):
    """One slide and one scan, two models that disagree; files of the images are named like the cases."""
    path, slide = slide_case(tmp_path / "slides", flavour)
    path = path.rename(path.with_name(f"one{path.suffix}"))
    _, _, scan = scan_case(tmp_path / "slides" / "two")
    rng = np.random.default_rng(0)
    truth = (slide.scores[:, 0] > 0).astype(int)
    slide = renamed(slide, "one", y=1, y_inst=truth)
    scan = renamed(scan, "two", y=0)
    save(tmp_path / "predictions" / "a", slide, scan)
    if second_model:
        other = rng.normal(size=(slide.n, 1)).astype(np.float32)
        save(tmp_path / "predictions" / "b", renamed(slide, "one", scores=other, probs=[0.2]))
    return ViewerData.read([tmp_path / "predictions"], slides=tmp_path / "slides", **options)


def write_bags(folder, prediction, features):
    """A native bag of these features and its manifest."""
    import torch

    bag = Bag(prediction.id, torch.from_numpy(features), torch.from_numpy(prediction.coords), prediction.frame)
    write_bag(folder / "bag.h5", bag, graph="none")
    (folder / "manifest.csv").write_text(f"id,path,label\n{prediction.id},bag.h5,1\n")
    return folder / "manifest.csv"
