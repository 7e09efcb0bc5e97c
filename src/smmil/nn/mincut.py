"""Min-cut pooling (Bianchi, Grattarola, Alippi, 2020, arXiv:1907.00481): how well soft clusters follow the graph.

An assignment (n, k) says for every instance, in a row that sums to 1, to which of k clusters it belongs. Both losses
are means over the bags; neither builds a matrix of instances by instances.
"""

import math

import torch
from torch import Tensor

from smmil.graph import Graph
from smmil.nn.attention import weighted_sums
from smmil.nn.segment import segment_sum


def cut_loss(assign: Tensor, graph: Graph, offsets: Tensor) -> Tensor:
    """-tr(SᵀAS) / tr(SᵀDS), in [-1, 0]: -1 when no edge is cut. A bag without edges has nothing to cut and counts 0.

    A is the graph as built and D holds its degrees; both traces are sums over instances.
    """
    kept = segment_sum((assign * graph.propagate(assign)).sum(1), offsets)
    degrees = graph.degrees.to(assign.dtype)
    total = segment_sum(degrees * assign.square().sum(1), offsets)
    return -(kept / total.masked_fill(total == 0, 1)).mean()


def orthogonality_loss(assign: Tensor, offsets: Tensor) -> Tensor:
    """‖SᵀS/‖SᵀS‖ - I/√k‖ (Frobenius), in [0, √2]: 0 when clusters share no instance and are equally large.

    With more clusters than instances 0 cannot be reached.
    """
    overlap = weighted_sums(assign, assign, offsets)
    overlap = overlap / torch.linalg.matrix_norm(overlap)[:, None, None]
    ideal = torch.eye(assign.shape[1], dtype=overlap.dtype, device=overlap.device) / math.sqrt(assign.shape[1])
    return torch.linalg.matrix_norm(overlap - ideal).mean()
