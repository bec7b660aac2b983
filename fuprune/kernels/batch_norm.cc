// Batch normalisation in training, with an optional residual and ReLU after it:
//   mean, variance = moments of the examples whose weight is not zero, per channel
//   output = relu((data - mean) * scale / sqrt(variance + epsilon) + bias + residual)
// and the gradient, each in two passes over memory. All arrays carry a leading axis of
// independent problems: data [G, N, H, W, C], vectors [G, C], weight [G, N]. The output
// may have more channels than the data and the residual, whose channels then go to
// `places` and `residual_places` among them.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "placement.h"
#include "threads.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;
using Array = ffi::Buffer<ffi::F32, 5>;
using Matrix = ffi::Buffer<ffi::F32, 2>;
using Integers = ffi::Span<const int64_t>;

#if defined(__x86_64__)
#define FUPRUNE_VECTORISED \
  __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FUPRUNE_VECTORISED
#endif
#define FUPRUNE_INLINE inline __attribute__((always_inline))

namespace {

// Channels are the fastest axis and few, often an odd number. Loops therefore run over
// `period` elements at a time, a whole number of pixels that fills whole vectors, with
// per-channel values repeated to that length.
int64_t Period(int64_t channels) {
  const int64_t common = std::lcm<int64_t>(channels, 16);
  if (common > 4096) return channels;
  return common * std::max<int64_t>(1, 128 / common);
}

struct Shape {
  int64_t problems, examples, volume, channels, period;

  // An element costs what some twenty operations of a convolution do: it is fetched.
  double Operations() const { return 20.0 * examples * volume; }

  int64_t Area() const { return volume / channels; }  // pixels of an example
  int64_t BlockPixels() const { return std::max<int64_t>(1, 4096 / channels); }
};

template <typename Buffer>
Shape ShapeOf(const Buffer& data) {
  const auto d = data.dimensions();
  return {d[0], d[1], d[2] * d[3] * d[4], d[4], Period(d[4])};
}

std::vector<float> Repeated(const std::vector<float>& values, const Shape& shape) {
  std::vector<float> repeated(shape.period);
  for (int64_t i = 0; i < shape.period; ++i) repeated[i] = values[i % shape.channels];
  return repeated;
}

// The pixels of one example, in blocks that stay in the first cache if channels have to
// be moved: body(first pixel, pixels).
template <typename Body>
void ForBlocks(const Shape& wide, bool moved, const Body& body) {
  const int64_t most = moved ? wide.BlockPixels() : wide.Area();
  for (int64_t pixel = 0; pixel < wide.Area(); pixel += most) {
    body(pixel, std::min(most, wide.Area() - pixel));
  }
}

// A narrow tensor seen with the channels of a wide one, a block at a time.
class View {
 public:
  View(const fuprune::Placement& placement, const Shape& wide)
      : placement_(placement),
        scratch_(placement.IsIdentity() ? 0 : wide.BlockPixels() * wide.channels) {}

  // The block of `narrow`, an example, that starts at a pixel; null of null.
  const float* Read(const float* narrow, int64_t pixel, int64_t pixels) {
    if (narrow == nullptr) return nullptr;
    narrow += pixel * placement_.channels();
    if (placement_.IsIdentity()) return narrow;
    placement_.Widen(narrow, pixels, scratch_.data());
    return scratch_.data();
  }

  // Where to write such a block; `Flush` then takes it to `narrow`.
  float* Target(float* narrow, int64_t pixel) {
    if (narrow == nullptr) return nullptr;
    return placement_.IsIdentity() ? narrow + pixel * placement_.channels()
                                   : scratch_.data();
  }
  void Flush(float* narrow, int64_t pixel, int64_t pixels) const {
    if (narrow == nullptr || placement_.IsIdentity()) return;
    placement_.Narrow(scratch_.data(), pixels,
                      narrow + pixel * placement_.channels());
  }

