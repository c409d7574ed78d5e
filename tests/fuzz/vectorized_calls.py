"""Functions that `fuzz_vectorized.py` calls beside single operations: of lists, of control flow,
and of several operations. All axes are as long, so that they are as long as there are records.
"""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

Fn = Callable[..., Any]
# By name: the arguments, by their names, and the function.
#     x, y [m, m], v [m], z [m, m, m]: numbers;    a [m, m]: positive definite;
#     i [m]: a permutation;    j [m]: places, in order;    c []: a place;    b []: a truth value;
#     image [m, m, m, 3] and picture [m, m, 3]: between 0 and 1.
FUNCTIONS: dict[str, tuple[str, Fn]] = {}


def _named(arguments: str) -> Callable[[Fn], Fn]:
    def note(fn: Fn) -> Fn:
        FUNCTIONS[fn.__name__] = arguments, fn
        return fn

    return note


def _each(arguments: str, **functions: Fn) -> None:
    FUNCTIONS.update({name: (arguments, fn) for name, fn in functions.items()})


class Call:
    """As that of `fuzz_kernels`, of one of these functions."""

    def __init__(self, name: str, draw: random.Random):
        names, self._fn = FUNCTIONS[name]
        m = draw.choice([1, 2, 3, 4])
        rng = np.random.default_rng(draw.randrange(2**32))
        a = rng.normal(size=[m, m])
        image = rng.uniform(0.1, 0.9, [m, m, m, 3])
        made = {
            "x": rng.normal(size=[m, m]),
            "y": rng.normal(size=[m, m]),
            "z": rng.normal(size=[m, m, m]),
            "v": rng.normal(size=[m]),
            "a": a @ a.T + np.eye(m),
            "image": image,
            "picture": image[0],
        }
        self.inputs: dict[str, Any] = {key: array.astype("float32") for key, array in made.items()}
        self.inputs |= {
            "i": rng.permutation(m).astype("int32"),
            "j": np.sort(rng.integers(0, m, m)).astype("int32"),
            "c": np.array(draw.randrange(m), "int32"),
            "b": np.array(draw.random() < 0.5),
        }
        self.inputs = {key: self.inputs[key] for key in names.split()}
        self.shapes: list[Any] = []

    def outputs(self, inputs: dict[str, Any]) -> list[Any]:
        return tf.nest.flatten(self._fn(*(inputs[key] for key in self.inputs)))

    def outcome(self, inputs: dict[str, Any]) -> str | None:
        try:
            made = self.outputs({key: tf.constant(value) for key, value in inputs.items()})
        except (tf.errors.OpError, ValueError, TypeError, AttributeError) as error:
            return f"{type(error).__name__}: {error}"
        self.shapes = [t.shape for t in made]
        return None

    def described(self, inputs: dict[str, Any]) -> str:
        return ", ".join(f"{key}{list(value.shape)}" for key, value in inputs.items())


def _length(x: Any) -> Any:
    return tf.shape(x)[0]


def _array(x: Any, size: Any = None) -> Any:
    """Returns a list of the rows of x."""
    length = _length(x) if size is None else size
    shape = x.shape[1:]
    return tf.TensorArray(x.dtype, length, element_shape=shape, clear_after_read=False).unstack(x)


def _empty(x: Any) -> Any:
    return tf.TensorArray(x.dtype, _length(x), element_shape=x.shape[1:], clear_after_read=False)


_each("x", array_stack=lambda x: _array(x).stack())
_each("z", array_of_matrices_stack=lambda z: _array(z).stack())
_each("x i", array_gather=lambda x, i: _array(x).gather(i))
_each("x j", array_gather_twice=lambda x, j: _array(x).gather(tf.concat([j, j], 0)[: _length(x)]))
_each("z i", array_of_matrices_gather=lambda z, i: _array(z).gather(i))
_each("v i", array_of_numbers_gather=lambda v, i: _array(v).gather(i))
_each("x i", array_scatter=lambda x, i: _empty(x).scatter(i, x).stack())
_each("z i", array_of_matrices_scatter=lambda z, i: _empty(z).scatter(i, z).stack())
_each("x y i", array_scatter_into=lambda x, y, i: _array(y).scatter(i[:1], x[:1]).stack())
_each("x c", array_read=lambda x, c: _array(x).read(c))
_each("z c", array_of_matrices_read=lambda z, c: _array(z).read(c))
_each("x y c", array_write=lambda x, y, c: _array(x).write(c, y[c]).stack())
_each("x y", array_write_last=lambda x, y: _array(x).write(_length(x) - 1, y[0]).stack())
_each("x", array_concat=lambda x: _array(x).concat())
_each("z", array_of_matrices_concat=lambda z: _array(z).concat())
_each(
    "x",
    array_split=lambda x: (
        tf.TensorArray(x.dtype, _length(x), element_shape=[1, x.shape[1]])
        .split(x, tf.ones([_length(x)], tf.int32))
        .stack()
    ),
)
_each(
    "x",
    array_split_concat=lambda x: (
        tf.TensorArray(x.dtype, 2, infer_shape=False)
        .split(x, tf.stack([1, _length(x) - 1]))
        .concat()
    ),
)
_each(
    "x",
    array_that_grows=lambda x: (
        tf.TensorArray(x.dtype, 0, dynamic_size=True, element_shape=x.shape[1:])
        .write(0, x[0])
        .write(1, x[-1])
        .stack()
    ),
)
_each("x", array_size=lambda x: tf.cast(_array(x).size(), x.dtype) * x)
_each(
    "x",
    array_of_unknown_elements=lambda x: (
        tf.TensorArray(x.dtype, _length(x), infer_shape=False).unstack(x).stack()
    ),
)


