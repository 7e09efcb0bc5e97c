"""Pixels of one instance -> vector: pretrained networks with their normalisation, resolution and licence."""

from smmil.encoders.encoder import Encoder, encode_stream
from smmil.encoders.fetching import fetch_weights, find_weights
from smmil.encoders.loading import load_encoder
from smmil.encoders.table import EncoderInfo, encoder_info, list_encoders

__all__ = [
    "Encoder",
    "EncoderInfo",
    "encode_stream",
    "encoder_info",
    "fetch_weights",
    "find_weights",
    "list_encoders",
    "load_encoder",
]
