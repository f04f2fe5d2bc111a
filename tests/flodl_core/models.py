"""Models with what makes averaging hard: tied, frozen and mixed parameters, other layouts, all kinds of buffers."""

import torch
from torch import Tensor, nn


class ZooModel(nn.Module):
    """Channels-last and transposed parameters, a scalar one, BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub knows no memory_format alone
        self.norm = nn.BatchNorm2d(4)
        self.turned = nn.Parameter(torch.randn(5, 2).t())
        self.scalar = nn.Parameter(torch.tensor(0.5))

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.norm(self.conv(images)).mean() * self.scalar + self.turned.sum()
        return out


class MixedTypes(nn.Module):
    """Parameters of three types, and a half-precision one alone."""

    def __init__(self) -> None:
        super().__init__()
        self.usual = nn.Linear(3, 2)
        self.wide = nn.Linear(2, 3, dtype=torch.float64)
        self.brain = nn.Linear(4, 3, dtype=torch.bfloat16)
        self.short = nn.Parameter(torch.zeros(7, dtype=torch.float16))


class Tied(nn.Module):
    """An embedding that is also the output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 8)
        self.head = nn.Linear(8, 6, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.embed(tokens))
        return out


class Frozen(nn.Module):
    """A backbone that is not trained, and a head that is."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Linear(4, 4).requires_grad_(False)
        self.head = nn.Linear(4, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.head(self.backbone(inputs))
        return out


class Masked(nn.Module):
    """A causal mask: minus infinity above the diagonal."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))
        self.register_buffer("mask", torch.full((3, 3), float("-inf")).triu(1))


class FloatingBuffers(nn.Module):
    """A running figure as a 0-d buffer, one that is not saved, and a boolean one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2))
        self.register_buffer("level", torch.tensor(1.0))
        self.register_buffer("scratch", torch.zeros(3, dtype=torch.float64), persistent=False)
        self.register_buffer("seen", torch.zeros(2, dtype=torch.bool))


class LeNet(nn.Module):
    """The convolutional network of LeCun et al. 1998, with ReLU and max pooling, for images of 28 x 28."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Sequential(
            nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)
        )

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.head(self.features(images))
        return out


class Motley(nn.Module):
    """All that makes averaging hard, in a model that can be trained on numbered samples of four features.

    Parameters: channels-last, float64, bfloat16, float16, tied, frozen. Buffers: BatchNorm's, a mask of minus
    infinity, a figure that moves.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 2, padding=1).to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # as above
        self.norm = nn.BatchNorm2d(3)
        self.wide = nn.Linear(3, 4, dtype=torch.float64)
        self.brain = nn.Linear(4, 4, dtype=torch.bfloat16)
        self.short = nn.Parameter(torch.full((4,), 0.5, dtype=torch.float16))
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.tied = nn.Linear(4, 4)
        self.twin = nn.Linear(4, 4)
        self.twin.weight = self.tied.weight
        self.head = nn.Linear(4, 1)
        self.register_buffer("mask", torch.full((3, 3), float("-inf")).triu(1))
        self.register_buffer("level", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        images = self.norm(self.conv(inputs.reshape(-1, 1, 2, 2)))
        self.get_buffer("level").lerp_(inputs.detach().mean(), 0.1)
        hidden = self.wide(torch.tanh(images).mean((2, 3)).double())
        hidden = self.brain(hidden.bfloat16()).float() + (hidden.half() * self.short).float()
        hidden = torch.tanh(self.twin(torch.tanh(self.tied(self.frozen(hidden)))))
        out: Tensor = self.head(hidden)
        return out
