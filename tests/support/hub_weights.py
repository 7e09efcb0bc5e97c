"""Small random weights under the names that the hub gives them."""

import math

import torch


def random_state(shapes, seed=0):
    """Random weights with which image, positions and every layer weigh about alike."""
    generator = torch.Generator().manual_seed(seed)
    scales = {name: 1 / math.prod(shape[1:]) ** 0.5 if len(shape) == 4 else 0.3 for name, shape in shapes.items()}
    loud = ("pos", "lambda1", "gamma", "norm1.weight", "norm2.weight", "before.weight", "after.weight", "norm.weight")
    scales |= {name: 1.0 for name in shapes if any(part in name for part in loud)}
    return {name: torch.randn(shape, generator=generator) * scales[name] for name, shape in shapes.items()}


def transformers_shapes(row, patch, tokens, registers, gated, scaled):
    """Names and shapes as `transformers` writes them, for two blocks of width 32."""
    d, hidden = 32, 80
    shapes = {"embeddings.cls_token": (1, 1, d), "embeddings.position_embeddings": (1, tokens, d)}
    shapes |= {"embeddings.patch_embeddings.projection.weight": (d, 3, patch, patch)}
    shapes |= {"embeddings.patch_embeddings.projection.bias": (d,), "layernorm.weight": (d,), "layernorm.bias": (d,)}
    if registers:
        shapes["embeddings.register_tokens"] = (1, registers, d)
    if scaled:
        shapes["embeddings.mask_token"] = (1, d)
    norms, first, second = ("norm1", "norm2"), "mlp.fc1", "mlp.fc2"
    if not scaled:
        shapes |= {"pooler.dense.weight": (d, d), "pooler.dense.bias": (d,)}
        norms, first, second = ("layernorm_before", "layernorm_after"), "intermediate.dense", "output.dense"
    if gated:
        first, second = "mlp.weights_in", "mlp.weights_out"
    for n in range(2):
        at = f"encoder.layer.{n}."
        linears = {f"attention.attention.{part}": (d, d) for part in ("query", "key", "value")}
        linears |= {"attention.output.dense": (d, d), first: ((1 + gated) * hidden, d), second: (d, hidden)}
        for name, shape in linears.items():
            shapes |= {f"{at}{name}.weight": shape, f"{at}{name}.bias": shape[:1]}
        shapes |= {f"{at}{name}.{kind}": (d,) for name in norms for kind in ("weight", "bias")}
        if scaled:
            shapes |= {f"{at}layer_scale{k}.lambda1": (d,) for k in (1, 2)}
    return shapes
