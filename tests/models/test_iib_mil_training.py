"""How IIB-MIL trains: what moves when, what is left by a step that is given up, and what a checkpoint brings back."""

import copy
from dataclasses import replace

import pytest
import torch
from support.literal_iib_mil import loss_of, make, make_batch, shake

from smmil.bag import BagBatch
from smmil.errors import DataError
from smmil.train.folder import State, _load_checkpoint, _save_checkpoint

IDENTITY = {"config": "c", "split": "s", "versions": {}}


def memory_of(model):
    return {k: v.clone() for k, v in model.state_dict().items() if k.startswith("memory.")}


def same(a, b, atol=0.0):
    return a.keys() == b.keys() and all(torch.allclose(v, b[k], rtol=0, atol=atol) for k, v in a.items())


def visit(model, batch, times=1):
    for _ in range(times):
        model(batch)
        model.after_step()


def halves(batch, cut):
    """The first `cut` bags and the others as two batches."""
    rows = int(batch.offsets[cut])
    first = replace(batch, ids=batch.ids[:cut], x=batch.x[:rows], offsets=batch.offsets[: cut + 1], y=batch.y[:cut],
                    frames=batch.frames[:cut], coords=None, graph=None, y_inst=None)  # fmt: skip
    rest = replace(first, ids=batch.ids[cut:], x=batch.x[rows:], offsets=batch.offsets[cut:] - rows, y=batch.y[cut:],
                   frames=batch.frames[cut:])  # fmt: skip
    return first, rest


def test_batches_of_one_step_count_as_one_batch():
    """Two and four bags give the gradient, the prototypes and the soft labels of six; also after the warm-up."""
    together, apart = (make(label_ema=0.5).train() for _ in range(2))
    batch, wanted = make_batch(), "instance"
    for epoch in range(3):
        whole = together(batch)
        (loss_of(whole.logits, batch.y) + whole.losses[wanted]).backward()
        for part in halves(batch, 2):
            out = apart(part)
            ((loss_of(out.logits, part.y) + out.losses[wanted]) * len(part) / len(batch)).backward()
        pairs = zip(together.parameters(), apart.parameters(), strict=True)
        assert all(torch.allclose(a.grad, b.grad, rtol=0, atol=1e-12) for a, b in pairs)
        for model in (together, apart):
            model.after_step()
            model.zero_grad()
            shake(model, epoch)
        assert same(memory_of(together), memory_of(apart), atol=1e-12)


def test_without_a_warm_up_the_second_visit_already_follows_the_prototypes():
    """The first visit has no other prototypes to follow; a warm-up of one visit changes nothing in the second."""
    eager, patient = make(warmup=0, label_ema=0.5).train(), make(warmup=1, label_ema=0.5).train()
    for model in (eager, patient):
        visit(model, make_batch(), times=2)
    labels = {k: v for k, v in memory_of(eager).items() if ".q_" in k}
    moved = [float((q.max(1).values < 0.9).double().mean()) for q in labels.values()]
    assert max(moved) > 0
    assert same(memory_of(eager), memory_of(patient), atol=1e-5)


def test_a_bag_that_loses_an_instance_is_refused_during_the_warm_up_too():
    model, batch = make(warmup=10).train(), make_batch()
    visit(model, batch)
    first, _ = halves(batch, 1)
    n = len(first.x)
    fewer = replace(first, x=first.x[1:], offsets=first.offsets - torch.tensor([0, 1]))
    with pytest.raises(DataError, match=f"has {n - 1} instances but had {n} earlier in this training"):
        model(fewer)
    fresh = make(warmup=10).train()
    visit(fresh, fewer)  # who never saw the whole bag has nothing to object


def test_a_step_that_is_given_up_leaves_no_trace():
    model, batch = make().train(), make_batch()
    visit(model, batch, 2)
    before = memory_of(model)
    model(replace(batch, x=batch.x * torch.nan))
    assert same(memory_of(model), before)


def test_asking_twice_gives_the_same_loss():
    model, batch = make(label_ema=0.5).train(), make_batch()
    visit(model, batch, 2)
    assert torch.equal(model(batch).losses["instance"], model(batch).losses["instance"])


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
def test_in_a_loop_that_does_not_know_the_hook_they_move_one_forward_pass_later(kind):
    knowing, plain = (make(label_ema=0.5).train() for _ in range(2))
    batch = make_batch()
    for model in (knowing, plain):
        optimiser = kind(model.parameters(), lr=1e-2)
        for _ in range(4):
            optimiser.zero_grad()
            out = model(batch)
            (loss_of(out.logits, batch.y) + out.losses["instance"]).backward()
            optimiser.step()
            if model is knowing:
                model.after_step()
    assert plain.memory.prototypes.abs().max() > 0
    assert not same(memory_of(plain), memory_of(knowing))
    plain.after_step()
    assert same(memory_of(plain), memory_of(knowing))
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), knowing.parameters(), strict=True))


def test_eval_mode_moves_nothing_and_notes_nothing():
    model, batch = make().train(), make_batch()
    visit(model, batch)
    before = memory_of(model)
    model.eval()(batch)
    model.after_step()
    assert same(memory_of(model), before)


