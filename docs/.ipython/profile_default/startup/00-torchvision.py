"""Run before every notebook of the site: a CUDA build of torchvision beside a CPU torch then loads (Lightning imports it)."""

from importlib.util import find_spec

from smmil.encoders.networks import _prepare_torchvision

if find_spec("torchvision"):
    _prepare_torchvision("lightning")
del find_spec, _prepare_torchvision