 private:
  const fuprune::Placement& placement_;
  std::vector<float> scratch_;
};

// A comparison that lets NaN through, as XLA's maximum does.
inline float Relu(float value) { return value < 0.0f ? 0.0f : value; }

FUPRUNE_VECTORISED
void AddMoments(const float* __restrict data, int64_t size, int64_t period,
                float* __restrict sum, float* __restrict squares) {
  for (int64_t start = 0; start < size; start += period) {
    const int64_t length = std::min(period, size - start);
    for (int64_t i = 0; i < length; ++i) {
      const float value = data[start + i];
      sum[i] += value;
      squares[i] += value * value;
    }
  }
}

// The cases are template parameters of an inlined loop because a template cannot itself
// be compiled for several instruction sets.
template <bool kRelu, bool kResidual>
FUPRUNE_INLINE void ScaleAndShift(const float* __restrict data,
                                  const float* __restrict residual,
                                  const float* __restrict factor,
                                  const float* __restrict shift, int64_t size,
                                  int64_t period, float* __restrict output) {
  for (int64_t start = 0; start < size; start += period) {
    const int64_t length = std::min(period, size - start);
    for (int64_t i = 0; i < length; ++i) {
      float value = data[start + i] * factor[i] + shift[i];
      if (kResidual) value += residual[start + i];
      output[start + i] = kRelu ? Relu(value) : value;
    }
  }
}

FUPRUNE_VECTORISED
void Apply(bool relu, const float* data, const float* residual, const float* factor,
           const float* shift, int64_t size, int64_t period, float* output) {
  if (relu && residual) {
    ScaleAndShift<true, true>(data, residual, factor, shift, size, period, output);
  } else if (relu) {
    ScaleAndShift<true, false>(data, nullptr, factor, shift, size, period, output);
  } else if (residual) {
    ScaleAndShift<false, true>(data, residual, factor, shift, size, period, output);
  } else {
    ScaleAndShift<false, false>(data, nullptr, factor, shift, size, period, output);
  }
}

template <bool kRelu>
FUPRUNE_INLINE void AddGradient(const float* __restrict gradient,
                                const float* __restrict output,
                                const float* __restrict data,
                                const float* __restrict mean, int64_t size,
                                int64_t period, float* __restrict sum,
                                float* __restrict product) {
  for (int64_t start = 0; start < size; start += period) {
    const int64_t length = std::min(period, size - start);
    for (int64_t i = 0; i < length; ++i) {
      float value = gradient[start + i];
      if (kRelu) value = output[start + i] > 0.0f ? value : 0.0f;
      sum[i] += value;
      product[i] += value * (data[start + i] - mean[i]);
    }
  }
}

FUPRUNE_VECTORISED
void SumGradient(bool relu, const float* gradient, const float* output,
                 const float* data, const float* mean, int64_t size, int64_t period,
                 float* sum, float* product) {
  if (relu) {
    AddGradient<true>(gradient, output, data, mean, size, period, sum, product);
  } else {
    AddGradient<false>(gradient, output, data, mean, size, period, sum, product);
  }
}

template <bool kRelu, bool kResidual>
FUPRUNE_INLINE void DataGradient(const float* __restrict gradient,
                                 const float* __restrict output,
                                 const float* __restrict data,
                                 const float* __restrict factor,
                                 const float* __restrict constant,
                                 const float* __restrict slope, int64_t size,
                                 int64_t period, float* __restrict data_gradient,
                                 float* __restrict residual_gradient) {
  for (int64_t start = 0; start < size; start += period) {
    const int64_t length = std::min(period, size - start);
    for (int64_t i = 0; i < length; ++i) {
      float value = gradient[start + i];
      if (kRelu) value = output[start + i] > 0.0f ? value : 0.0f;
      if (kResidual) residual_gradient[start + i] = value;
      data_gradient[start + i] =
          value * factor[i] + constant[i] + data[start + i] * slope[i];
    }
  }
}

FUPRUNE_VECTORISED
void ApplyGradient(bool relu, const float* gradient, const float* output,
                   const float* data, const float* factor, const float* constant,
                   const float* slope, int64_t size, int64_t period,
                   float* data_gradient, float* residual_gradient) {
  if (relu && residual_gradient) {
    DataGradient<true, true>(gradient, output, data, factor, constant, slope, size,
                             period, data_gradient, residual_gradient);
  } else if (relu) {
    DataGradient<true, false>(gradient, output, data, factor, constant, slope, size,
                              period, data_gradient, nullptr);
  } else if (residual_gradient) {
    DataGradient<false, true>(gradient, output, data, factor, constant, slope, size,
                              period, data_gradient, residual_gradient);
  } else {
    DataGradient<false, false>(gradient, output, data, factor, constant, slope, size,
                               period, data_gradient, nullptr);
  }
}

// Adds up sums(example, first, second) over examples, each [channels]. The order is
// fixed, so the result does not depend on the number of threads.
template <typename Sums>
std::vector<double> SumOverExamples(const Shape& shape, const Sums& sums) {
  const int64_t channels = shape.channels;
  std::vector<double> each(shape.examples * 2 * channels);
  fuprune::Parallel(shape.examples, shape.Operations(), [&](int64_t example) {
    std::vector<float> first(shape.period), second(shape.period);
    sums(example, first.data(), second.data());
    double* total = each.data() + example * 2 * channels;
    for (int64_t i = 0; i < shape.period; ++i) {
      total[i % channels] += first[i];
      total[channels + i % channels] += second[i];
    }
  });
  std::vector<double> total(2 * channels);
  for (int64_t example = 0; example < shape.examples; ++example) {
    for (int64_t i = 0; i < 2 * channels; ++i) {
      total[i] += each[example * 2 * channels + i];
    }
  }
  return total;
}

// The number of pixels that enter the moments.
int64_t Pixels(const float* weight, const Shape& shape) {
  int64_t examples = 0;
  for (int64_t i = 0; i < shape.examples; ++i) examples += weight[i] != 0.0f;
  return examples * shape.Area();
}

ffi::Error Forward(Array data, Matrix scale, Matrix bias, Matrix weight,
                   ffi::RemainingArgs residuals, ffi::Result<Array> output,
                   ffi::Result<Matrix> mean, ffi::Result<Matrix> variance,
                   float epsilon, bool relu, Integers places,
                   Integers residual_places) {
  const Shape shape = ShapeOf(data), wide = ShapeOf(*output);
  const fuprune::Placement placement(places.begin(), shape.channels, wide.channels);
  const fuprune::Placement from(residual_places.begin(), residual_places.size(),
                                wide.channels);
  const bool moved =
      !placement.IsIdentity() || (residuals.size() && !from.IsIdentity());
  const float* all_residuals =
      residuals.size() ? residuals.get<Array>(0)->typed_data() : nullptr;
  for (int64_t problem = 0; problem < shape.problems; ++problem) {
    const int64_t vector = problem * shape.channels;
    const float* weights = weight.typed_data() + problem * shape.examples;
    const float* values = data.typed_data() + problem * shape.examples * shape.volume;
    const std::vector<double> total = SumOverExamples(
        shape, [&](int64_t example, float* sum, float* squares) {
          if (weights[example] == 0.0f) return;
          AddMoments(values + example * shape.volume, shape.volume, shape.period, sum,
                     squares);
        });
    const int64_t pixels = Pixels(weights, shape);
    std::vector<float> factor(wide.channels), shift(wide.channels);
    for (int64_t c = 0; c < shape.channels; ++c) {
      double m = 0.0, v = 1.0;
      if (pixels > 0) {
        m = total[c] / pixels;
        v = total[shape.channels + c] / pixels - m * m;
        if (v < 0.0) v = 0.0;  // NaN stays NaN, and is seen
      }
      mean->typed_data()[vector + c] = m;
      variance->typed_data()[vector + c] = v;
      const float slope = scale.typed_data()[vector + c] / std::sqrt(v + epsilon);
      factor[places[c]] = slope;
      shift[places[c]] = bias.typed_data()[vector + c] - m * slope;
    }
    const std::vector<float> factors = Repeated(factor, wide);
    const std::vector<float> shifts = Repeated(shift, wide);
    fuprune::Parallel(shape.examples, wide.Operations(), [&](int64_t example) {
      const int64_t number = problem * shape.examples + example;
      const float* residual =
          all_residuals ? all_residuals + number * from.channels() * wide.Area() : nullptr;
      float* result = output->typed_data() + number * wide.volume;
      View data_view(placement, wide), residual_view(from, wide);
      ForBlocks(wide, moved, [&](int64_t pixel, int64_t pixels) {
        Apply(relu, data_view.Read(values + example * shape.volume, pixel, pixels),
              residual_view.Read(residual, pixel, pixels), factors.data(),
              shifts.data(), pixels * wide.channels, wide.period,
              result + pixel * wide.channels);
      });
    });
  }
  return ffi::Error::Success();
}

ffi::Error Backward(Array gradient, Matrix mean_gradient, Matrix variance_gradient,
                    Array data, Array output, Matrix scale, Matrix mean,
                    Matrix variance, Matrix weight,
                    ffi::Result<Array> data_gradient, ffi::Result<Matrix> scale_gradient,
                    ffi::Result<Matrix> bias_gradient, ffi::RemainingRets residuals,
                    float epsilon, bool relu, Integers places,
                    Integers residual_places) {
  const Shape shape = ShapeOf(data), wide = ShapeOf(gradient);
  const fuprune::Placement placement(places.begin(), shape.channels, wide.channels);
  const fuprune::Placement from(residual_places.begin(), residual_places.size(),
                                wide.channels);
  const bool moved =
      !placement.IsIdentity() || (residuals.size() && !from.IsIdentity());
  float* all_residuals =
      residuals.size() ? (*residuals.get<Array>(0))->typed_data() : nullptr;
  for (int64_t problem = 0; problem < shape.problems; ++problem) {
    const int64_t vector = problem * shape.channels;
    const int64_t base = problem * shape.examples * shape.volume;
    const int64_t wide_base = problem * wide.examples * wide.volume;
    const float* weights = weight.typed_data() + problem * shape.examples;
    const float* means = mean.typed_data() + vector;
    const float* values = data.typed_data() + base;
    const float* gradients = gradient.typed_data() + wide_base;
    const float* outputs = output.typed_data() + wide_base;
    std::vector<float> wide_mean(wide.channels);
    for (int64_t c = 0; c < shape.channels; ++c) wide_mean[places[c]] = means[c];
    const std::vector<float> repeated_mean = Repeated(wide_mean, wide);
    const std::vector<double> total = SumOverExamples(
        wide, [&](int64_t example, float* sum, float* product) {
          const int64_t offset = example * wide.volume;
          View view(placement, wide);
          ForBlocks(wide, !placement.IsIdentity(), [&](int64_t pixel, int64_t pixels) {
            const int64_t at = offset + pixel * wide.channels;
            SumGradient(relu, gradients + at, outputs + at,
                        view.Read(values + example * shape.volume, pixel, pixels),
                        repeated_mean.data(), pixels * wide.channels, wide.period, sum,
                        product);
          });
        });
    const double pixels = std::max<int64_t>(1, Pixels(weights, shape));
    std::vector<float> factor(wide.channels), constant(wide.channels),
        slope(wide.channels);
    for (int64_t c = 0; c < shape.channels; ++c) {
      const int64_t place = places[c];
      const double sum = total[place], product = total[wide.channels + place];
      const double inverse =
          1.0 / std::sqrt(double(variance.typed_data()[vector + c]) + epsilon);
      factor[place] = scale.typed_data()[vector + c] * inverse;
      bias_gradient->typed_data()[vector + c] = sum;
      scale_gradient->typed_data()[vector + c] = product * inverse;
      const double d_variance = variance_gradient.typed_data()[vector + c] -
                                0.5 * inverse * inverse * factor[place] * product;
      const double d_mean =
          mean_gradient.typed_data()[vector + c] - factor[place] * sum;
      slope[place] = 2.0 * d_variance / pixels;
      constant[place] = (d_mean - 2.0 * means[c] * d_variance) / pixels;
    }
    const std::vector<float> factors = Repeated(factor, wide);
    const std::vector<float> constants = Repeated(constant, wide);
    const std::vector<float> slopes = Repeated(slope, wide);
    const std::vector<float> zeros(wide.period);
    fuprune::Parallel(shape.examples, wide.Operations(), [&](int64_t example) {
      const bool counts = weights[example] != 0.0f;
      float* result = data_gradient->typed_data() + base + example * shape.volume;
      float* residual = nullptr;
      if (all_residuals) {
        const int64_t number = problem * shape.examples + example;
        residual = all_residuals + number * from.channels() * wide.Area();
      }
      View data_view(placement, wide), result_view(placement, wide),
          residual_view(from, wide);
      ForBlocks(wide, moved, [&](int64_t pixel, int64_t pixels) {
        const int64_t at = example * wide.volume + pixel * wide.channels;
        ApplyGradient(relu, gradients + at, outputs + at,
                      data_view.Read(values + example * shape.volume, pixel, pixels),
                      factors.data(), counts ? constants.data() : zeros.data(),
                      counts ? slopes.data() : zeros.data(), pixels * wide.channels,
                      wide.period, result_view.Target(result, pixel),
                      residual_view.Target(residual, pixel));
        result_view.Flush(result, pixel, pixels);
        residual_view.Flush(residual, pixel, pixels);
      });
    });
  }
  return ffi::Error::Success();
}

}  // namespace

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(fuprune_batch_norm_forward, Forward,
                              ffi::Ffi::Bind()
                                  .Arg<Array>()
                                  .Arg<Matrix>()
                                  .Arg<Matrix>()
                                  .Arg<Matrix>()
                                  .RemainingArgs()
                                  .Ret<Array>()
                                  .Ret<Matrix>()
                                  .Ret<Matrix>()
                                  .Attr<float>("epsilon")
                                  .Attr<bool>("relu")
                                  .Attr<Integers>("places")
                                  .Attr<Integers>("residual_places"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(fuprune_batch_norm_backward, Backward,
                              ffi::Ffi::Bind()
                                  .Arg<Array>()
                                  .Arg<Matrix>()
                                  .Arg<Matrix>()
                                  .Arg<Array>()
                                  .Arg<Array>()
                                  .Arg<Matrix>()
                                  .Arg<Matrix>()
                                  .Arg<Matrix>()
                                  .Arg<Matrix>()
                                  .Ret<Array>()
                                  .Ret<Matrix>()
                                  .Ret<Matrix>()
                                  .RemainingRets()
                                  .Attr<float>("epsilon")
                                  .Attr<bool>("relu")
                                  .Attr<Integers>("places")
                                  .Attr<Integers>("residual_places"));
#pragma GCC visibility pop
