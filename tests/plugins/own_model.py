"""An image model of one's own: depthwise-separable convolutions with batch normalization and dropout."""

from torch import nn


def separable(shape, classes, width):
    return Separable(shape[0], classes, width)


class Separable(nn.Module):
    def __init__(self, channels, classes, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, groups=channels), nn.Conv2d(channels, width, 1),
            nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.1),
        )  # fmt: skip
        self.out = nn.Linear(4 * width, classes)

    def forward(self, x):
        return self.out(self.body(x))
