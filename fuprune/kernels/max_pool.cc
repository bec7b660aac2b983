// The maximum over windows of 2x2 pixels, and its adjoint, which puts gradients back to
// the pixels that hold the maxima. All arrays carry a leading axis of independent problems:
// data [G, N, H, W, C], output [G, N, H / 2, W / 2, C]; a last odd row or column is left
// out. Values are float32 or bfloat16 and pass unchanged: XLA widens and rounds bfloat16
// even where nothing is computed with it.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "bfloat16.h"
#include "threads.h"
#include "vectorised.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;
using fuprune::Half;
using fuprune::Load;
using fuprune::Values;
using fuprune::ValuesOf;
using Array = ffi::AnyBuffer;

namespace {

struct Shape {
  int64_t examples, rows, columns, channels;  // of the data; examples of all problems

  int64_t Volume() const { return rows * columns * channels; }
  int64_t Pooled() const { return (rows / 2) * (columns / 2) * channels; }
  // An element costs what some ten operations of a convolution do: it is fetched.
  double Operations() const { return 10.0 * examples * Volume(); }
};

Shape ShapeOf(const Array& data) {
  const auto d = data.dimensions();
  return {d[0] * d[1], d[2], d[3], d[4]};
}

// Values are moved as bits: uint32_t is a float32, uint16_t a bfloat16.
FUPRUNE_INLINE float Value(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(bits));
  return value;
}
FUPRUNE_INLINE float Value(uint16_t bits) { return Load(Half{bits}); }

// All bits set if the first is at least the second, none otherwise: selections by masks
// become vectors, branches do not.
template <typename Bits>
FUPRUNE_INLINE Bits IsFirst(Bits first, Bits second) {
  return static_cast<Bits>(Value(first) >= Value(second) ? ~uint32_t{0} : uint32_t{0});
}
template <typename Bits>
FUPRUNE_INLINE Bits Select(Bits mask, Bits yes, Bits no) {
  return (yes & mask) | (no & ~mask);
}

// The first of four pixels of a window, and the step to the row below, in elements.
template <typename Bits>
struct Window {
  Bits* first;
  int64_t row;
};

// The larger pixel of each column, the upper one if they are equal, then the larger column,
// the left one if they are. NaN that is lower or right counts as larger, as it does where
// JAX compares and selects.
template <typename Bits>
FUPRUNE_INLINE void TakeMaximum(Window<const Bits> window, int64_t channels,
                                Bits* __restrict output) {
  const Bits *__restrict a = window.first, *__restrict b = a + channels;
  const Bits *__restrict below_a = a + window.row, *__restrict below_b = b + window.row;
  for (int64_t c = 0; c < channels; ++c) {
    const Bits left = Select(IsFirst(a[c], below_a[c]), a[c], below_a[c]);
    const Bits right = Select(IsFirst(b[c], below_b[c]), b[c], below_b[c]);
    output[c] = Select(IsFirst(left, right), left, right);
  }
}

template <typename Bits>
FUPRUNE_INLINE void PutGradient(Window<const Bits> window, int64_t channels,
                                const Bits* __restrict gradient, Window<Bits> result) {
  const Bits *__restrict a = window.first, *__restrict b = a + channels;
  const Bits *__restrict below_a = a + window.row, *__restrict below_b = b + window.row;
  Bits *__restrict to_a = result.first, *__restrict to_b = to_a + channels;
  Bits *__restrict to_below_a = to_a + result.row,
                   *__restrict to_below_b = to_b + result.row;
  // More pointers than the compiler would compare before it dares to use vectors.
#pragma GCC ivdep
  for (int64_t c = 0; c < channels; ++c) {
    const Bits upper_left = IsFirst(a[c], below_a[c]);
    const Bits upper_right = IsFirst(b[c], below_b[c]);
    const Bits left = IsFirst(Select(upper_left, a[c], below_a[c]),
                              Select(upper_right, b[c], below_b[c]));
    to_a[c] = gradient[c] & left & upper_left;
    to_below_a[c] = gradient[c] & left & ~upper_left;
    to_b[c] = gradient[c] & ~left & upper_right;
    to_below_b[c] = gradient[c] & ~left & ~upper_right;
  }
}

template <typename Bits>
FUPRUNE_INLINE void MaximumOf(const Shape& shape, const Bits* data, Bits* output) {
  const int64_t channels = shape.channels, row = shape.columns * channels;
  for (int64_t y = 0; y + 1 < shape.rows; y += 2) {
    for (int64_t x = 0; x + 1 < shape.columns; x += 2, output += channels) {
      TakeMaximum<Bits>({data + y * row + x * channels, row}, channels, output);
    }
  }
}

template <typename Bits>
FUPRUNE_INLINE void GradientOf(const Shape& shape, const Bits* data,
                               const Bits* gradient, Bits* result) {
  const int64_t channels = shape.channels, row = shape.columns * channels;
  if (shape.rows % 2 || shape.columns % 2) std::fill_n(result, shape.Volume(), Bits{0});
  for (int64_t y = 0; y + 1 < shape.rows; y += 2) {
    for (int64_t x = 0; x + 1 < shape.columns; x += 2, gradient += channels) {
      const int64_t first = y * row + x * channels;
      PutGradient<Bits>({data + first, row}, channels, gradient, {result + first, row});
    }
  }
}

FUPRUNE_VECTORISED
void Maximum(const Shape& shape, Values data, Values output) {
  if (data.half) {
    MaximumOf(shape, data.as<uint16_t>(), output.as<uint16_t>());
  } else {
    MaximumOf(shape, data.as<uint32_t>(), output.as<uint32_t>());
  }
}

FUPRUNE_VECTORISED
void Gradient(const Shape& shape, Values data, Values gradient, Values result) {
  if (data.half) {
    GradientOf(shape, data.as<uint16_t>(), gradient.as<uint16_t>(),
               result.as<uint16_t>());
  } else {
    GradientOf(shape, data.as<uint32_t>(), gradient.as<uint32_t>(),
               result.as<uint32_t>());
  }
}

ffi::Error Forward(Array data, ffi::Result<Array> output) {
  const Shape shape = ShapeOf(data);
  const Values from = ValuesOf(data), to = ValuesOf(*output);
  fuprune::Parallel(shape.examples, shape.Operations(), [&](int64_t example) {
    Maximum(shape, from.At(example * shape.Volume()), to.At(example * shape.Pooled()));
  });
  return ffi::Error::Success();
}

ffi::Error Backward(Array data, Array gradient, ffi::Result<Array> result) {
  const Shape shape = ShapeOf(data);
  const Values values = ValuesOf(data), from = ValuesOf(gradient), to = ValuesOf(*result);
  fuprune::Parallel(shape.examples, shape.Operations(), [&](int64_t example) {
    const int64_t at = example * shape.Volume();
    Gradient(shape, values.At(at), from.At(example * shape.Pooled()), to.At(at));
  });
  return ffi::Error::Success();
}

}  // namespace

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(fuprune_max_pool_forward, Forward,
                              ffi::Ffi::Bind().Arg<Array>().Ret<Array>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    fuprune_max_pool_backward, Backward,
    ffi::Ffi::Bind().Arg<Array>().Arg<Array>().Ret<Array>());
#pragma GCC visibility pop
