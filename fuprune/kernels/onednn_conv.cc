// Binds oneDNN's float32 convolution and its two gradients to XLA's foreign function
// interface. All arrays carry a leading axis of independent problems:
//   data   [G, N, H, W, I]    kernel [G, KH, KW, I, O]    output [G, N, P, Q, O]
// Data stay NHWC; the kernel is reordered, per call, to the layout oneDNN asks for.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>
#include <vector>

#include "oneapi/dnnl/dnnl.hpp"
#include "tap_products.h"
#include "threads.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;
using dnnl::memory;
using Array = ffi::Buffer<ffi::F32, 5>;
using Result = ffi::Result<Array>;
using Integers = ffi::Span<const int64_t>;

namespace {

enum class Kind { kForward, kDataGradient, kKernelGradient };

// Everything that decides which primitive runs: kind, threads, N, H, W, I, P, Q, O, KH,
// KW, strides, padding.
using Key = std::vector<int64_t>;

struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t hash = 1469598103934665603ull;
    for (int64_t value : key) {
      hash = (hash ^ static_cast<uint64_t>(value)) * 1099511628211ull;
    }
    return hash;
  }
};

struct Plan {
  dnnl::primitive convolution;
  dnnl::reorder reorder;  // kernel: HWIO -> oneDNN's (gradient: the other way)
  bool reorders = false;
  double operations = 0, reorder_operations = 0;  // see ApplyThreads
  memory::desc data, kernel, output, user_kernel, scratch;
};

dnnl::engine& Engine() {
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

// Primitives are shared by all threads, so they must not own scratch memory: each
// thread lends its own, which only ever grows.
class Workspace {
 public:
  ~Workspace() { std::free(base_); }
  void* Get(size_t bytes) {
    if (bytes > size_) {
      std::free(base_);
      size_ = (bytes + 4095) / 4096 * 4096;
      base_ = std::aligned_alloc(4096, size_);
      if (base_ == nullptr) throw std::bad_alloc();
    }
    return base_;
  }

 private:
  void* base_ = nullptr;
  size_t size_ = 0;
};

std::shared_ptr<Plan> MakePlan(Kind kind, const memory::dims& data,
                               const memory::dims& kernel, const memory::dims& output,
                               const memory::dims& strides, const memory::dims& low,
                               const memory::dims& high) {
  using Tag = memory::format_tag;
  constexpr auto kType = memory::data_type::f32;
  auto plan = std::make_shared<Plan>();
  plan->data = memory::desc(data, kType, Tag::nhwc);
  plan->output = memory::desc(output, kType, Tag::nhwc);
  plan->user_kernel = memory::desc(kernel, kType, Tag::hwio);
  const memory::desc any(kernel, kType, Tag::any);
  const auto algorithm = dnnl::algorithm::convolution_direct;
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);

  const dnnl::convolution_forward::primitive_desc forward(
      Engine(), dnnl::prop_kind::forward_training, algorithm, plan->data, any,
      plan->output, strides, low, high, attributes);
  if (kind == Kind::kForward) {
    plan->kernel = forward.weights_desc();
    plan->scratch = forward.scratchpad_desc();
    plan->convolution = dnnl::convolution_forward(forward);
  } else if (kind == Kind::kDataGradient) {
    const dnnl::convolution_backward_data::primitive_desc backward(
        Engine(), algorithm, plan->data, any, plan->output, strides, low, high,
        forward, attributes);
    plan->kernel = backward.weights_desc();
    plan->scratch = backward.scratchpad_desc();
    plan->convolution = dnnl::convolution_backward_data(backward);
  } else {
    const dnnl::convolution_backward_weights::primitive_desc backward(
        Engine(), algorithm, plan->data, any, plan->output, strides, low, high,
        forward, attributes);
    plan->kernel = backward.diff_weights_desc();
    plan->scratch = backward.scratchpad_desc();
    plan->convolution = dnnl::convolution_backward_weights(backward);
  }
  plan->reorders = plan->kernel != plan->user_kernel;
  if (plan->reorders) {
    // A kernel is small: most are moved sooner than a team meets.
    plan->reorder_operations = 20.0 * kernel[0] * kernel[1] * kernel[2] * kernel[3];
    fuprune::ApplyThreads(plan->reorder_operations);
    const bool back = kind == Kind::kKernelGradient;
    plan->reorder = dnnl::reorder(dnnl::reorder::primitive_desc(
        Engine(), back ? plan->kernel : plan->user_kernel, Engine(),
        back ? plan->user_kernel : plan->kernel));
  }
  return plan;
}