def _raw(x: Any) -> Any:
    return tf.raw_ops.TensorListFromTensor(tensor=x, element_shape=_of_elements(x))


def _rows(handle: Any, x: Any) -> Any:
    return tf.raw_ops.TensorListStack(
        input_handle=handle, element_shape=_of_elements(x), element_dtype=x.dtype
    )


def _of_elements(x: Any) -> list[int]:
    return [-1 if length is None else length for length in x.shape[1:]]


@_named("x y")
def list_push(x, y):
    handle = tf.raw_ops.TensorListPushBack(input_handle=_raw(x), tensor=y[0])
    return _rows(handle, x)


@_named("x y")
def list_pushed_to_an_empty_one(x, y):
    handle = tf.raw_ops.EmptyTensorList(
        element_shape=_of_elements(x), max_num_elements=-1, element_dtype=x.dtype
    )
    for row in (x[0], y[0], x[-1]):
        handle = tf.raw_ops.TensorListPushBack(input_handle=handle, tensor=row)
    return _rows(handle, x)


@_named("x")
def list_pop(x):
    handle, last = tf.raw_ops.TensorListPopBack(
        input_handle=_raw(x), element_shape=_of_elements(x), element_dtype=x.dtype
    )
    return tf.concat([_rows(handle, x), [2 * last]], 0)


@_named("x y c")
def list_set_item(x, y, c):
    return _rows(
        tf.raw_ops.TensorListSetItem(
            input_handle=_raw(x), index=c, item=y[0], resize_if_index_out_of_bounds=False
        ),
        x,
    )


@_named("x c")
def list_get_item(x, c):
    return tf.raw_ops.TensorListGetItem(
        input_handle=_raw(x), index=c, element_shape=_of_elements(x), element_dtype=x.dtype
    )


@_named("x i")
def list_gather(x, i):
    return tf.raw_ops.TensorListGather(
        input_handle=_raw(x), indices=i, element_shape=_of_elements(x), element_dtype=x.dtype
    )


@_named("x i")
def list_gather_without_a_shape(x, i):
    return tf.raw_ops.TensorListGather(
        input_handle=_raw(x), indices=i, element_shape=-1, element_dtype=x.dtype
    )


@_named("x i")
def list_scatter(x, i):
    return _rows(
        tf.raw_ops.TensorListScatterV2(
            tensor=x, indices=i, element_shape=_of_elements(x), num_elements=_length(x)
        ),
        x,
    )


@_named("x y i")
def list_scatter_into(x, y, i):
    return _rows(
        tf.raw_ops.TensorListScatterIntoExistingList(input_handle=_raw(x), tensor=y, indices=i), x
    )


@_named("x y")
def list_concatenated(x, y):
    return _rows(
        tf.raw_ops.TensorListConcatLists(input_a=_raw(x), input_b=_raw(y), element_dtype=x.dtype), x
    )


@_named("z")
def list_concat(z):
    return tf.raw_ops.TensorListConcatV2(
        input_handle=_raw(z),
        element_shape=_of_elements(z),
        leading_dims=tf.constant([], "int64"),
        element_dtype=z.dtype,
    )[0]


@_named("x")
def list_split(x):
    handle = tf.raw_ops.TensorListSplit(
        tensor=x, element_shape=[1, x.shape[1]], lengths=tf.ones([_length(x)], tf.int64)
    )
    return tf.raw_ops.TensorListStack(
        input_handle=handle, element_shape=[1, x.shape[1]], element_dtype=x.dtype
    )


@_named("x")
def list_resized(x):
    handle = tf.raw_ops.TensorListResize(input_handle=_raw(x), size=_length(x) + 1)
    return _rows(handle, x)


@_named("x")
def list_reserved(x):
    handle = tf.raw_ops.TensorListReserve(
        element_shape=_of_elements(x), num_elements=_length(x), element_dtype=x.dtype
    )
    return _rows(handle, x) + x


