// Batch normalisation in training, with an optional residual and ReLU after it:
//   mean, variance = moments of the examples whose weight is not zero, per channel
//   output = relu((data - mean) * scale / sqrt(variance + epsilon) + bias + residual)
// and the gradient, each in two passes over memory. All arrays carry a leading axis of
// independent problems: data [G, N, H, W, C], vectors [G, C], weight [G, N]. The output
// may have more channels than the data and the residual, whose channels then go to
// `places` and `residual_places` among them. Arrays with pixels are float32 or bfloat16,
// all of them alike; everything is computed in float32.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "bfloat16.h"
#include "placement.h"
#include "threads.h"
#include "vectorised.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;
using fuprune::Values;
using fuprune::ValuesOf;
using Array = ffi::AnyBuffer;
using Matrix = ffi::Buffer<ffi::F32, 2>;
using Integers = ffi::Span<const int64_t>;

namespace {

using fuprune::Half;
using fuprune::Load;
using fuprune::Store;

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
void ForBlocks(const Shape& wide, bool in_blocks, const Body& body) {
  const int64_t most = in_blocks ? wide.BlockPixels() : wide.Area();
  for (int64_t pixel = 0; pixel < wide.Area(); pixel += most) {
    body(pixel, std::min(most, wide.Area() - pixel));
  }
}

// Uninitialised scratch: most of it is never touched.
using Scratch = std::unique_ptr<float[]>;
Scratch MakeScratch(int64_t size) { return Scratch(size ? new float[size] : nullptr); }

// A narrow tensor, seen with the channels of a wide one. In blocks, it is seen in float32,
// a block at a time, whatever its type; otherwise it has those channels already and is
// seen as it lies.
class View {
 public:
  View(const fuprune::Placement* placement, const Shape& wide, bool half, bool in_blocks)
      : placement_(placement && !placement->IsIdentity() ? placement : nullptr),
        channels_(placement ? placement->channels() : wide.channels),
        moved_(placement_ || (half && in_blocks)),
        scratch_(MakeScratch(moved_ ? wide.BlockPixels() * wide.channels : 0)),
        widened_(MakeScratch(placement_ && half ? wide.BlockPixels() * channels_ : 0)) {}

  // The block of `narrow`, an example, that starts at a pixel; null of null.
  Values Read(Values narrow, int64_t pixel, int64_t pixels) {
    narrow = narrow.At(pixel * channels_);
    if (!narrow || !moved_) return narrow;
    if (narrow.half) {
      float* target = placement_ ? widened_.get() : scratch_.get();
      fuprune::FromBfloat16(narrow.halves(), pixels * channels_, target);
      narrow = {target, false};
    }
    if (placement_) placement_->Widen(narrow.floats(), pixels, scratch_.get());
    return {scratch_.get(), false};
  }

  // Where to write such a block; `Flush` then takes it to `narrow`.
  Values Target(Values narrow, int64_t pixel) {
    return narrow && moved_ ? Values{scratch_.get(), false}
                            : narrow.At(pixel * channels_);
  }
  void Flush(Values narrow, int64_t pixel, int64_t pixels) {
    if (!narrow || !moved_) return;
    narrow = narrow.At(pixel * channels_);
    float* block = scratch_.get();
    if (placement_) {
      float* target = narrow.half ? widened_.get() : narrow.floats();
      placement_->Narrow(block, pixels, target);
      block = target;
    }
    if (narrow.half) {
      fuprune::ToBfloat16(block, pixels * channels_, narrow.halves());
    }
  }

