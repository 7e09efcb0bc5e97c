"""Sixteen clients on one slide: the same pixels as one alone, bounded caches, few open slides, quick answers."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support.export_makers import slide_case
from support.viewer_cases import save
from support.viewer_server import running

from smmil.errors import DataError
from smmil.frame import Frame
from smmil.images import open_slide
from smmil.prediction import Prediction
from smmil.synthetic import write_pyramid
from smmil.viewer.cache import USUAL_BYTES, _ByteCache, _ObjectCache, _SlidePool
from smmil.viewer.data import ViewerData
from smmil.viewer.server import _create_app

CLIENTS = 16


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A slide of 2048 x 1536 pixels of noise on gradients, JPEG tiles, three levels; and its prediction."""
    folder = tmp_path_factory.mktemp("large")
    y, x = np.mgrid[:1536, :2048]
    rng = np.random.default_rng(0)
    image = np.stack([x // 8, y // 6, (x + y) // 14], 2) + rng.integers(0, 12, (1536, 2048, 1))
    (folder / "slides").mkdir()
    write_pyramid(folder / "slides" / "s.svs", image.clip(0, 255).astype(np.uint8), mpp=0.5, factors=(1, 4, 16))
    prediction = Prediction("s", [0.5], [[0.0], [1.0]], coords=[[0, 0], [256, 0]], frame=Frame((256, 256)))
    save(folder / "p", prediction)
    return folder


def study_of(folder, **options):
    return ViewerData.read([folder / "p"], slides=folder / "slides", **options)


def places_of(study, levels=3):
    picture = study.require_picture(0)
    for level in range(picture.levels - levels, picture.levels):
        width, height = picture.size(level)
        yield from ((level, c, r) for c in range(-(-width // 256)) for r in range(-(-height // 256)))


def test_sixteen_threads_get_the_same_tiles_as_one_alone(large):
    alone = study_of(large)
    places = list(places_of(alone))
    expected = {place: alone.tile(0, *place) for place in places}
    together = study_of(large, cache_bytes=400_000)  # far too small: nearly every tile is read again
    seen = {"open": 0, "held": 0}

    def client(number):
        order = np.random.default_rng(number).permutation(len(places))[:40]
        for i in order:
            assert together.tile(0, *places[i]) == expected[places[i]]
            seen["open"] = max(seen["open"], len(together.pool._handles))
            seen["held"] = max(seen["held"], together.cache.held)

    with ThreadPoolExecutor(CLIENTS) as threads:
        list(threads.map(client, range(CLIENTS)))
    assert seen["open"] <= 4
    assert 0 < seen["held"] <= 400_000
    alone.close()
    together.close()
    assert len(together.pool._handles) == 0


def test_sixteen_clients_over_http_are_answered_quickly_once_warm(large):
    study = study_of(large)
    places = [f"/tiles/0/{level}/{column}_{row}.jpg" for level, column, row in places_of(study)][:40]
    with running(_create_app(study)) as server:
        bodies = {path: server.get(path)[2] for path in places}

        def client(number):
            times = []
            connection = server.connect()
            for path in np.random.default_rng(number).permutation(places):
                start = time.perf_counter()
                status, _, body = server.get(path, connection=connection)
                times.append(time.perf_counter() - start)
                assert (status, body) == (200, bodies[path])
            connection.close()
            return times

        one_alone = np.median(client(99))
        with ThreadPoolExecutor(CLIENTS) as threads:
            times = np.concatenate(list(threads.map(client, range(CLIENTS))))
    study.close()
    assert one_alone < 0.1
    assert np.median(times) < 0.1


class Watched:
    """A slide that notices when two threads hold it, and counts how many are open."""

    open_now = most_open = 0
    lock = threading.Lock()

    def __init__(self, path):
        self.path, self.users = path, 0
        with Watched.lock:
            Watched.open_now += 1
            Watched.most_open = max(Watched.most_open, Watched.open_now)

    def use(self):
        with Watched.lock:
            self.users += 1
            assert self.users == 1
        time.sleep(0.001)
        with Watched.lock:
            self.users -= 1

    def close(self):
        assert self.users == 0
        with Watched.lock:
            Watched.open_now -= 1


@pytest.mark.parametrize(("weight", "most"), [(USUAL_BYTES, 6), (2**28, 4), (2**31, 1)])
def test_the_pool_never_opens_too_many_and_never_lends_one_twice(weight, most):
    Watched.open_now = Watched.most_open = 0
    pool = _SlidePool(most_handles=6, per_slide=3, most_bytes=2**30, opener=Watched)

    def client(number):
        rng = np.random.default_rng(number)
        for _ in range(25):
            with pool.lend(Path(f"slide{rng.integers(9)}"), weight) as slide:
                slide.use()
                assert pool.bytes_held <= max(2**30, weight)

    with ThreadPoolExecutor(CLIENTS) as threads:
        list(threads.map(client, range(CLIENTS)))
    assert 0 < Watched.most_open <= most
    pool.close()
    assert Watched.open_now == len(pool._handles) == 0
    with pytest.raises(DataError, match="stopping"), pool.lend(Path("slide1")):
        pass


def test_one_slide_is_opened_a_few_times_only_and_a_large_picture_once():
    for weight, most in ((USUAL_BYTES, 3), (USUAL_BYTES + 1, 1)):
        Watched.open_now = Watched.most_open = 0
        pool = _SlidePool(most_handles=8, per_slide=3, opener=Watched)

        def client(_, pool=pool, weight=weight):
            for _ in range(10):
                with pool.lend(Path("a"), weight) as slide:
                    slide.use()

        with ThreadPoolExecutor(CLIENTS) as threads:
            list(threads.map(client, range(CLIENTS)))
        assert 1 <= Watched.most_open <= most
        pool.close()


def test_a_slide_that_cannot_be_opened_leaves_no_trace_in_the_pool(tmp_path):
    pool = _SlidePool(most_handles=2)
    for _ in range(5):
        with pytest.raises(DataError), pool.lend(tmp_path / "absent.svs"):
            pass
    assert len(pool._handles) == 0
    path, _ = slide_case(tmp_path)
    with pool.lend(path) as slide:
        assert np.array_equal(slide.read(0, 0, 16, 16), open_slide(path).read(0, 0, 16, 16))
    pool.close()


def test_the_cache_holds_what_was_used_last_and_never_more_than_it_may():
    cache = _ByteCache(10)
    for key, size in (("a", 4), ("b", 4), ("a", 4), ("c", 4)):
        cache.get_or_make(key, lambda size=size: b"x" * size)
        assert cache.held <= 10
    assert list(cache._parts) == ["a", "c"]
    assert cache.get_or_make("huge", lambda: b"x" * 11) == b"x" * 11
    assert (list(cache._parts), cache.held) == (["a", "c"], 8)
    cache.get_or_make("d", lambda: cache.get_or_make("d", lambda: b"yy"))  # two made it at the same time
    assert (cache.held, cache.get_or_make("d", lambda: b"")) == (10, b"yy")


def test_what_many_ask_for_at_once_is_made_once_and_failures_are_not_remembered():
    made = []

    def make(key):
        made.append(key)
        time.sleep(0.02)
        if key == "bad" and made.count("bad") < 2:
            raise DataError("not now")
        return key.upper()

    recent = _ObjectCache(2, make)
    with ThreadPoolExecutor(CLIENTS) as threads:
        assert list(threads.map(recent, ["a"] * CLIENTS)) == ["A"] * CLIENTS
    assert made == ["a"]
    with pytest.raises(DataError):
        recent("bad")
    assert recent("bad") == "BAD"
    recent("c")
    recent("a")
    assert made.count("a") == 2


def test_exports_are_deleted_once_they_were_sent(large):
    from support.viewer_cases import client_of

    study = study_of(large)
    folder = Path(study._temporary.name)
    client = client_of(study)
    for format_ in ("csv", "tiff", "geojson"):
        assert client.get(f"/export/0/0/{format_}?threshold=0.5").status_code == 200
    assert client.get("/export/0/0/geojson?threshold=nan").status_code == 400
    assert list(folder.iterdir()) == []
    study.close()
    assert not folder.exists()
