"""Many sparse products in one sweep over memory, compiled by numba; reached only through `sm_numba`.

Computed for a few columns at a time, from G_0 = U:

    G_t = a_t P G_{t-1} + b_t U + c_t G_{t-2},    t = 1 … T

Neighbours lie at most `skew` rows apart, so row i of G_t can be computed as soon as row i + skew of G_{t-1} is known. A
tile of rows is read, then every step follows `skew` rows behind the step before it: what is still needed of all steps
stays in the cache, and the matrix passes through memory once instead of T times. Each G_t lives in a ring of rows (a
power of two, so that a row's place is a bit mask away). One tile as large as the matrix, with two rings taken in
turn, is the same computation step after step (a row of G_t replaces the row of G_{t-2} that it alone needs): that
serves graphs whose neighbours are far apart.

The vectors are explicit (LLVM's own vector types): numba would not find them here, and the speed depends on them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import config
from numba.extending import intrinsic, models, register_model
from numba.np.arrayobj import make_array

config._config_fname = ""  # no file of the working folder is obeyed later on

FUSED = ("contract",)  # a product and a sum may become one instruction; nothing may be reordered
STRETCH = 64  # rows whose products are summed in the precision of the signal before they join a float64 sum


def _compiled(function: Callable[..., Any]) -> Any:
    """Machine code for `function`, kept on disk for the next process where there is a place to write it."""
    try:
        return njit(nogil=True, error_model="numpy", cache=True)(function)
    except RuntimeError:  # numba found neither a writable __pycache__ nor a cache folder of the user
        return njit(nogil=True, error_model="numpy")(function)


def _instruction(typed: Callable[..., Any]) -> Any:
    """A function for compiled code only; `typed` gets the types of its arguments and says what LLVM is to do."""
    return intrinsic(typed)


class _Lanes(types.Type):
    """A few neighbouring columns of one row, held in a vector register."""

    def __init__(self, dtype: types.Type, count: int):
        self.dtype, self.count = dtype, count
        super().__init__(name=f"Lanes({dtype}, {count})")


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, ir.VectorType(manager.lookup(kind.dtype).get_value_type(), kind.count))


def _address(context, builder, kind, array, at):
    return builder.gep(make_array(kind)(context, builder, array).data, [at])


def _splat(builder, value, vector):
    """The number `value` in every lane."""
    nothing, first = ir.Constant(vector, ir.Undefined), ir.Constant(ir.IntType(32), 0)
    everywhere = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [0] * vector.count)
    return builder.shuffle_vector(builder.insert_element(nothing, value, first), nothing, everywhere)


@_instruction
def _item(_typing, array, at):
    """array[at], unchecked: `at` is never negative here, which numba would test each time."""

    def generate(context, builder, signature, args):
        return builder.load(_address(context, builder, signature.args[0], *args))

    return array.dtype(array, types.int64), generate


@_instruction
def _zeros(_typing, like):
    """A vector of zeros, as long as the tuple `like`."""

    def generate(context, builder, signature, args):
        return ir.Constant(context.get_value_type(signature.return_type), None)

    return _Lanes(like.dtype, like.count)(like), generate


@_instruction
def _load(_typing, array, at, like):
    """The entries from array[at] on, as many as the tuple `like` has."""

    def generate(context, builder, signature, args):
        place = _address(context, builder, signature.args[0], *args[:2])
        found = builder.load(builder.bitcast(place, context.get_value_type(signature.return_type).as_pointer()))
        found.align = array.dtype.bitwidth // 8
        return found

    return _Lanes(array.dtype, like.count)(array, types.int64, like), generate


@_instruction
def _store(_typing, array, at, value):
    """Write a vector from array[at] on."""

    def generate(context, builder, signature, args):
        place = _address(context, builder, signature.args[0], *args[:2])
        builder.store(args[2], builder.bitcast(place, args[2].type.as_pointer())).align = array.dtype.bitwidth // 8
        return context.get_dummy_value()

    return types.void(array, types.int64, value), generate


@_instruction
def _scaled(_typing, factor, value):
    """A number times a vector."""

    def generate(context, builder, signature, args):
        return builder.fmul(_splat(builder, args[0], args[1].type), args[1], flags=FUSED)

    return value(value.dtype, value), generate


def _lane_by_lane(operation: str) -> Any:
    def typed(_typing, left, right):
        def generate(context, builder, signature, args):
            return getattr(builder, operation)(*args, flags=FUSED)

        return left(left, right), generate

    return _instruction(typed)


plus, minus, times = (_lane_by_lane(operation) for operation in ("fadd", "fsub", "fmul"))


@_compiled
def _read(u, first, width, low, high, scratch, shift, mask, like):
    """Copy some columns of the rows low to high into their ring."""
    for i in range(low, high):
        _store(scratch, shift + ((i * len(like)) & mask), _load(u, i * width + first, like))


@_compiled
def _advance(csr, low, high, factors, scratch, source, before, base, target, goes, dots, like):
    """One step for the rows low to high.

    source, before, base  (start, mask) of the rings of G_{t-1}, G_{t-2} and U
    target, goes          array to write to, and the (start, entries from row to row, mask) of its rows
    dots                  (lanes,) gains ⟨(P - I) G_{t-1}, other⟩, lane by lane, or is empty; `other` lies behind U
    """
    (indptr, indices, weight), (a, b, c), lanes = csr, factors, len(like)
    sums, stop = _zeros(like), _item(indptr, low)
    for i in range(low, high):
        row, start, stop = i * lanes, stop, _item(indptr, i + 1)
        near = _zeros(like)
        for e in range(start, stop):
            at = source[0] + ((np.int64(_item(indices, e)) * lanes) & source[1])
            near = plus(near, _scaled(_item(weight, e), _load(scratch, at, like)))
        own = base[0] + (row & base[1])
        if len(dots) > 0:
            apart = minus(near, _load(scratch, source[0] + (row & source[1]), like))
            sums = plus(sums, times(apart, _load(scratch, own + base[1] + 1, like)))
        near = plus(_scaled(a, near), _scaled(b, _load(scratch, own, like)))
        if c != 0:
            near = plus(near, _scaled(c, _load(scratch, before[0] + (row & before[1]), like)))
        _store(target, goes[0] + ((i * goes[1]) & goes[2]), near)
    if len(dots) > 0:
        end = len(scratch) - lanes
        _store(scratch, end, sums)
        for lane in range(lanes):
            dots[lane] += scratch[end + lane]


@_compiled
def sweep(csr, u, other, out, dots, factors, firsts, width, plan, scratch, like):
    """G_T for the columns from each of `firsts` on, and ⟨(P - I) G_{t-1}, other⟩ of every step, lane by lane.

    csr            indptr, indices, weight of P
    u, other, out  (n * width,) matrices row by row; `other` is empty, as `dots` is, if no products are wanted
    dots           (len(firsts), T, lanes) float64, zeros         factors  (T, 3): a, b, c; c = 0 in the first two steps
    plan           rows in a tile, by how many a step follows the one before it, rows in the ring of U (and of `other`),
                   in the ring of a step, from one such ring to the next, number of these rings; rings are powers of two
    scratch        room for the rings: of U, of `other` if it is there, of the steps; and for one vector more
    like           tuple of zeros, as long as a vector
    """
    n, steps, lanes, with_dots = len(csr[0]) - 1, len(factors), len(like), len(other) > 0
    block, skew, base, ring, stride, slots = plan
    base, ring, stride = base * lanes, ring * lanes, stride * lanes
    rings = 2 * base if with_dots else base
    for which in range(len(firsts)):
        first = firsts[which]
        for tile in range((n + steps * skew + block - 1) // block):
            low, high = tile * block, min(tile * block + block, n)
            _read(u, first, width, low, high, scratch, 0, base - 1, like)
            if with_dots:
                _read(other, first, width, low, high, scratch, base, base - 1, like)
            for t in range(1, steps + 1):
                low, high = max(tile * block - t * skew, 0), min(tile * block + block - t * skew, n)
                source = (rings + (t - 2) % slots * stride, ring - 1) if t > 1 else (0, base - 1)
                before = (rings + (t - 3) % slots * stride, ring - 1)
                target, goes = scratch, (rings + (t - 1) % slots * stride, lanes, ring - 1)
                if t == steps:
                    target, goes = out, (first, width, -1)
                used, sums = (factors[t - 1, 0], factors[t - 1, 1], factors[t - 1, 2]), dots[which, t - 1]
                for part in range(low, high, STRETCH):
                    end = min(part + STRETCH, high)
                    _advance(csr, part, end, used, scratch, source, before, (0, base - 1), target, goes, sums, like)