@_named("x y")
def lists_zipped(x, y):
    zeros = tf.zeros_like(_raw(x))
    return _rows(zeros, x) + y


@_named("x")
def turns(x):
    return tf.while_loop(lambda t, s: t < 3, lambda t, s: (t + 1, tf.tanh(s @ x)), [0, x])[1]


@_named("x i")
def turns_that_read_and_write(x, i):
    rows, kept = _array(x), _empty(x)
    return tf.while_loop(
        lambda t, kept, s: t < _length(x),
        lambda t, kept, s: (t + 1, kept.write(t, s + rows.read(i[t])), s * 0.5 + rows.read(t)),
        [0, kept, x[0]],
    )[1].stack()


@_named("x i")
def turns_that_write_elsewhere(x, i):
    kept = _empty(x)
    return tf.while_loop(
        lambda t, kept: t < _length(x), lambda t, kept: (t + 1, kept.write(i[t], x[t])), [0, kept]
    )[1].stack()


@_named("x i")
def turns_that_gather(x, i):
    rows = _array(x)
    return tf.while_loop(
        lambda t, s: t < 3, lambda t, s: (t + 1, tf.tanh(s + rows.gather(i))), [0, x]
    )[1]


@_named("x")
def turns_that_stack(x):
    def turn(t, s):
        return t + 1, _array(s).stack() @ s

    return tf.while_loop(lambda t, s: t < 2, turn, [0, x])[1]


@_named("x c")
def turns_of_a_record(x, c):
    return tf.while_loop(
        lambda t, s: t < c, lambda t, s: (t + 1, tf.tanh(s + x[t])), [0, x[0]], maximum_iterations=4
    )[1]


@_named("x")
def turns_until(x):
    return tf.while_loop(
        lambda s: tf.reduce_sum(s) < 1.0,
        lambda s: (s + 0.5 * tf.abs(x) + 0.1,),
        [x],
        maximum_iterations=5,
    )[0]


@_named("x c")
def turns_of_a_record_that_write(x, c):
    return tf.while_loop(
        lambda t, kept: t < c,
        lambda t, kept: (t + 1, kept.write(t, x[t])),
        [0, _array(x * 0)],
        maximum_iterations=4,
    )[1].stack()


@_named("x")
def turns_in_turns(x):
    def inner(s):
        return tf.while_loop(lambda t, r: t < 2, lambda t, r: (t + 1, r @ x), [0, s])[1]

    return tf.while_loop(lambda t, s: t < 2, lambda t, s: (t + 1, tf.tanh(inner(s))), [0, x])[1]


@_named("x y")
def turns_with_exchange(x, y):
    return tf.while_loop(
        lambda t, a, b: t < 3, lambda t, a, b: (t + 1, b, tf.transpose(a)), [0, x, y]
    )[1:]


@_named("x b")
def turns_with_branches(x, b):
    def turn(t, s):
        return t + 1, tf.cond(b, lambda: s @ x, lambda: s + x)

    return tf.while_loop(lambda t, s: t < 2, turn, [0, x])[1]


_each("x y b", branches=lambda x, y, b: tf.cond(b, lambda: x @ y, lambda: y - x))
_each(
    "x y",
    branches_by_sum=lambda x, y: tf.cond(
        tf.reduce_sum(x) > 0, lambda: tf.reverse(x, [0]), lambda: tf.transpose(y)
    ),
)
_each(
    "x y c",
    cases=lambda x, y, c: tf.switch_case(
        c, [lambda: x, lambda: x + y, lambda: y[::-1], lambda: tf.transpose(x)]
    ),
)
_each(
    "x b i",
    branches_with_lists=lambda x, b, i: tf.cond(
        b, lambda: _array(x).gather(i), lambda: _array(x).write(0, x[-1]).stack()
    ),
)
_each(
    "x y b",
    branches_of_a_list=lambda x, y, b: tf.cond(
        b, lambda: _array(x).write(0, y[0]), lambda: _array(x).write(_length(x) - 1, y[0])
    ).stack(),
)


@_named("x y b")
def branches_in_branches(x, y, b):
    return tf.cond(
        b,
        lambda: tf.cond(x[0, 0] > 0, lambda: x, lambda: y),
        lambda: tf.cond(tf.logical_not(b), lambda: x * y, lambda: y),
    )


