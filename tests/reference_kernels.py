"""NumPy twins of the kernels, in float64 and as close to the definition as can be."""

import numpy as np


def convolve(data, kernel, strides, padding):
    """[N, H, W, I] * [KH, KW, I, O] -> [N, P, Q, O], one kernel tap at a time."""
    padded = np.pad(np.asarray(data, np.float64), ((0, 0), *padding, (0, 0)))
    kernel = np.asarray(kernel, np.float64)
    output = 0.0
    for (row, column), window in _windows(padded, kernel.shape[:2], strides):
        output = output + padded[window] @ kernel[row, column]
    return output


def convolve_pullback(data, kernel, strides, padding, cotangent):
    """The gradients of sum(convolve(data, kernel) * cotangent)."""
    padded = np.pad(np.asarray(data, np.float64), ((0, 0), *padding, (0, 0)))
    kernel = np.asarray(kernel, np.float64)
    cotangent = np.asarray(cotangent, np.float64)
    data_gradient, kernel_gradient = np.zeros_like(padded), np.zeros_like(kernel)
    for (row, column), window in _windows(padded, kernel.shape[:2], strides):
        data_gradient[window] += cotangent @ kernel[row, column].T
        kernel_gradient[row, column] = np.einsum(
            "npqi,npqo->io", padded[window], cotangent
        )
    (top, _), (left, _) = padding
    height, width = np.shape(data)[1:3]
    return (
        data_gradient[:, top : top + height, left : left + width],
        kernel_gradient,
    )


def _windows(padded, kernel_size, strides):
    """Each tap of the kernel with the part of the padded data that it meets."""
    extents = [
        (size - kernel) // stride + 1
        for size, kernel, stride in zip(
            padded.shape[1:3], kernel_size, strides, strict=True
        )
    ]
    for tap in np.ndindex(*kernel_size):
        yield (
            tap,
            (
                slice(None),
                *(
                    slice(start, start + (extent - 1) * stride + 1, stride)
                    for start, extent, stride in zip(tap, extents, strides, strict=True)
                ),
            ),
        )
