"""What a model may ask of the training loop. All of it is optional; a model without any of it is trained as it is.

bag_weight          attribute: factor of the bag loss beside the model's own terms (CLAM: 0.7)
parameter_groups()  method: [{"params": [...], "lr_scale": 0.1}], groups with options of their own for the optimiser;
                    `lr_scale` multiplies the learning rate of the schedule
before_step()       method: called when the gradients are complete, before they are used (clipping of its own)
after_step()        method: called when the weights have changed (prototypes, memory banks)
training_state      attribute: beginnings of names in the state dict that only training needs (soft labels of training
                    instances); they are in the checkpoint to go on from, not in the selected weights

State that these methods keep belongs into buffers, so that it is saved with the weights and resuming stays exact.
"""

from typing import Any

from torch import Tensor, nn


def bag_weight(model: nn.Module) -> float:
    return float(getattr(model, "bag_weight", 1.0))


def parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    """The groups a model asks for, or all parameters in one; every parameter must be in exactly one."""
    if not hasattr(model, "parameter_groups"):
        return [{"params": list(model.parameters())}]
    groups = [{**group, "params": list(group["params"])} for group in model.parameter_groups()]  # type: ignore[operator]
    grouped = sorted(id(p) for group in groups for p in group["params"])
    if grouped != sorted(id(p) for p in model.parameters()):
        raise ValueError(f"{type(model).__name__}.parameter_groups() must hold every parameter exactly once")
    return groups


def before_step(model: nn.Module) -> None:
    if hasattr(model, "before_step"):
        model.before_step()  # type: ignore[operator]


def after_step(model: nn.Module) -> None:
    if hasattr(model, "after_step"):
        model.after_step()  # type: ignore[operator]


def lasting_state(model: nn.Module) -> dict[str, Tensor]:
    """The state dict without what only training needs."""
    passing = tuple(getattr(model, "training_state", ()))
    return {name: tensor for name, tensor in model.state_dict().items() if not name.startswith(passing)}