_each("x v", scan=lambda x, v: tf.scan(lambda s, r: tf.tanh(s * 0.5 + r), x, v))
_each("x v", scan_back=lambda x, v: tf.scan(lambda s, r: s * 0.5 + r, x, v, reverse=True))
_each("x", scan_without_a_start=lambda x: tf.scan(lambda s, r: s * r, x))
_each("x v", foldl=lambda x, v: tf.foldl(lambda s, r: tf.tanh(s + r), x, v))
_each("x v", foldr=lambda x, v: tf.foldr(lambda s, r: tf.tanh(s + r), x, v))
_each(
    "x y",
    map_fn=lambda x, y: tf.map_fn(
        lambda r: r[0] * tf.reverse(r[1], [0]), (x, y), fn_output_signature=tf.float32
    ),
)
_each(
    "z",
    map_fn_in_map_fn=lambda z: tf.map_fn(
        lambda m: tf.map_fn(lambda r: tf.reverse(r, [0]) * 2, m), z
    ),
)
_each(
    "z v", scan_in_map_fn=lambda z, v: tf.map_fn(lambda m: tf.scan(lambda s, r: s + r * r, m, v), z)
)
_each("x z", map_fn_in_scan=lambda x, z: tf.scan(lambda s, m: tf.map_fn(tf.tanh, s + m), z, x))
_each("z", vectorized_map=lambda z: tf.vectorized_map(lambda m: m @ tf.transpose(m), z))
_each(
    "x i",
    map_fn_of_places=lambda x, i: tf.map_fn(lambda k: x[k] * 2, i, fn_output_signature=tf.float32),
)
_each("x", called=lambda x: tf.function(lambda y: tf.reduce_sum(y, 0) + x)(x * 2))
_each("x y", recomputed=lambda x, y: tf.recompute_grad(lambda a, b: tf.tanh(a @ b))(x, y))


@_named("x y")
def own_gradient(x, y):
    @tf.custom_gradient
    def product(a, b):
        return a @ b, lambda g: (tf.reverse(g, [0]), tf.transpose(g))

    return product(x, y)


