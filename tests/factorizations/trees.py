"""Binary trees over steps, node by node."""

import numpy as np


def _nodes(n):
    """Returns the whole nodes of a tree over n steps: (level, first step, last step)."""
    return [
        (level, k << level, ((k + 1) << level) - 1)
        for level in range(n.bit_length())
        for k in range(n >> level)
    ]


def tree_matrices(n, efficient):
    """Returns B and C, node by node: running sums are B C g, and their noise is B z.

    The slow, obvious twin: B of an efficient tree is least squares over the nodes below.
    """
    nodes = _nodes(n)
    c = np.array([[float(a <= t <= b) for t in range(n)] for _, a, b in nodes])
    b = np.zeros([n, len(nodes)])
    for t in range(n):
        start = 0
        for level in reversed(range(n.bit_length())):
            if not (t + 1) >> level & 1:
                continue
            first, last = start, start + (1 << level) - 1
            start = last + 1
            if not efficient:
                b[t, nodes.index((level, first, last))] = 1
                continue
            below = [i for i, (_, x, y) in enumerate(nodes) if first <= x and y <= last]
            part = c[np.ix_(below, range(first, last + 1))]
            b[t, below] += np.ones(last + 1 - first) @ np.linalg.pinv(part)
    return b, c