def test_prototypes_and_soft_labels_get_no_gradient():
    model, batch = make(label_ema=0.5).train(), make_batch()
    visit(model, batch, 2)
    model(batch).losses["instance"].backward()
    assert all(not v.requires_grad and v.grad is None for v in model.buffers())
    model.after_step()
    assert all(not v.requires_grad for v in model.buffers())


def test_rows_of_the_soft_labels_sum_to_one():
    model, batch = make(3, label_ema=0.7).train(), make_batch(3)
    visit(model, batch, 5)
    labels = [v for k, v in memory_of(model).items() if k.startswith("memory.q_")]
    assert sorted(len(q) for q in labels) == sorted(batch.sizes)
    assert all(torch.allclose(q.sum(1), torch.ones(len(q), dtype=q.dtype), rtol=0, atol=1e-12) for q in labels)


@pytest.mark.parametrize("n_classes", [1, 3])
def test_labels_that_never_move_give_plain_cross_entropy_to_the_label_of_the_bag(n_classes):
    model, batch = make(n_classes, label_ema=1.0).train(), make_batch(n_classes)
    visit(model, batch, 3)
    out = model(batch)
    # the log-odds of the bag's own class, and -log p from them
    own = [
        s[:, y] if n_classes > 1 else s[:, 0] * (2 * y - 1)
        for s, y in zip(batch.split(out.scores), batch.y, strict=True)
    ]
    expected = torch.stack([torch.nn.functional.softplus(-odds).mean() for odds in own]).mean()
    assert torch.allclose(out.losses["instance"], expected, rtol=0, atol=1e-4)


def test_negative_bags_stay_negative_when_told_so():
    for negatives in ("both", "zero"):
        model, batch = make(negatives=negatives, label_ema=0.0).train(), make_batch()
        visit(model, batch, 4)
        found = {name: model.memory.beliefs(name, y, h) for name, y, h in _bags(model, batch)}
        strayed = any((q[:, 1] > 0.5).any() for (name, q), y in zip(found.items(), batch.y, strict=True) if y == 0)
        assert strayed == (negatives == "both")


def _bags(model, batch):
    h = x = batch.x
    for block in model.blocks:
        h = block(h, x, batch.offsets)
    return zip(batch.ids, batch.y.tolist(), batch.split(h.detach()), strict=True)


def train(model, optimiser, steps):
    """Two batches in turn with dropout, each step seeded by its place, as the training loop does."""
    for step in steps:
        torch.manual_seed(step)
        batch = halves(make_batch(), 3)[step % 2]
        batch = replace(batch, x=batch.x.float())
        optimiser.zero_grad()
        out = model(batch)
        (loss_of(out.logits, batch.y) + out.losses["instance"]).backward()
        optimiser.step()
        model.after_step()


@pytest.mark.parametrize("stop", [1, 2, 3, 5])
def test_going_on_from_a_checkpoint_is_the_same_as_never_stopping(tmp_path, stop):
    def fresh():
        model = make(dropout=0.2, label_ema=0.5).float().train()
        return model, torch.optim.Adam(model.parameters(), lr=1e-2)

    whole, optimiser = fresh()
    train(whole, optimiser, range(8))
    first, optimiser = fresh()
    train(first, optimiser, range(stop))
    _save_checkpoint(tmp_path / "last.safetensors", first, optimiser, State(step=stop, sums={"bags": stop}), IDENTITY)
    second, optimiser = fresh()
    _load_checkpoint(tmp_path / "last.safetensors", second, optimiser, IDENTITY)
    train(second, optimiser, range(stop, 8))
    assert same(dict(second.state_dict()), dict(whole.state_dict()))


def test_weights_without_the_state_of_training_predict_the_same():
    model, batch = make().train(), make_batch()
    visit(model, batch, 3)
    light = {k: v for k, v in model.state_dict().items() if not k.startswith(model.training_state)}
    assert len(light) == len(make().state_dict()) < len(model.state_dict())
    other = make(seed=5)
    other.load_state_dict(light)
    assert torch.equal(other.eval()(batch).logits, model.eval()(batch).logits)
    assert torch.equal(other.memory.prototypes, model.memory.prototypes)


def test_copies_go_their_own_ways():
    model, batch = make().train(), make_batch()
    visit(model, batch, 2)
    twin = copy.deepcopy(model)
    before = memory_of(model)
    visit(twin, batch)
    assert same(memory_of(model), before)
    assert not same(memory_of(twin), before)


def test_mixed_precision_trains_and_keeps_its_memory_in_single():
    model, batch = make(3, dropout=0.1).float().train(), make_batch(3)
    batch = BagBatch(**{**vars(batch), "x": batch.x.float()})
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            out = model(batch)
        assert out.losses["instance"].dtype == out.scores.dtype == torch.float32
        (loss_of(out.logits.float(), batch.y) + out.losses["instance"]).backward()
        model.after_step()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    assert {v.dtype for v in model.buffers()} == {torch.float32, torch.int64}
