"""Top-k sparsification (Aji and Heafield 2017, section 3) of client updates, for any method.

Error feedback is not implemented: entries that a client does not send in a round are lost.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from knot_runner.config.settings.methods.federated import AveragingSettings, FederatedSettings
from knot_runner.methods.contract import Method, Sent

#: Bytes that say where an entry stands.
INDEX = 4


def compressed(method: Method, config: FederatedSettings) -> Method:
    """Return ``method`` with clients that send only the largest entries of their update.

    ``top_k`` is the share of entries that are sent. The server treats the other entries as 0.
    """
    if not isinstance(config, AveragingSettings) or config.top_k is None:
        return method
    share = config.top_k

    def send(sent: Sent, phase: int) -> Sent:
        sent = method.send(sent, phase)
        return top_k(sent, share) if "update" in sent.parts else sent

    return replace(method, send=send)


def top_k(sent: Sent, share: float) -> Sent:
    """Return the message with only the ``share`` of update entries that are largest in absolute value, at least one.

    Each entry is sent with its index. The whole update is sent if that takes fewer bytes.
    """
    update = sent.parts["update"]
    count = max(1, round(share * len(update)))
    places = update.abs().topk(count).indices
    packed = sent.bytes - (len(update) - count) * update.element_size() + count * INDEX
    if packed >= sent.bytes:
        return sent
    largest = torch.zeros_like(update).index_copy(0, places, update[places])
    return replace(sent, parts={**sent.parts, "update": largest}, packed=packed)
