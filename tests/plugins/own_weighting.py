"""A weighting of teachers of one's own: the margin between a teacher's two most likely labels (``weighting: M``)."""

import knot_runner as kr


def margin(q, shares, biases):
    """Outputs ``q`` [N, K, C] of K teachers -> weights [N, K]."""
    first, second = q.topk(2, dim=2).values.unbind(2)
    return first - second


kr.WEIGHTINGS["M"] = margin
