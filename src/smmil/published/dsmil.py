"""MILNet of github.com/binli123/dsmil-wsi."""

from torch import Tensor

from smmil.published.layout import Layout, Shape, Tensors, linear


def _shape(tensors: Tensors) -> Shape:
    query = "query.0.weight" if "query.0.weight" in tensors else "query.weight"
    options = {
        "average": False,  # the program reads the bag stream alone unless asked to average
        "nonlinear": query == "query.0.weight",
        "passing_v": "value.1.weight" in tensors,
        "query_dim": tensors[query].shape[0],
    }
    n_classes, in_dim = tensors["instance.weight"].shape
    return Shape(in_dim, n_classes, options)


def _flat_kernel(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The convolution over all features, (classes, classes, features), as a layer that reads all classes in a row."""
    return tensors | {"head.weight": tensors["head.weight"].flatten(1)} if "head.weight" in tensors else tensors


LAYOUT = Layout(
    title="DSMIL",
    model="dsmil",
    rules=(
        linear(r"i_classifier\.fc(?:\.0)?", "instance"),
        linear(r"b_classifier\.q", "query"),
        linear(r"b_classifier\.q\.([02])", r"query.\1"),
        linear(r"b_classifier\.v\.1", "value.1"),
        linear(r"b_classifier\.fcc", "head"),
        (r"i_classifier\.feature_extractor\..*", None),  # the encoder of the patches, if it was saved along
    ),
    shape=_shape,
    arrange=_flat_kernel,
)
