"""What each reader takes as lesion, and what it refuses."""

import json

import numpy as np
import pytest
import tifffile
from support import drawings

from smmil.annotations.labels import read_slice_labels, write_slice_labels
from smmil.annotations.masks import open_mask
from smmil.annotations.polygons import read_asap, read_boxes, read_geojson
from smmil.errors import DataError
from smmil.prepare.annotate import annotate_case

SQUARE, INNER = drawings.square(0, 0, 10), drawings.square(2, 2, 4)


@pytest.mark.parametrize("lesion", ["_0", "_1", "Tumor", "None"])
@pytest.mark.parametrize("hole", ["_2", "Exclusion"])
def test_camelyons_groups_are_lesions_and_holes(tmp_path, lesion, hole):
    path = drawings.asap(tmp_path / "a.xml", [(hole, INNER), (lesion, SQUARE)])
    assert read_asap(path).area.area == 100 - 16


def test_corners_follow_their_order_not_their_place_in_the_file(tmp_path):
    path = drawings.asap(tmp_path / "a.xml", [("_0", SQUARE)])
    text = path.read_text()
    parts = text.split("<Coordinate ")
    tail = parts[4][parts[4].index("/>") + 2 :]
    parts[4] = parts[4][: parts[4].index("/>") + 2]
    path.write_text("<Coordinate ".join([parts[0], parts[3], parts[1], parts[4], parts[2]]) + tail)
    assert read_asap(path).area.area == 100


def test_an_unknown_group_is_asked_about_and_chosen_groups_are_taken(tmp_path):
    path = drawings.asap(
        tmp_path / "a.xml", [("necrosis", SQUARE), ("_2", INNER), ("stroma", drawings.square(20, 0, 5))]
    )
    with pytest.raises(DataError, match="class 'necrosis' is not known as lesion or hole"):
        read_asap(path)
    chosen = read_asap(path, positive=["Necrosis"])
    assert chosen.area.area == 84
    assert chosen.notes == ("1 shape(s) are of other classes and were passed over",)
    with pytest.raises(DataError, match="no shape of class 'tumor'; the file has"):
        read_asap(path, positive=["tumor"])


def test_an_entity_bomb_is_refused_before_it_unfolds(tmp_path):
    lines = "".join(f'<!ENTITY a{i} "{f"&a{i - 1};" * 10}">' for i in range(1, 12))
    (tmp_path / "a.xml").write_text(
        f'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a0 "lol">{lines}]><ASAP_Annotations>&a11;</ASAP_Annotations>'
    )
    with pytest.raises(DataError, match="declares a document type"):
        read_asap(tmp_path / "a.xml")
    (tmp_path / "f.xml").write_text('<!DOCTYPE x SYSTEM "file:///etc/passwd"><ASAP_Annotations/>')
    with pytest.raises(DataError, match="declares a document type"):
        read_asap(tmp_path / "f.xml")


def test_a_dot_has_no_area_and_another_document_is_no_annotation(tmp_path):
    path = drawings.asap(tmp_path / "a.xml", [("_0", SQUARE)])
    path.write_text(path.read_text().replace('"Polygon"', '"Dot"'))
    with pytest.raises(DataError, match="is a Dot, which has no area"):
        read_asap(path)
    (tmp_path / "b.xml").write_text("<html/>")
    with pytest.raises(DataError, match="the document is <html>"):
        read_asap(tmp_path / "b.xml")
    (tmp_path / "e.xml").write_text("<ASAP_Annotations><Annotations/></ASAP_Annotations>")
    assert read_asap(tmp_path / "e.xml").area.is_empty


def test_geojson_reads_holes_multipolygons_lists_and_bare_geometries(tmp_path):
    path = tmp_path / "g.geojson"
    assert read_geojson(drawings.geojson(path, [[SQUARE, INNER]])).area.area == 84
    two = {"type": "MultiPolygon", "coordinates": [[SQUARE, INNER], [drawings.square(20, 20, 3)]]}
    feature = {"type": "Feature", "geometry": two, "properties": {"classification": {"names": []}}}
    for content in (two, feature, [feature], {"type": "FeatureCollection", "features": [feature]}):
        path.write_text(json.dumps(content))
        assert read_geojson(path).area.area == 84 + 9
    path.write_text(json.dumps({"type": "Point", "coordinates": [1, 2]}))
    assert read_geojson(path).notes == ("1 feature(s) without area (points, lines) were passed over",)


