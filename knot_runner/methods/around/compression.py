"""Top-k sparsification (Aji and Heafield 2017, section 3) of client updates, for any method.

Error feedback is not implemented: entries that a client does not send in a round are lost.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from knot_runner.methods.contract import Method, Sent

#: Number of bytes that the index of one sent entry takes.
INDEX = 4


def compressed(method: Method, share: float) -> Method:
    """Return ``method`` with compressed client updates.

    A client sends only a fraction ``share`` of the entries of its update: the entries with the largest absolute values.
    The server treats the other entries as 0.
    """

    def send(sent: Sent, phase: int) -> Sent:
        sent = method.send(sent, phase)
        if "update" in sent.parts:
            sent = top_k(sent, share)
        return sent

    return replace(method, send=send)


def top_k(sent: Sent, share: float) -> Sent:
    """Keep the largest entries of a message's update; set the other entries to 0.

    ``share`` is the fraction of entries that are kept; at least one is kept. Entries are compared by absolute value.
    The size of the message includes the kept entries and their indices. If the message would not become smaller, it is
    returned unchanged.
    """
    update = sent.parts["update"]
    count = max(1, round(share * len(update)))
    places = update.abs().topk(count).indices
    packed = sent.bytes - (len(update) - count) * update.element_size() + count * INDEX
    if packed >= sent.bytes:
        return sent
    largest = torch.zeros_like(update).index_copy(0, places, update[places])
    return replace(sent, parts={**sent.parts, "update": largest}, packed=packed)
