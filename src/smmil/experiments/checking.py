"""A study's models before anything is trained: an unknown name or option is one line, not a failure per run."""

import json
from functools import cache

from smmil.errors import ConfigError, suggest
from smmil.experiments.study import Study

_IN_DIM = 8  # any width will do: what is checked are names and options


def check_models(study: Study, where: str) -> None:
    """Refuse a variant whose model or options do not exist; `where` names the config in the message.

    Models of smmil are built once, so that values are checked too. Of code from elsewhere only names are checked: its
    constructor may insist on the width of its own features.
    """
    for variant in study.variants:
        try:
            _buildable(variant.model, json.dumps(variant.options, sort_keys=True))
        except ConfigError as problem:
            message = f"{where}: variant {variant.name!r}: {problem}{_allowed(variant.model)}"
            raise ConfigError(message) from None


@cache
def _buildable(model: str, options_text: str) -> None:
    import torch

    from smmil.models import create_model, model_options

    options = json.loads(options_text)
    if ":" in model:
        known = model_options(model)
        for wrong in (option for option in options if option not in known):
            raise ConfigError(f"model {model}: unknown option {wrong!r}; {suggest(wrong, known)}")
        return
    with torch.random.fork_rng(devices=[]):
        create_model(model, _IN_DIM, **options)


def _allowed(model: str) -> str:
    """The end of the message: what the model takes; nothing when the model itself is unknown."""
    from smmil.models import model_options

    try:
        known = model_options(model)
    except ConfigError:
        return ""
    return f" (options of {model}: {', '.join(known) or 'none'})"
