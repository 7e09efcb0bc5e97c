"""smmil: multiple instance learning that can be trusted to localize."""

__version__ = "0.1.0"
