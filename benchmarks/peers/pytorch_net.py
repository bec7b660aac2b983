"""The two networks and FedAvg's client in PyTorch, as close to ours as can be.

Option-A ResNet and VGG with BatchNorm (momentum 0.1 in PyTorch's sense), SGD with
momentum, uint8 images made float on the fly, and means over clients of parameters and
running statistics.
"""

import numpy as np
import torch
import torch.nn.functional as F
import workload
from torch import nn


class Block(nn.Module):
    """Two convolutions and the parameter-free shortcut of He et al.'s option A."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.stride, self.side = stride, outputs // 4

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        if self.stride == 2:
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.side, self.side))
        return F.relu(x + y)


class ResNet(nn.Module):
    """ResNet of depth 6n + 2 for small images."""

    def __init__(self, blocks: int):
        super().__init__()
        widths = workload.STAGE_WIDTHS["resnet"]
        self.stem = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(widths[0])
        layers, before = [], widths[0]
        for stage, width in enumerate(widths):
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                layers.append(Block(before, width, stride))
                before = width
        self.blocks = nn.Sequential(*layers)
        self.head = nn.Linear(before, workload.NUM_CLASSES)

    def forward(self, x):
        x = F.relu(self.norm(self.stem(x)))
        return self.head(self.blocks(x).mean(dim=(2, 3)))


class VGG11(nn.Module):
    """VGG11 with BatchNorm for small images."""

    def __init__(self):
        super().__init__()
        layers, before = [], 3
        for repeats, width in zip(
            workload.VGG11_DEPTHS, workload.STAGE_WIDTHS["vgg"], strict=True
        ):
            for _ in range(repeats):
                layers += [
                    nn.Conv2d(before, width, 3, 1, 1, bias=False),
                    nn.BatchNorm2d(width),
                    nn.ReLU(inplace=True),
                ]
                before = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.hidden = nn.Linear(before, workload.VGG_HIDDEN)
        self.head = nn.Linear(workload.VGG_HIDDEN, workload.NUM_CLASSES)

    def forward(self, x):
        return self.head(F.relu(self.hidden(self.features(x).flatten(1))))


def create(net: str) -> nn.Module:
    """The network by the name the workload gives it."""
    torch.manual_seed(0)
    if net == "vgg11":
        return VGG11()
    return ResNet(workload.blocks_per_stage(net))


def to_tensors(images: np.ndarray, labels: np.ndarray):
    """A client's data as PyTorch likes to hold it: [n, 3, S, S] uint8 and [n] int64."""
    images = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
    return images, torch.from_numpy(labels.astype(np.int64))


def train_client(
    net, images, labels, *, batch_size: int, memory_format, dtype=torch.float32
) -> None:
    """One shuffled epoch of SGD with momentum, in place; bfloat16 is autocast."""
    net.train()
    optimizer = torch.optim.SGD(
        net.parameters(), lr=workload.LEARNING_RATE, momentum=workload.MOMENTUM
    )
    for rows in torch.randperm(len(labels)).split(batch_size):
        batch = images[rows].to(memory_format=memory_format).float() / 255.0
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype != torch.float32):
            loss = F.cross_entropy(net(batch), labels[rows])
        loss.backward()
        optimizer.step()
