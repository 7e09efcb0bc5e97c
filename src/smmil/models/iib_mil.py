"""IIB-MIL (Ren, Zhao, He, Wu, Mai, Xu, Huang, He, Huang, Yao, MICCAI 2023, doi:10.1007/978-3-031-43987-2_54)."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from smmil.bag import BagBatch
from smmil.errors import ConfigError, DataError, check_choice
from smmil.models import Output, need_labels
from smmil.nn.disambiguation import LabelMemory, class_log_odds, class_log_probs
from smmil.nn.smooth_at import SmoothAt
from smmil.nn.transformer import PostNormLayer, QueryDecoder, recomputed


class IIBMIL(nn.Module):
    """Encode all instances together, classify each of them and the bag, and find out which labels to trust.

    Blocks of a deep MLP, a transformer layer and a look back at the raw features encode the instances. A few learned
    queries read the bag for its logits. A second classifier judges every instance; it is taught soft labels that begin
    at the bag's label and, after a warm-up, drift to the class whose prototype the instance resembles (loss `instance`,
    added to the bag loss). Prototypes follow the instances surest to be of the class of their bag.

    Scores are log-odds of the instance classifier: its logit with n_classes=1, else one column per class (two classes:
    ± the difference of its logits). Comparable across bags. The transformer tells each instance what bag it is in, so
    the whole of a positive bag may light up.

    dim, depth        width and number of blocks: 256, 3 (NSCLC), 32, 8 (LUAD) or 256, 4 (RCC) in the authors' settings
    queries           that read the bag
    hidden            inner width of the transformer layers
    dropout           in all transformer layers, also on their attention weights; none in the MLPs, as released
    negatives         both: instances of any bag may become any class, as released; zero: those of class 0 bags stay 0,
                      which is right where class 0 means "nothing there" and wrong for subtypes
    warmup            visits (epochs) of a bag during which its instances keep the bag's label; 0: none, a class then
                      takes part as soon as one step has given it a prototype
    label_ema         share of the old soft label at each visit; "falling": from 0.95 to 0.8 in 200 visits
    prototype_ema     share of the old prototype for each instance that it follows
    instance_weight   factor of the instance loss; the authors' is not published
    sm                {where: early} smooths the features, which every block reads; {where: late} the logits of the
                      instance classifier; other options as in `SmoothAt`
    The instance loss is a mean over the bags of the mean over their instances, so that bags count alike.

    Prototypes and soft labels move in `after_step`, which the training loop calls; in a loop of your own call it behind
    optimizer.step(), or they move at the next forward pass that finds the weights changed. Soft labels are kept for
    every training instance (buffers `memory.q_…`, 8 bytes per instance and a fingerprint per bag with two classes), by
    row: training bags must keep all their instances in order. Only training needs them (`training_state`).

    Bags are whole, of any size. No n × n matrix exists, not with dropout either; time grows with n², memory with n:
    about 0.1 MB per instance in training at dim 256, of which 1 kB waits for `after_step`.
    """

    score_kind = "instance log-odds"
    training_state = ("memory.q_", "memory.visits_")

    def __init__(
        self,
        in_dim: int,
        n_classes: int = 1,
        *,
        dim: int = 256,
        depth: int = 3,
        queries: int = 5,
        hidden: int = 2048,
        dropout: float = 0.1,
        negatives: str = "both",
        warmup: int = 10,
        label_ema: float | str = 0.99,
        prototype_ema: float = 0.99,
        instance_weight: float = 1.0,
        sm: Mapping[str, Any] | None = None,
    ):
        super().__init__()
        check_choice(negatives, ("both", "zero"), "negatives")
        if dim % 4:
            raise ConfigError(f"dim must be a multiple of 4, the number of heads, got {dim}")
        if not instance_weight >= 0:
            raise ConfigError(f"instance_weight must not be negative, got {instance_weight}")
        self.instance_weight = instance_weight
        widths = [in_dim] + [dim] * (depth - 1)
        share = _share(dropout, "dropout")
        self.blocks = nn.ModuleList(_Block(in_dim, width, dim, hidden, share) for width in widths)
        self.instance_head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, n_classes))
        self.decoder = QueryDecoder(dim, queries=queries, layers=2, heads=4, hidden=2 * dim, dropout=share)
        self.head = nn.Linear(queries * dim, n_classes)
        self.memory = LabelMemory(
            dim,
            max(2, n_classes),
            keep_belief=None if label_ema == "falling" else _share(label_ema, "label_ema"),
            keep_prototype=_share(prototype_ema, "prototype_ema"),
            warmup=warmup,
            only_zero=negatives == "zero",
        )
        self.n_classes = n_classes
        self.noted_at, self.rows_of = -1, dict[str, int]()
        first, *_ = self.blocks
        readers = (first.mlp[0], *(block.raw for block in self.blocks))  # type: ignore[index]
        self.sm = SmoothAt(sm, {"early": readers, "late": ()})  # type: ignore[dict-item]

    def forward(self, batch: BagBatch) -> Output:
        dtype = self.head.weight.dtype
        x = h = self.sm("early", batch.x.to(dtype), batch)
        for block in self.blocks:
            h = block(h, x, batch.offsets)
        judged = self.sm("late", self.instance_head(h).to(dtype), batch)
        logits = self.head(self.decoder(h, batch.offsets))
        losses = {"instance": self.instance_weight * self._instance_loss(h, judged, batch)} if self.training else {}
        return Output(logits, class_log_odds(judged), losses)

    def after_step(self) -> None:
        """Move prototypes and soft labels by what the batches of this step showed."""
        self.memory.settle()

    def _instance_loss(self, h: Tensor, judged: Tensor, batch: BagBatch) -> Tensor:
        self._settle_if_weights_changed()
        log_p = class_log_probs(judged)
        odds = class_log_odds(log_p)
        losses = []
        self._refuse_changed(batch)
        labels = need_labels(batch, self.n_classes).tolist()
        cases = zip(batch.ids, labels, *map(batch.split, (h.detach(), log_p, odds)), strict=True)
        for name, label, rows, one_log_p, one_odds in cases:
            q = self.memory.beliefs(name, label, rows)
            self.memory.note(name, label, rows, one_odds[:, label], q)
            losses.append(-(q * one_log_p).sum(1).mean())
        return torch.stack(losses).mean()

    def _settle_if_weights_changed(self) -> None:
        """For loops that do not call `after_step`: what was noted under other weights is of a step that is over."""
        version = self.head.weight._version
        if version != self.noted_at:
            self.memory.settle()
        self.noted_at = version

    def _refuse_changed(self, batch: BagBatch) -> None:
        """A bag of another size than before is refused at once, not when the warm-up is over and hours are spent."""
        for name, n in zip(batch.ids, batch.sizes, strict=True):
            before = self.rows_of.get(name, n) if self.memory.visits(name) else n
            self.rows_of[name] = n
            if before != n:
                raise DataError(
                    f"bag {name}: has {n:,} instances but had {before:,} earlier in this training; its instances are "
                    "remembered by row, so keep them all and in order"
                )


class _Block(nn.Module):
    """A deep MLP on each instance, a transformer layer over the bag, plus relu(W x) of the raw features."""

    def __init__(self, raw_dim: int, in_dim: int, dim: int, hidden: int, dropout: float):
        super().__init__()
        widths = (in_dim, 2 * dim, 4 * dim, 2 * dim, 2 * dim, dim)
        steps = [(nn.Linear(a, b), nn.Tanh(), nn.LayerNorm(b)) for a, b in pairwise(widths)]
        self.mlp = nn.Sequential(*(layer for step in steps for layer in step))
        self.widest = max(widths[1:])
        self.layer = PostNormLayer(dim, heads=2, hidden=hidden, dropout=dropout)
        self.raw = nn.Linear(raw_dim, dim)

    def forward(self, h: Tensor, x: Tensor, offsets: Tensor) -> Tensor:
        h = recomputed(self.mlp, h, size=len(h) * self.widest)
        return self.layer(h, offsets) + self.raw(x).relu()


def _share(value: float | str, option: str) -> float:
    if isinstance(value, str) or not 0 <= value <= 1 or (option == "dropout" and value == 1):
        expected = "a number in [0, 1)" if option == "dropout" else "a number in [0, 1]"
        also = ' or "falling"' if option == "label_ema" else ""
        raise ConfigError(f"{option} must be {expected}{also}, got {value!r}")
    return value