def test_geojson_classes_follow_the_same_rules(tmp_path):
    path = drawings.geojson(tmp_path / "g.geojson", [[SQUARE]], name="Stroma")
    with pytest.raises(DataError, match="class 'Stroma' is not known"):
        read_geojson(path)
    assert read_geojson(path, positive=["stroma"]).area.area == 100
    assert read_geojson(drawings.geojson(path, [[SQUARE]], name=None)).area.area == 100


@pytest.mark.parametrize(
    "text", ["x,y,width,height\n1,2,3,4\n", "minx,miny,width,height\n1,2,3,4\n", "xmin,ymin,xmax,ymax\n1,2,4,6\n"]
)
def test_boxes_come_with_sizes_or_corners(tmp_path, text):
    (tmp_path / "b.csv").write_text(text)
    assert read_boxes(tmp_path / "b.csv").area.bounds == (1, 2, 4, 6)


def test_boxes_of_class_zero_are_no_lesions_and_senseless_ones_are_refused(tmp_path):
    (tmp_path / "b.csv").write_text("x,y,width,height,label\n0,0,2,2,1\n5,5,2,2,0\n")
    assert read_boxes(tmp_path / "b.csv").area.bounds == (0, 0, 2, 2)
    (tmp_path / "b.csv").write_text("x,y,width,height\n0,0,-2,2\n")
    with pytest.raises(DataError, match="row 1 is a box of negative size"):
        read_boxes(tmp_path / "b.csv")
    (tmp_path / "b.csv").write_text("x,y,width,height\n0,0,nan,2\n")
    with pytest.raises(DataError, match=r"row 1: .* must be numbers"):
        read_boxes(tmp_path / "b.csv")


def panda_mask(path, codes):
    """As PANDA writes them: RGB with the code in red, tiled, with smaller levels behind."""
    image = np.zeros((*codes.shape, 3), np.uint8)
    image[..., 0] = codes
    with tifffile.TiffWriter(path) as file:
        for level in (image, image[::4, ::4]):
            file.write(level, tile=(32, 32), photometric="rgb", compression="lzw")
    return path


def test_pandas_codes_mean_cancer_by_provider(tmp_path):
    codes = np.repeat(np.arange(6), 10)[None].repeat(10, 0).astype(np.uint8)
    bag = drawings.lattice(6, 1, 10)
    radboud = panda_mask(tmp_path / "r_mask.tiff", codes)
    assert annotate_case(bag, radboud, kind="panda-radboud").labels.tolist() == [0, 0, 0, 1, 1, 1]
    with pytest.raises(DataError, match="code 3 cannot occur, expected 0 to 2"):
        annotate_case(bag, radboud, kind="panda-karolinska")
    karolinska = panda_mask(tmp_path / "k_mask.tiff", np.minimum(codes, 2))
    assert annotate_case(bag, karolinska, kind="panda-karolinska").labels.tolist() == [0, 0, 1, 1, 1, 1]
    with pytest.raises(DataError, match="for a mask of PANDA give the kind"):
        annotate_case(bag, karolinska, kind="label-image")


def test_only_tiles_under_patches_are_decoded(tmp_path):
    codes = np.zeros((128, 128), np.uint8)
    codes[64:96, 64:96], codes[:20, 100:] = 4, 4
    path = panda_mask(tmp_path / "p_mask.tiff", codes)
    image = open_mask(path, "panda-radboud")
    blocks = list(image.lesions(np.array([[70.0, 64, 96, 96], [0, 0, 1, 1]])))
    assert [(left, top) for left, top, _ in blocks] == [(0, 0), (64, 64)]
    assert blocks[1][2].all()
    assert [(left, top) for left, top, _ in image.lesions(np.array([[31.0, 31, 33, 33]]))] == [
        (0, 0),
        (32, 0),
        (0, 32),
        (32, 32),
    ]


def test_a_label_image_with_several_codes_is_asked_about(tmp_path):
    codes = np.zeros((10, 30), np.uint8)
    codes[:, 10:20], codes[:, 20:] = 1, 2
    path, bag = drawings.mask(tmp_path / "m.png", codes), drawings.lattice(3, 1, 10)
    with pytest.raises(DataError, match="holds the codes 0, 1, 2; say which of them are lesions"):
        annotate_case(bag, path)
    assert annotate_case(bag, path, positive=[2]).labels.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    "layout", [{"tile": (16, 32)}, {"rowsperstrip": 7}, {"rowsperstrip": 40, "compression": "deflate"}]
)
def test_tiles_and_strips_give_the_same_shares_as_the_whole_array(tmp_path, layout):
    codes = (np.random.default_rng(0).random((40, 50)) < 0.5).astype(np.uint8)
    tifffile.imwrite(tmp_path / "m.tif", codes, **layout)
    bag = drawings.lattice(5, 4, 10)
    expected = [codes[y : y + 10, x : x + 10].mean() for x, y in bag.coords.tolist()]
    assert np.allclose(annotate_case(bag, tmp_path / "m.tif").share, expected, atol=1e-8)


