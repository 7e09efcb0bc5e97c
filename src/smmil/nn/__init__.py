"""Mathematics on packed tensors: no files, no labels, no bags."""

from smmil.nn.pool import AttentionPool, SmAttentionPool
from smmil.nn.posterior import sm_posterior, sm_posterior_sample
from smmil.nn.smooth import Sm, sm, sm_exact

__all__ = ["AttentionPool", "Sm", "SmAttentionPool", "sm", "sm_exact", "sm_posterior", "sm_posterior_sample"]