 private:
  const fuprune::Placement* placement_;
  int64_t channels_;
  bool moved_;
  Scratch scratch_, widened_;
};

// A comparison that lets NaN through, as XLA's maximum does.
inline float Relu(float value) { return value < 0.0f ? 0.0f : value; }

// The cases are template parameters of inlined loops because a template cannot itself be
// compiled for several instruction sets. All arrays with pixels are of one type, T: float
// or Half.
template <typename T>
FUPRUNE_INLINE void AddMoments(const T* __restrict data, int64_t size, int64_t period,
                               float* __restrict sum, float* __restrict squares) {
  for (int64_t start = 0; start < size; start += period) {
    const int64_t length = std::min(period, size - start);
    for (int64_t i = 0; i < length; ++i) {
      const float value = Load(data[start + i]);
      sum[i] += value;
      squares[i] += value * value;
    }
  }
}

FUPRUNE_VECTORISED
void SumMoments(Values data, int64_t size, int64_t period, float* sum, float* squares) {
  if (data.half) {
    AddMoments(data.as<Half>(), size, period, sum, squares);
  } else {
    AddMoments(data.as<float>(), size, period, sum, squares);
  }
}

template <bool kRelu, bool kResidual, typename T>
FUPRUNE_INLINE void ScaleAndShift(const T* __restrict data,
                                  const T* __restrict residual,
                                  const float* __restrict factor,
                                  const float* __restrict shift, int64_t size,
                                  int64_t period, T* __restrict output) {
  for (int64_t start = 0; start < size; start += period) {
    const int64_t length = std::min(period, size - start);
    for (int64_t i = 0; i < length; ++i) {
      float value = Load(data[start + i]) * factor[i] + shift[i];
      if (kResidual) value += Load(residual[start + i]);
      Store(kRelu ? Relu(value) : value, output[start + i]);
    }
  }
}

template <typename T>
FUPRUNE_INLINE void ApplyTo(bool relu, Values data, Values residual,
                            const float* factor, const float* shift, int64_t size,
                            int64_t period, Values output) {
  const T *d = data.as<T>(), *r = residual.as<T>();
  T* o = output.as<T>();
  if (relu && r) {
    ScaleAndShift<true, true>(d, r, factor, shift, size, period, o);
  } else if (relu) {
    ScaleAndShift<true, false>(d, r, factor, shift, size, period, o);
  } else if (r) {
    ScaleAndShift<false, true>(d, r, factor, shift, size, period, o);
  } else {
    ScaleAndShift<false, false>(d, r, factor, shift, size, period, o);
  }
}

FUPRUNE_VECTORISED
void Apply(bool relu, Values data, Values residual, const float* factor,
           const float* shift, int64_t size, int64_t period, Values output) {
  if (data.half) {
    ApplyTo<Half>(relu, data, residual, factor, shift, size, period, output);
  } else {
    ApplyTo<float>(relu, data, residual, factor, shift, size, period, output);
  }
}

template <bool kRelu, typename T>
FUPRUNE_INLINE void AddGradient(const T* __restrict gradient,
                                const T* __restrict output, const T* __restrict data,
                                const float* __restrict mean, int64_t size,
                                int64_t period, float* __restrict sum,
                                float* __restrict product) {
  for (int64_t start = 0; start < size; start += period) {
    const int64_t length = std::min(period, size - start);
    for (int64_t i = 0; i < length; ++i) {
      float value = Load(gradient[start + i]);
      if (kRelu) value = Load(output[start + i]) > 0.0f ? value : 0.0f;
      sum[i] += value;
      product[i] += value * (Load(data[start + i]) - mean[i]);
    }
  }
}

template <typename T>
FUPRUNE_INLINE void AddGradientOf(bool relu, Values gradient, Values output, Values data,
                                  const float* mean, int64_t size, int64_t period,
                                  float* sum, float* product) {
  const T *g = gradient.as<T>(), *o = output.as<T>(), *d = data.as<T>();
  if (relu) {
    AddGradient<true>(g, o, d, mean, size, period, sum, product);
  } else {
    AddGradient<false>(g, o, d, mean, size, period, sum, product);
  }
}

FUPRUNE_VECTORISED
void SumGradient(bool relu, Values gradient, Values output, Values data,
                 const float* mean, int64_t size, int64_t period, float* sum,
                 float* product) {
  if (data.half) {
    AddGradientOf<Half>(relu, gradient, output, data, mean, size, period, sum, product);
  } else {
    AddGradientOf<float>(relu, gradient, output, data, mean, size, period, sum, product);
  }
}

// What the gradient of the data is made of, repeated to the period.
struct Line {
  const float *factor, *constant, *slope;
};

template <bool kRelu, bool kResidual, typename T>
FUPRUNE_INLINE void DataGradient(const T* __restrict gradient,
                                 const T* __restrict output, const T* __restrict data,
                                 const Line& line, int64_t size, int64_t period,
                                 T* __restrict data_gradient,
                                 T* __restrict residual_gradient) {
  const float* __restrict factor = line.factor;
  const float* __restrict constant = line.constant;
  const float* __restrict slope = line.slope;
  for (int64_t start = 0; start < size; start += period) {
    const int64_t length = std::min(period, size - start);
    for (int64_t i = 0; i < length; ++i) {
      float value = Load(gradient[start + i]);
      if (kRelu) value = Load(output[start + i]) > 0.0f ? value : 0.0f;
      if (kResidual) Store(value, residual_gradient[start + i]);
      Store(value * factor[i] + constant[i] + Load(data[start + i]) * slope[i],
            data_gradient[start + i]);
    }
  }
}

template <typename T>
FUPRUNE_INLINE void ApplyGradientTo(bool relu, Values gradient, Values output,
                                    Values data, const Line& line, int64_t size,
                                    int64_t period, Values data_gradient,
                                    Values residual_gradient) {
  const T *g = gradient.as<T>(), *o = output.as<T>(), *d = data.as<T>();
  T *to = data_gradient.as<T>(), *r = residual_gradient.as<T>();
  if (relu && r) {
    DataGradient<true, true>(g, o, d, line, size, period, to, r);
  } else if (relu) {
    DataGradient<true, false>(g, o, d, line, size, period, to, r);
  } else if (r) {
    DataGradient<false, true>(g, o, d, line, size, period, to, r);
  } else {
    DataGradient<false, false>(g, o, d, line, size, period, to, r);
  }
}

FUPRUNE_VECTORISED
void ApplyGradient(bool relu, Values gradient, Values output, Values data,
                   const Line& line, int64_t size, int64_t period,
                   Values data_gradient, Values residual_gradient) {
  if (data.half) {
    ApplyGradientTo<Half>(relu, gradient, output, data, line, size, period,
                          data_gradient, residual_gradient);
  } else {
    ApplyGradientTo<float>(relu, gradient, output, data, line, size, period,
                           data_gradient, residual_gradient);
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
  const Values all_data = ValuesOf(data), all_outputs = ValuesOf(*output);
  const Values all_residuals =
      residuals.size() ? ValuesOf(*residuals.get<Array>(0)) : Values{};
  const bool half = all_data.half;
  const bool in_blocks =
      !placement.IsIdentity() || (all_residuals && !from.IsIdentity());
  for (int64_t problem = 0; problem < shape.problems; ++problem) {
    const int64_t vector = problem * shape.channels;
    const float* weights = weight.typed_data() + problem * shape.examples;
    const Values values = all_data.At(problem * shape.examples * shape.volume);
    const std::vector<double> total = SumOverExamples(
        shape, [&](int64_t example, float* sum, float* squares) {
          if (weights[example] == 0.0f) return;
          SumMoments(values.At(example * shape.volume), shape.volume, shape.period, sum,
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
      const Values residual = all_residuals.At(number * from.channels() * wide.Area());
      const Values result = all_outputs.At(number * wide.volume);
      View data_view(&placement, wide, half, in_blocks),
          residual_view(&from, wide, half, in_blocks),
          result_view(nullptr, wide, half, in_blocks);
      ForBlocks(wide, in_blocks, [&](int64_t pixel, int64_t pixels) {
        Apply(relu, data_view.Read(values.At(example * shape.volume), pixel, pixels),
              residual_view.Read(residual, pixel, pixels), factors.data(),
              shifts.data(), pixels * wide.channels, wide.period,
              result_view.Target(result, pixel));
        result_view.Flush(result, pixel, pixels);
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
  const Values all_residuals =
      residuals.size() ? ValuesOf(**residuals.get<Array>(0)) : Values{};
  const bool half = ValuesOf(data).half;
  const bool in_blocks =
      !placement.IsIdentity() || (all_residuals && !from.IsIdentity());
  for (int64_t problem = 0; problem < shape.problems; ++problem) {
    const int64_t vector = problem * shape.channels;
    const int64_t base = problem * shape.examples * shape.volume;
    const int64_t wide_base = problem * wide.examples * wide.volume;
    const float* weights = weight.typed_data() + problem * shape.examples;
    const float* means = mean.typed_data() + vector;
    const Values values = ValuesOf(data).At(base);
    const Values gradients = ValuesOf(gradient).At(wide_base);
    const Values outputs = ValuesOf(output).At(wide_base);
    std::vector<float> wide_mean(wide.channels);
    for (int64_t c = 0; c < shape.channels; ++c) wide_mean[places[c]] = means[c];
    const std::vector<float> repeated_mean = Repeated(wide_mean, wide);
    const std::vector<double> total = SumOverExamples(
        wide, [&](int64_t example, float* sum, float* product) {
          const int64_t at = example * wide.volume;
          const bool blocks = !placement.IsIdentity();
          View gradient_view(nullptr, wide, half, blocks),
              output_view(nullptr, wide, half, blocks),
              data_view(&placement, wide, half, blocks);
          ForBlocks(wide, blocks, [&](int64_t pixel, int64_t pixels) {
            SumGradient(relu, gradient_view.Read(gradients.At(at), pixel, pixels),
                        output_view.Read(outputs.At(at), pixel, pixels),
                        data_view.Read(values.At(example * shape.volume), pixel, pixels),
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
      const Values result =
          ValuesOf(*data_gradient).At(base + example * shape.volume);
      const int64_t number = problem * shape.examples + example;
      const Values residual = all_residuals.At(number * from.channels() * wide.Area());
      const int64_t at = example * wide.volume;
      const Line line = {factors.data(), counts ? constants.data() : zeros.data(),
                         counts ? slopes.data() : zeros.data()};
      View gradient_view(nullptr, wide, half, in_blocks),
          output_view(nullptr, wide, half, in_blocks),
          data_view(&placement, wide, half, in_blocks),
          result_view(&placement, wide, half, in_blocks),
          residual_view(&from, wide, half, in_blocks);
      ForBlocks(wide, in_blocks, [&](int64_t pixel, int64_t pixels) {
        ApplyGradient(relu, gradient_view.Read(gradients.At(at), pixel, pixels),
                      output_view.Read(outputs.At(at), pixel, pixels),
                      data_view.Read(values.At(example * shape.volume), pixel, pixels),
                      line, pixels * wide.channels, wide.period,
                      result_view.Target(result, pixel),
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
