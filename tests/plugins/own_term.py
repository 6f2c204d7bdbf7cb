"""A loss term of one's own: the squared difference of logits (Ba and Caruana 2014), the mean over teachers."""

from dataclasses import dataclass

import torch

import knot_runner as kr


@dataclass
class LogitTermSettings:
    weight: float
    #: logits less their mean over classes, which softmax does not see
    centered: bool = True


def make(options, inputs):
    def center(logits):
        return logits - logits.mean(1, keepdim=True) if options.centered else logits

    def loss(student, teachers, batch):
        wanted = torch.stack([center(teacher.logits) for teacher in teachers]).mean(0)
        return (center(student.logits) - wanted).square().mean(1)

    return loss


kr.TERMS["logits"] = kr.Term(LogitTermSettings, make)