@_named("x")
def gradient_of_a_gradient(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        total = tf.reduce_sum(tf.roll(x, 1, -1) ** 3 * x)
    return tape.gradient(total, x)


@_named("x")
def jacobian(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.tanh(tf.reduce_sum(x @ x, 0))
    return tape.jacobian(y, x)


_each(
    "image",
    flip=tf.image.flip_left_right,
    rotate=tf.image.rot90,
    contrast=lambda p: tf.image.adjust_contrast(p, 2.0),
    hue=lambda p: tf.image.adjust_hue(p, 0.1),
    saturation=lambda p: tf.image.adjust_saturation(p, 0.5),
    brightness=lambda p: tf.image.adjust_brightness(p, 0.5),
    gray=tf.image.rgb_to_grayscale,
    colours=lambda p: tf.image.rgb_to_yuv(p),
    hsv=lambda p: tf.image.hsv_to_rgb(tf.image.rgb_to_hsv(p)),
    standardized=tf.image.per_image_standardization,
    variation=tf.image.total_variation,
    sobel=tf.image.sobel_edges,
    gradients_of_images=tf.image.image_gradients,
    bilinear=lambda p: tf.image.resize(p, [3, 3]),
    nearest=lambda p: tf.image.resize(p, [3, 3], "nearest"),
    bicubic=lambda p: tf.image.resize(p, [4, 2], "bicubic"),
    area=lambda p: tf.image.resize(p, [2, 2], "area"),
    lanczos=lambda p: tf.image.resize(p, [3, 3], "lanczos3"),
    antialias=lambda p: tf.image.resize(p, [3, 3], antialias=True),
    padded=lambda p: tf.image.resize_with_pad(p, 4, 3),
    cropped=lambda p: tf.image.resize_with_crop_or_pad(p, 3, 3),
    central=lambda p: tf.image.central_crop(p, 0.5),
    patches=lambda p: tf.image.extract_patches(p, [1, 2, 2, 1], [1, 1, 1, 1], [1, 1, 1, 1], "SAME"),
    signal_to_noise=lambda p: tf.image.psnr(p, p * p, 1.0),
    similarity=lambda p: tf.image.ssim(p, p * p, 1.0, filter_size=1),
    crops=lambda p: tf.image.crop_and_resize(
        p, tf.constant([[0.0, 0.0, 0.5, 1.0]] * 2), tf.constant([0, 0]), [2, 2]
    ),
)
_each(
    "picture",
    flip_of_one=tf.image.flip_up_down,
    transposed_one=tf.image.transpose,
    standardized_one=tf.image.per_image_standardization,
    bilinear_of_one=lambda p: tf.image.resize(p, [3, 3]),
    padded_one=lambda p: tf.image.pad_to_bounding_box(p, 1, 1, 6, 6),
    contrast_of_one=lambda p: tf.image.adjust_contrast(p, 2.0),
    variation_of_one=tf.image.total_variation,
)
_each(
    "x",
    stft=lambda x: tf.abs(tf.signal.stft(tf.tile(x, [1, 4]), 4, 2)),
    inverse_stft=lambda x: tf.signal.inverse_stft(tf.signal.stft(tf.tile(x, [1, 4]), 4, 2), 4, 2),
    frames=lambda x: tf.signal.frame(x, 1, 1),
    frames_along=lambda x: tf.signal.frame(x, 1, 1, axis=0),
    frames_padded=lambda x: tf.signal.frame(x, 2, 1, pad_end=True),
    overlapped=lambda x: tf.signal.overlap_and_add(x[None], 1),
    dct=lambda x: tf.signal.dct(x, norm="ortho"),
    dct_1=lambda x: tf.signal.dct(tf.tile(x, [1, 2]), 1),
    inverse_dct=tf.signal.idct,
    mfcc=lambda x: tf.signal.mfccs_from_log_mel_spectrograms(x),
    shifted=lambda x: tf.signal.fftshift(x),
    shifted_along=lambda x: tf.signal.ifftshift(x, [-1]),
    rfft=lambda x: tf.abs(tf.signal.rfft(x)),
    rfft2d=lambda x: tf.abs(tf.signal.rfft2d(x)),
    fft=lambda x: tf.math.imag(tf.signal.fft(tf.cast(x, tf.complex64))),
    rolled=lambda x: tf.roll(x, 1, -1),
    rolled_up=lambda x: tf.roll(x, 1, -2),
    rolled_twice=lambda x: tf.roll(x, [1, 1], [0, -1]),
    rolled_by_all=lambda x: tf.roll(x, [1, 2], [-1, -2]),
    squeezed=lambda x: tf.squeeze(x[:1]),
    squeezed_twice=lambda x: tf.squeeze(tf.squeeze(x[None, :, None])),
    squeezed_last=lambda x: tf.squeeze(x[..., None], -1),
    squeezed_first=lambda x: tf.squeeze(x[None], 0),
    reversed_=lambda x: tf.reverse(x, [-1]),
    reversed_up=lambda x: tf.reverse(x, [-2]),
    reversed_slices=lambda x: x[::-1, ::-1],
    newaxis=lambda x: x[:, None, :] - x[None],
    ellipsis=lambda x: x[..., 0],
    transposed=lambda x: tf.transpose(x),
    transposed_adjoint=lambda x: tf.linalg.adjoint(x),
    tiled=lambda x: tf.tile(x, [2, 1]),
    repeated=lambda x: tf.repeat(x, 2, axis=0),
    repeated_last=lambda x: tf.repeat(x, 2, axis=-1),
    stacked=lambda x: tf.stack([x, x * 2], -1),
    stacked_up=lambda x: tf.stack([x, x * 2], -2),
    unstacked=lambda x: tf.unstack(x, axis=-1),
    split=lambda x: tf.split(x, x.shape[-1], -1),
    concatenated=lambda x: tf.concat([x, x * 2], -1),
    concatenated_up=lambda x: tf.concat([x, x * 2], -2),
    reflected=lambda x: tf.pad(x, [[0, 0], [0, 0]], "REFLECT"),
    symmetric=lambda x: tf.pad(x, [[1, 1], [1, 0]], "SYMMETRIC"),
    padded_with_zeros=lambda x: tf.pad(x, [[1, 0], [0, 1]]),
    cumsum=lambda x: tf.cumsum(x, -1),
    cumsum_up=lambda x: tf.cumsum(x, -2, exclusive=True, reverse=True),
    cumprod=lambda x: tf.math.cumprod(x, -1),
    logcumsumexp=lambda x: tf.math.cumulative_logsumexp(x, -1),
    sums=lambda x: [tf.reduce_sum(x, -1), tf.reduce_mean(x, -2), tf.reduce_max(x, [-2, -1])],
    sums_kept=lambda x: [tf.reduce_sum(x, -1, True), tf.reduce_prod(x, -2, True)],
    norms=lambda x: [tf.norm(x), tf.norm(x, axis=-1), tf.norm(x, 1, axis=0)],
    logsumexp=lambda x: tf.reduce_logsumexp(x, -2),
    variance=lambda x: tf.math.reduce_variance(x, -1),
    any_of=lambda x: tf.cast(tf.reduce_any(x > 0, -2), tf.float32),
    largest=lambda x: [tf.argmax(x, -1), tf.argmin(x, -2), tf.argmax(x, 0)],
    top_k=lambda x: tf.math.top_k(x, 1),
    sort=lambda x: tf.sort(x, 0),
    sort_up=lambda x: tf.sort(x, -2, "DESCENDING"),
    argsort=lambda x: tf.argsort(x, 0),
    softmax_up=lambda x: tf.nn.softmax(x, -2),
    log_softmax=lambda x: tf.nn.log_softmax(x, 0),
    masked=lambda x: tf.where(x > 0, x, tf.reverse(x, [0])),
    nonzero=lambda x: tf.where(x > 0),
    unique=lambda x: tf.unique(x[0]),
    meshes=lambda x: tf.meshgrid(x[0], x[:, 0]),
    products=lambda x: tf.tensordot(x, x, [[1], [0]]),
    einsum=lambda x: tf.einsum("ij,kj->ik", x, x),
    einsum_dots=lambda x: tf.einsum("...i,...i->...", x, x),
    einsum_diagonal=lambda x: tf.einsum("ii->i", x),
    outer=lambda x: tf.einsum("i,jk->ijk", x[0], x),
    kron=lambda x: tf.linalg.LinearOperatorKronecker(
        [tf.linalg.LinearOperatorFullMatrix(x)] * 2
    ).to_dense(),
    diagonal=tf.linalg.diag_part,
    diagonals=lambda x: tf.linalg.diag_part(x, k=0),
    diagonal_of=lambda x: tf.linalg.diag(x[0]),
    set_diagonal=lambda x: tf.linalg.set_diag(x, x[0]),
    band=lambda x: tf.linalg.band_part(x, 0, -1),
    trace=tf.linalg.trace,
    expm=tf.linalg.expm,
    svd=lambda x: tf.linalg.svd(x, compute_uv=False),
    qr=lambda x: tf.abs(tf.linalg.qr(x).r),
    pinv=tf.linalg.pinv,
    normalized=lambda x: tf.linalg.normalize(x, axis=-2)[0],
    l2_normalized=lambda x: tf.nn.l2_normalize(x, -1),
    moments=lambda x: tf.nn.moments(x, [-1]),
    moments_up=lambda x: tf.nn.moments(x, [0]),
    weighted=lambda x: tf.nn.weighted_moments(x, [-2], tf.abs(x)),
    pooled=lambda x: tf.nn.pool(x[None], [1], "AVG"),
    pooled_1d=lambda x: tf.nn.max_pool1d(x[None], 1, 1, "SAME"),
    dense_bincount=lambda x: tf.math.bincount(
        tf.cast(tf.abs(x[0]), tf.int32), minlength=3, maxlength=3
    ),
    histogram=lambda x: tf.histogram_fixed_width(x, [-1.0, 1.0], 3),
    clipped=lambda x: [tf.clip_by_norm(x, 1.0, -1), tf.clip_by_norm(x, 1.0, [0])],
    clipped_global=lambda x: tf.clip_by_global_norm([x, x[0]], 1.0)[0],
    cross=lambda x: tf.linalg.cross(
        tf.tile(x[:, :1], [1, 3]), tf.constant([1.0, 2.0, 3.0]) + x[:, :1]
    ),
    broadcast=lambda x: tf.broadcast_to(x[0], tf.shape(x)),
    flat=lambda x: tf.reshape(x, [-1]),
    reshaped=lambda x: tf.reshape(x, [-1, 1, x.shape[0]]),
    constants=lambda x: [tf.zeros_like(x), tf.ones(tf.shape(x)), tf.eye(2), tf.fill([2], x[0, 0])],
    ranges=lambda x: tf.linspace(x[0], x[-1], 3),
    polynomial=lambda x: tf.math.polyval([1.0, x, x * 2], x),
    interpolated=lambda x: tf.math.softplus(x) + tf.math.sigmoid(x) * tf.nn.gelu(x),
)
_each(
    "a x",
    solve=tf.linalg.solve,
    solve_adjoint=lambda a, x: tf.linalg.solve(a, x, adjoint=True),
    triangular=lambda a, x: tf.linalg.triangular_solve(a, x),
    triangular_upper=lambda a, x: tf.linalg.triangular_solve(a, x, lower=False, adjoint=True),
    cholesky_solve=lambda a, x: tf.linalg.cholesky_solve(tf.linalg.cholesky(a), x),
    lstsq=lambda a, x: tf.linalg.lstsq(a, x, 0.1),
    lu_solve=lambda a, x: tf.linalg.lu_solve(*tf.linalg.lu(a), x),
    tridiagonal=lambda a, x: tf.linalg.tridiagonal_solve(
        tf.stack([x[0] * 0, a[0] * 0 + 2, x[0] * 0]), x
    ),
    matvec=lambda a, x: tf.linalg.matvec(a, x[0]),
    matmul=lambda a, x: [tf.matmul(a, x, transpose_a=True), tf.matmul(a, x, transpose_b=True)],
    batched=lambda a, x: a[None] @ x[None],
    batched_with_one=lambda a, x: a @ x[None],
)
_each(
    "a",
    inverse=tf.linalg.inv,
    cholesky=tf.linalg.cholesky,
    determinant=tf.linalg.det,
    slogdet=tf.linalg.slogdet,
    logdet=tf.linalg.logdet,
    eigenvalues=lambda a: tf.linalg.eigvalsh(a),
    eigh=lambda a: tf.abs(tf.linalg.eigh(a)[1]),
    sqrtm=tf.linalg.sqrtm,
    logm=lambda a: tf.math.real(tf.linalg.logm(tf.cast(a, tf.complex64))),
    rank_of=tf.linalg.matrix_rank,
)
_each(
    "x j",
    segment_sum=tf.math.segment_sum,
    segment_mean=tf.math.segment_mean,
    segment_max=tf.math.segment_max,
    segment_prod=tf.math.segment_prod,
    unsorted_sum=lambda x, j: tf.math.unsorted_segment_sum(x, j, x.shape[0]),
    unsorted_mean=lambda x, j: tf.math.unsorted_segment_mean(x, j, 4),
    unsorted_max=lambda x, j: tf.math.unsorted_segment_max(x, j, 4),
    unsorted_prod=lambda x, j: tf.math.unsorted_segment_prod(x, j, x.shape[0]),
    unsorted_sqrt_n=lambda x, j: tf.math.unsorted_segment_sqrt_n(x, j, 4),
    gather=tf.gather,
    gather_last=lambda x, j: tf.gather(x, j, axis=-1),
    gather_batch=lambda x, j: tf.gather(x, j, batch_dims=1),
    gather_one=lambda x, j: tf.gather(x, j[0], axis=1),
    gather_nd=lambda x, j: tf.gather_nd(x, j[:, None]),
    gather_nd_pairs=lambda x, j: tf.gather_nd(x, tf.stack([j, j], -1)),
    gather_nd_batch=lambda x, j: tf.gather_nd(x, j[:, None], batch_dims=1),
    embedded=lambda x, j: tf.nn.embedding_lookup(x, j),
    scatter_nd=lambda x, j: tf.scatter_nd(j[:, None], x, x.shape),
    scatter_add=lambda x, j: tf.tensor_scatter_nd_add(x, j[:, None], x * 2),
    scatter_max=lambda x, j: tf.tensor_scatter_nd_max(x, j[:, None], x * 2),
    scatter_sub=lambda x, j: tf.tensor_scatter_nd_sub(x, j[:1, None], x[:1] * 2),
    scatter_update=lambda x, j: tf.tensor_scatter_nd_update(x, j[:1, None], x[:1] * 2),
    one_hot=lambda x, j: tf.one_hot(j, 3) @ tf.ones([3, 2]) * x[0, 0],
    one_hot_first=lambda x, j: tf.one_hot(j, 4, axis=0),
    cross_entropy=lambda x, j: tf.nn.sparse_softmax_cross_entropy_with_logits(j, x),
    reversed_sequences=lambda x, j: tf.reverse_sequence(x, j + 1, seq_axis=1, batch_axis=0),
    sequence_mask=lambda x, j: tf.sequence_mask(j, 4, x.dtype),
    sampled=lambda x, j: tf.math.in_top_k(j, x, 1),
    searched=lambda x, j: tf.searchsorted(tf.sort(x), tf.cast(j, x.dtype)[:, None]),
    bucketized=lambda x, j: tf.raw_ops.Bucketize(input=x, boundaries=[0.0, 0.5]),
    partitioned=lambda x, j: tf.dynamic_partition(x, j, 2),
    bincount_weighted=lambda x, j: tf.math.bincount(j, x[0], minlength=4, maxlength=4),
    confusion=lambda x, j: tf.math.confusion_matrix(j, j[::-1], 4),
    rolled_by=lambda x, j: tf.roll(x, j[0], -1),
    rolled_by_two=lambda x, j: tf.roll(x, [j[0], j[-1]], [-1, 0]),
    item=lambda x, j: x[j[0]],
    item_of_all=lambda x, j: x[:, j[0]],
    two_items=lambda x, j: x[j[0], j[-1]],
    begin=lambda x, j: tf.slice(x, [j[0], 0], [1, 1]),
    updated=lambda x, j: tf.tensor_scatter_nd_update(x[0], j[:1, None], [1.0]),
)
_each(
    "x i",
    stitched=lambda x, i: tf.dynamic_stitch([i], [x]),
    inverted=lambda x, i: tf.math.invert_permutation(i),
    permuted=lambda x, i: tf.transpose(x, i[:2] if x.shape[0] == 2 else [1, 0]),
)
_each(
    "image z",
    convolved=lambda p, z: tf.nn.conv2d(p, tf.tile(z[:1, :1, :1, None], [1, 1, 3, 2]), 1, "SAME"),
    depthwise=lambda p, z: tf.nn.depthwise_conv2d(
        p, tf.tile(z[:1, :1, :1, None], [1, 1, 3, 2]), [1] * 4, "SAME"
    ),
    transposed_convolved=lambda p, z: tf.nn.conv2d_transpose(
        p, tf.tile(z[:1, :1, :1, None], [1, 1, 2, 3]), [*p.shape[:3], 2], 1
    ),
    separable=lambda p, z: tf.nn.separable_conv2d(
        p,
        tf.tile(z[:1, :1, :1, None], [1, 1, 3, 1]),
        tf.tile(z[:1, :1, :1, None], [1, 1, 3, 2]),
        [1] * 4,
        "SAME",
    ),
    dilated=lambda p, z: tf.nn.conv2d(
        p, tf.tile(z[:1, :1, :1, None], [2, 2, 3, 2]), 1, "SAME", dilations=2
    ),
    morphology=lambda p, z: tf.nn.dilation2d(
        p, tf.tile(z[:1, :1, :1], [2, 2, 3]), [1] * 4, "SAME", "NHWC", [1] * 4
    ),
    average=lambda p, z: tf.nn.avg_pool2d(p, 2, 1, "SAME"),
    maximum=lambda p, z: tf.nn.max_pool2d(p, 2, 1, "SAME"),
    maximum_places=lambda p, z: tf.nn.max_pool_with_argmax(p, 2, 1, "SAME"),
    local_response=lambda p, z: tf.nn.local_response_normalization(p),
    blocks=lambda p, z: tf.nn.space_to_depth(tf.tile(p, [1, 2, 2, 1]), 2),
    blocks_back=lambda p, z: tf.nn.depth_to_space(tf.tile(p, [1, 1, 1, 4]), 2),
    batches=lambda p, z: tf.space_to_batch(tf.tile(p, [1, 2, 2, 1]), [2, 2], [[0, 0], [0, 0]]),
    batches_back=lambda p, z: tf.batch_to_space(tf.tile(p, [4, 1, 1, 1]), [2, 2], [[0, 0], [0, 0]]),
    biased=lambda p, z: tf.nn.bias_add(p, tf.tile(z[:1, 0, 0], [3])),
    biased_channels=lambda p, z: tf.nn.bias_add(
        tf.transpose(p, [0, 3, 1, 2]), tf.tile(z[:1, 0, 0], [3]), "NCHW"
    ),
    batch_norm=lambda p, z: tf.nn.batch_normalization(p, z[0, 0, 0], 1.0, z[0, 0, 0], 2.0, 0.1),
    fused_norm=lambda p, z: tf.compat.v1.nn.fused_batch_norm(
        p, tf.tile(z[:1, 0, 0], [3]), tf.ones([3])
    )[0],
    resampled=lambda p, z: tf.raw_ops.ImageProjectiveTransformV3(
        images=p,
        transforms=tf.constant([[1.0, 0.1, 0, 0, 1, 0, 0, 0]]),
        output_shape=[3, 3],
        fill_value=0.0,
        interpolation="BILINEAR",
        fill_mode="CONSTANT",
    ),
)
_each(
    "z x",
    convolved_1d=lambda z, x: tf.nn.conv1d(z, x[None], 1, "SAME"),
    attention=lambda z, x: tf.nn.softmax(tf.matmul(z, z, transpose_b=True)) @ z + x,
    broadcast_products=lambda z, x: [z @ x, x @ z, tf.einsum("bij,jk->bik", z, x)],
    biased_1d=lambda z, x: tf.nn.bias_add(z, x[0]),
    selected=lambda z, x: tf.where(x > 0, z, x),
    selected_by_vector=lambda z, x: tf.compat.v1.where(x[0] > 0, z, z * 2),
    rolled_middle=lambda z, x: tf.roll(z, 1, -2) * x,
    diagonals_of=lambda z, x: tf.linalg.diag(x) + tf.linalg.set_diag(z, x),
    diagonals_up=lambda z, x: tf.linalg.diag_part(z, k=(0, 0)),
    ctc=lambda z, x: tf.nn.ctc_loss(
        tf.zeros([z.shape[0], 1], tf.int32),
        z,
        tf.zeros([z.shape[0]], tf.int32),
        tf.fill([z.shape[0]], z.shape[0]),
        blank_index=-1,
    ),
)


@_named("i x")
def draws_without_state(i, x):
    seed = tf.stack([i[0], 3])
    drawn = tf.random.stateless_normal([2], seed), tf.random.stateless_uniform([2], seed)
    return [*drawn, tf.random.stateless_truncated_normal([2], seed), x]


@_named("j x")
def draws_of_whole_numbers(j, x):
    seed = tf.stack([j[0], 3])
    return [
        tf.random.stateless_uniform([2], seed, 0, 5, tf.int32),
        tf.random.stateless_categorical(x, 2, seed),
        tf.random.stateless_gamma([x.shape[0]], seed, tf.abs(x[0]) + 1),
        tf.random.experimental.stateless_shuffle(x, seed),
    ]