double Operations(const int64_t* kernel, const int64_t* output) {  // of one problem
  return 2.0 * kernel[1] * kernel[2] * kernel[3] * output[1] * output[2] * output[3] *
         output[4];
}

std::shared_ptr<const Plan> FindPlan(Kind kind, const int64_t* data,
                                     const int64_t* kernel, const int64_t* output,
                                     Integers strides, Integers padding) {
  static std::mutex mutex;
  static std::unordered_map<Key, std::shared_ptr<const Plan>, KeyHash> plans;
  const double operations = Operations(kernel, output);
  // oneDNN fixes the split of the work when a primitive is made.
  Key key = {static_cast<int64_t>(kind), fuprune::ApplyThreads(operations)};
  key.insert(key.end(), data + 1, data + 5);
  key.insert(key.end(), kernel + 1, kernel + 5);
  key.insert(key.end(), output + 1, output + 5);
  key.insert(key.end(), strides.begin(), strides.end());
  key.insert(key.end(), padding.begin(), padding.end());
  {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = plans.find(key);
    if (found != plans.end()) return found->second;
  }
  const auto plan = MakePlan(kind, {data[1], data[4], data[2], data[3]},
                             {kernel[4], kernel[3], kernel[1], kernel[2]},
                             {output[1], output[4], output[2], output[3]},
                             {strides[0], strides[1]}, {padding[0], padding[2]},
                             {padding[1], padding[3]});
  plan->operations = operations;
  const std::lock_guard<std::mutex> lock(mutex);
  return plans.emplace(std::move(key), plan).first->second;
}

int64_t Volume(const int64_t* dimensions) {  // of one problem of the leading axis
  return dimensions[1] * dimensions[2] * dimensions[3] * dimensions[4];
}

// Where matrix products are faster, by measurement on one AVX2 core with 32 images: the
// gradient of a kernel takes 0.4 to 0.9 of the time, and a third on 2x2 pixels; the other
// two take half of it on 2x2 pixels, and the gradient of data 0.7 to 0.9 on 4x4.
bool PaysByTaps(Kind kind, const fuprune::Shape& shape) {
  const int64_t pixels = shape.p * shape.q, channels = std::min(shape.i, shape.o);
  if (channels < 128) return false;
  switch (kind) {
    case Kind::kForward:
      return pixels <= 4;
    case Kind::kDataGradient:
      return pixels <= (channels < 256 ? 4 : 16);
    default:
      return pixels <= 64;
  }
}

// The same problems by matrix products.
void RunByTaps(Kind kind, const fuprune::Shape& shape, int64_t problems, float* data,
               float* kernel, float* output, double operations) {
  thread_local Workspace workspace;
  const auto scratch = static_cast<float*>(
      workspace.Get(fuprune::ScratchFloats(shape) * sizeof(float)));
  fuprune::ApplyThreads(operations);
  for (int64_t problem = 0; problem < problems; ++problem) {
    if (kind == Kind::kForward) {
      fuprune::ConvolveByTaps(shape, false, data, kernel, output, scratch);
    } else if (kind == Kind::kDataGradient) {
      fuprune::ConvolveByTaps(shape, true, output, kernel, data, scratch);
    } else {
      fuprune::KernelGradientByTaps(shape, data, output, kernel, scratch);
    }
    data += shape.n * shape.h * shape.w * shape.i;
    kernel += shape.kh * shape.kw * shape.i * shape.o;
    output += shape.n * shape.p * shape.q * shape.o;
  }
}