def test_what_pads_the_last_tile_of_a_mask_is_no_lesion(tmp_path):
    tifffile.imwrite(tmp_path / "m.tif", np.ones((64, 64), np.uint8), tile=(32, 32))
    with tifffile.TiffFile(tmp_path / "m.tif", mode="r+b") as file:
        for tag in ("ImageWidth", "ImageLength"):
            file.pages[0].tags[tag].overwrite(50)
    bag = drawings.lattice(3, 3, 20)
    assert annotate_case(bag, tmp_path / "m.tif").share.reshape(3, 3)[2].tolist() == [0.5, 0.5, 0.25]


def test_slice_labels_come_back_as_written_and_contradictions_are_refused(tmp_path):
    path = tmp_path / "s.csv"
    path.write_text("ID,Label\nID_a_b_any,1\nID_a_b_epidural,0\nID_c_any,0\nID_c_epidural,0\nID_c_any,0\n")
    table = read_slice_labels(path)
    assert table.loc["ID_a_b"].to_dict() == {"any": 1, "epidural": 0}
    write_slice_labels(tmp_path / "t.csv", table)
    assert read_slice_labels(tmp_path / "t.csv").equals(table)
    for line, message in (
        ("ID_c_any,1\n", "ID_c_any is given both as 0 and as 1"),
        ("ID_d_any,1\n", "1 slices lack a subtype, such as 'ID_d'"),
        ("ID_c_any,2\n", "expected ID_<slice>_<subtype> and 0 or 1"),
    ):
        (tmp_path / "w.csv").write_text(path.read_text() + line)
        with pytest.raises(DataError, match=message):
            read_slice_labels(tmp_path / "w.csv")


def damaged(content, rng):
    data = bytearray(content)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(len(data)))
        what = rng.integers(4)
        if what == 0:
            data[at] = int(rng.integers(256))
        elif what == 1:
            del data[at : at + int(rng.integers(1, 20))]
        elif what == 2:
            data[at:at] = bytes(rng.integers(0, 256, int(rng.integers(1, 9)), dtype=np.uint8))
        else:
            del data[at:]
        data = data or bytearray(b"?")
    return bytes(data)


@pytest.mark.parametrize("kind", ["xml", "geojson", "csv", "png", "tif", "slices"])
def test_a_damaged_file_is_a_data_error_or_reads_but_nothing_else(tmp_path, kind):
    bag = drawings.lattice(3, 3, 10)
    path = tmp_path / f"f.{'csv' if kind == 'slices' else kind}"
    codes = np.zeros((30, 30), np.uint8)
    codes[5:20, 5:20] = 1
    {
        "xml": lambda: drawings.asap(path, [("_0", SQUARE), ("_2", INNER)]),
        "geojson": lambda: drawings.geojson(path, [[SQUARE, INNER]]),
        "csv": lambda: drawings.boxes(path, [(0, 0, 10, 10), (3, 3, 9, 9)]),
        "png": lambda: drawings.mask(path, codes),
        "tif": lambda: tifffile.imwrite(path, codes, tile=(16, 16), compression="lzw"),
        "slices": lambda: path.write_text("ID,Label\n" + "".join(f"ID_{i}_any,{i % 2}\n" for i in range(9))),
    }[kind]()
    names = [f"ID_{i}" for i in range(9)]
    content, refused = path.read_bytes(), []
    for seed in range(150):
        path.write_bytes(damaged(content, np.random.default_rng(seed)))
        try:
            annotate_case(bag, path, slices=names)
        except DataError as problem:
            refused.append(str(problem))
    assert all(told.startswith(str(path)) and "\n" not in told for told in refused)
    assert len(refused) > 15


def test_deep_json_and_absurd_corners_are_refused(tmp_path):
    path = tmp_path / "g.json"
    path.write_text("[" * 200_000)
    with pytest.raises(DataError, match="not readable as GeoJSON"):
        read_geojson(path)
    for corner in ([1e300, 0], [float("nan"), 0], ["a", 0]):
        path.write_text(json.dumps({"type": "Polygon", "coordinates": [[corner, [1, 0], [1, 1]]]}))
        with pytest.raises(DataError, match=r"g\.json"):
            read_geojson(path)
