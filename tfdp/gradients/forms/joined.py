"""Gradients of many small variables in one tensor.

A deep model has hundreds of offsets and scales. One norm and one sum for all of them take a
hundredth of the operations, and these are what the first step spends its time on.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import tensorflow as tf

from tfdp.gradients.forms.per_record import Explicit, PerRecordGradient

# Gradients of more numbers than this are not copied.
_SMALL = 2**12


class Joined:
    """The gradients of all variables, small explicit ones of the same key in one tensor.

    Attributes:
        records: Gradients, [n, ...] each, of one or several variables.
        keys: The key of each.

    Args:
        records: Gradients, by variable.
        keys: The key of each.
    """

    def __init__(self, records: Sequence[PerRecordGradient], keys: Sequence[Hashable]):
        members: dict[Hashable, list[int]] = {}
        for i, (record, key) in enumerate(zip(records, keys, strict=True)):
            label = ("one", i)
            if isinstance(record, Explicit) and _is_small(record.explicit()):
                label = (key, record.explicit().dtype)
            members.setdefault(label, []).append(i)
        self._members = list(members.values())
        self._shapes = [
            [records[i].explicit().shape[1:] for i in together] if len(together) > 1 else []
            for together in self._members
        ]
        self.keys = [keys[together[0]] for together in self._members]
        self.records = [_join([records[i] for i in together]) for together in self._members]

    def by_variable(self, sums: Sequence[Any]) -> list[Any]:
        """Returns sums over records of `records`, in the order and the shapes of the variables."""
        pairs: list[tuple[int, Any]] = []
        for together, shapes, total in zip(self._members, self._shapes, sums, strict=True):
            parts = [total]
            if shapes:
                rows = tf.split(total, [shape.num_elements() for shape in shapes])
                parts = [
                    row if shape.rank == 1 else tf.reshape(row, shape)
                    for row, shape in zip(rows, shapes, strict=True)
                ]
            pairs += zip(together, parts, strict=True)
        return [part for _, part in sorted(pairs, key=lambda pair: pair[0])]


def _is_small(gradients: tf.Tensor) -> bool:
    numbers = gradients.shape[1:].num_elements()
    return numbers is not None and 0 < numbers <= _SMALL


def _join(records: list[PerRecordGradient]) -> PerRecordGradient:
    if len(records) == 1:
        return records[0]
    leaves = [record.explicit() for record in records]
    rows = [
        leaf if leaf.shape.rank == 2 else tf.reshape(leaf, [-1, leaf.shape[1:].num_elements()])
        for leaf in leaves
    ]
    return Explicit(tf.concat(rows, 1))