void Run(Kind kind, float* data, const int64_t* data_shape, float* kernel,
         const int64_t* kernel_shape, float* output, const int64_t* output_shape,
         Integers strides, Integers padding) {
  const fuprune::Shape shape = {
      data_shape[1],   data_shape[2],   data_shape[3], data_shape[4], output_shape[2],
      output_shape[3], output_shape[4], kernel_shape[1], kernel_shape[2], strides[0],
      strides[1],      padding[0],      padding[2]};
  if (PaysByTaps(kind, shape)) {
    const double operations = Operations(kernel_shape, output_shape);
    RunByTaps(kind, shape, data_shape[0], data, kernel, output, operations);
    return;
  }
  thread_local dnnl::stream stream(Engine());
  thread_local Workspace workspace;
  const auto plan =
      FindPlan(kind, data_shape, kernel_shape, output_shape, strides, padding);
  const size_t scratch_bytes = (plan->scratch.get_size() + 4095) / 4096 * 4096;
  const size_t kernel_bytes = plan->reorders ? plan->kernel.get_size() : 0;
  char* base = static_cast<char*>(workspace.Get(scratch_bytes + kernel_bytes));

  memory data_memory(plan->data, Engine(), data);
  memory output_memory(plan->output, Engine(), output);
  memory user_kernel(plan->user_kernel, Engine(), kernel);
  memory scratch(plan->scratch, Engine(), base);
  memory inner = plan->reorders
                     ? memory(plan->kernel, Engine(), base + scratch_bytes)
                     : user_kernel;
  std::unordered_map<int, memory> arguments;
  arguments.emplace(DNNL_ARG_SCRATCHPAD, scratch);
  arguments.emplace(kind == Kind::kDataGradient ? DNNL_ARG_DIFF_SRC : DNNL_ARG_SRC,
                    data_memory);
  arguments.emplace(kind == Kind::kForward ? DNNL_ARG_DST : DNNL_ARG_DIFF_DST,
                    output_memory);
  arguments.emplace(
      kind == Kind::kKernelGradient ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_WEIGHTS, inner);

  for (int64_t problem = 0; problem < data_shape[0]; ++problem) {
    data_memory.set_data_handle(data + problem * Volume(data_shape));
    output_memory.set_data_handle(output + problem * Volume(output_shape));
    user_kernel.set_data_handle(kernel + problem * Volume(kernel_shape));
    const auto reorder = [&](memory& source, memory& target) {
      fuprune::ApplyThreads(plan->reorder_operations);
      plan->reorder.execute(stream, source, target);
    };
    if (plan->reorders && kind != Kind::kKernelGradient) reorder(user_kernel, inner);
    fuprune::ApplyThreads(plan->operations);
    plan->convolution.execute(stream, arguments);
    if (plan->reorders && kind == Kind::kKernelGradient) reorder(inner, user_kernel);
  }
}

template <typename Function>
ffi::Error Guarded(Function function) {
  try {
    function();
    return ffi::Error::Success();
  } catch (const dnnl::error& error) {
    return ffi::Error::Internal(std::string("oneDNN: ") + error.what());
  } catch (const std::exception& error) {
    return ffi::Error::Internal(error.what());
  }
}

ffi::Error Forward(Array data, Array kernel, Result output, Integers strides,
                   Integers padding) {
  return Guarded([&] {
    Run(Kind::kForward, data.typed_data(), data.dimensions().begin(),
        kernel.typed_data(), kernel.dimensions().begin(), output->typed_data(),
        output->dimensions().begin(), strides, padding);
  });
}

ffi::Error DataGradient(Array output, Array kernel, Result data, Integers strides,
                        Integers padding) {
  return Guarded([&] {
    Run(Kind::kDataGradient, data->typed_data(), data->dimensions().begin(),
        kernel.typed_data(), kernel.dimensions().begin(), output.typed_data(),
        output.dimensions().begin(), strides, padding);
  });
}

ffi::Error KernelGradient(Array data, Array output, Result kernel, Integers strides,
                          Integers padding) {
  return Guarded([&] {
    Run(Kind::kKernelGradient, data.typed_data(), data.dimensions().begin(),
        kernel->typed_data(), kernel->dimensions().begin(), output.typed_data(),
        output.dimensions().begin(), strides, padding);
  });
}

}  // namespace

#define FUPRUNE_EXPORT __attribute__((visibility("default")))
#define FUPRUNE_BINDING                          \
  ffi::Ffi::Bind()                               \
      .Arg<Array>()                              \
      .Arg<Array>()                              \
      .Ret<Array>()                              \
      .Attr<Integers>("strides")                 \
      .Attr<Integers>("padding")

extern "C" FUPRUNE_EXPORT void fuprune_set_threads(int threads) {
  fuprune::num_threads.store(threads);
}

// Gives way to a number that was set before.
extern "C" FUPRUNE_EXPORT void fuprune_set_default_threads(int threads) {
  int unset = 0;
  fuprune::num_threads.compare_exchange_strong(unset, threads);
}

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(fuprune_conv_forward, Forward, FUPRUNE_BINDING);
XLA_FFI_DEFINE_HANDLER_SYMBOL(fuprune_conv_data_gradient, DataGradient,
                              FUPRUNE_BINDING);
XLA_FFI_DEFINE_HANDLER_SYMBOL(fuprune_conv_kernel_gradient, KernelGradient,
                              FUPRUNE_BINDING);
#pragma GCC visibility pop
