// Binds oneDNN's convolution and its two gradients, in float32 or bfloat16, to XLA's
// foreign function interface. All arrays carry a leading axis of independent problems:
//   data   [G, N, H, W, I]    kernel [G, KH, KW, I, O]    output [G, N, P, Q, O]
// Data stay NHWC; the kernel is reordered, per call, to the layout oneDNN asks for.
// Data and output have one type. Beside bfloat16 ones, the kernel may stay float32: it is
// rounded while it is reordered, and its gradient is not rounded at all. Products of
// bfloat16 are summed in float32. Where the processor has none, or they do not pay, the
// products are those of the widened values in float32.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>
#include <vector>

#include "bfloat16.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "tap_products.h"
#include "threads.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;
using dnnl::memory;
using fuprune::Values;
using Array = ffi::AnyBuffer;
using Result = ffi::Result<Array>;
using Integers = ffi::Span<const int64_t>;

namespace {

enum class Kind { kForward, kDataGradient, kKernelGradient };

// An array of one or more problems.
struct Tensor {
  Values values;
  const int64_t* shape;

  int64_t Volume() const { return shape[1] * shape[2] * shape[3] * shape[4]; }
  Values Problem(int64_t problem) const { return values.At(problem * Volume()); }
};

// The three arrays of a convolution; which one is the result is a matter of the kind.
struct Problems {
  Tensor data, kernel, output;
  Integers strides, padding;

  bool half() const { return data.values.half; }
  bool half_kernel() const { return kernel.values.half; }
  double Operations() const {  // of one problem
    return 2.0 * kernel.shape[1] * kernel.shape[2] * kernel.shape[3] * output.Volume();
  }
};

// Everything that decides which primitive runs: kind, threads, both types, N, H, W, I, KH,
// KW, I, O, N, P, Q, O, strides, padding.
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
      const size_t wanted = (bytes + 4095) / 4096 * 4096;
      std::free(base_);
      size_ = 0;
      base_ = std::aligned_alloc(4096, wanted);
      if (base_ == nullptr) throw std::bad_alloc();
      size_ = wanted;
    }
    return base_;
  }

 private:
  void* base_ = nullptr;
  size_t size_ = 0;
};

// Whether products of bfloat16 are worth it on this processor: by AMX, or by avx512_bf16
// where that is not Intel's. Intel's processors with AMX execute avx512_bf16 at half the
// rate of float32 (benchmarks/roofline.py), which matters where a virtual machine hides
// AMX from them. oneDNN also says no where the environment forbids an instruction set
// (ONEDNN_MAX_CPU_ISA).
bool MultipliesBfloat16() {
  static const bool multiplies = [] {
    const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
    const auto has = [isa](dnnl::cpu_isa set) {
      // An instruction set holds the bits of the older ones.
      return (isa & static_cast<unsigned>(set)) == static_cast<unsigned>(set);
    };
    if (has(dnnl::cpu_isa::avx512_core_amx)) return true;
#if defined(__x86_64__)
    if (__builtin_cpu_is("intel")) return false;
#endif
    return has(dnnl::cpu_isa::avx512_core_bf16);
  }();
  return multiplies;
}

std::shared_ptr<Plan> MakePlan(Kind kind, const Problems& problems) {
  using Tag = memory::format_tag;
  const int64_t *d = problems.data.shape, *k = problems.kernel.shape,
                *o = problems.output.shape;
  const auto &s = problems.strides, &p = problems.padding;
  const memory::dims data = {d[1], d[4], d[2], d[3]}, kernel = {k[4], k[3], k[1], k[2]},
                     output = {o[1], o[4], o[2], o[3]}, strides = {s[0], s[1]},
                     low = {p[0], p[2]}, high = {p[1], p[3]};
  const auto type_of = [](bool half) {
    return half ? memory::data_type::bf16 : memory::data_type::f32;
  };
  const auto type = type_of(problems.half()),
             kernel_type = type_of(problems.half_kernel());
  auto plan = std::make_shared<Plan>();
  plan->data = memory::desc(data, type, Tag::nhwc);
  plan->output = memory::desc(output, type, Tag::nhwc);
  const bool to_kernel = kind == Kind::kKernelGradient;
  plan->user_kernel = memory::desc(kernel, to_kernel ? kernel_type : type, Tag::hwio);
  const memory::desc any(kernel, type, Tag::any),
      any_gradient(kernel, kernel_type, Tag::any);
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
        Engine(), algorithm, plan->data, any_gradient, plan->output, strides, low,
        high, forward, attributes);
    plan->kernel = backward.diff_weights_desc();
    plan->scratch = backward.scratchpad_desc();
    plan->convolution = dnnl::convolution_backward_weights(backward);
  }
  plan->reorders = plan->kernel != plan->user_kernel;
  if (plan->reorders) {
    // A kernel is small: most are moved sooner than a team meets.
    plan->reorder_operations = 20.0 * kernel[0] * kernel[1] * kernel[2] * kernel[3];
    fuprune::ApplyThreads(plan->reorder_operations);
    plan->reorder = dnnl::reorder(dnnl::reorder::primitive_desc(
        Engine(), to_kernel ? plan->kernel : plan->user_kernel, Engine(),
        to_kernel ? plan->user_kernel : plan->kernel));
  }
  return plan;
}

std::shared_ptr<const Plan> FindPlan(Kind kind, const Problems& problems) {
  static std::mutex mutex;
  static std::unordered_map<Key, std::shared_ptr<const Plan>, KeyHash> plans;
  const double operations = problems.Operations();
  // oneDNN fixes the split of the work when a primitive is made.
  Key key = {static_cast<int64_t>(kind), fuprune::ApplyThreads(operations),
             problems.half(), problems.half_kernel()};
  for (const Tensor& tensor : {problems.data, problems.kernel, problems.output}) {
    key.insert(key.end(), tensor.shape + 1, tensor.shape + 5);
  }
  for (const Integers& numbers : {problems.strides, problems.padding}) {
    key.insert(key.end(), numbers.begin(), numbers.end());
  }
  {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = plans.find(key);
    if (found != plans.end()) return found->second;
  }
  const auto plan = MakePlan(kind, problems);
  plan->operations = operations;
  const std::lock_guard<std::mutex> lock(mutex);
  return plans.emplace(std::move(key), plan).first->second;
}

// Where matrix products are faster, by measurement on one core with 32 images. AVX2: the
// gradient of a kernel takes 0.4 to 0.9 of the time, and a third on 2x2 pixels; the other
// two take half of it on 2x2 pixels, and the gradient of data 0.7 to 0.9 on 4x4. AVX-512:
// the convolution itself takes half of the time on 4x4 pixels.
bool PaysByTaps(Kind kind, const fuprune::Shape& shape) {
  const int64_t pixels = shape.p * shape.q, channels = std::min(shape.i, shape.o);
  if (channels < 128) return false;
  if (kind == Kind::kKernelGradient) return pixels <= 64;
  return pixels <= (channels < 256 ? 4 : 16);
}

// The same problems by matrix products.
void RunByTaps(Kind kind, const fuprune::Shape& shape, const Problems& problems) {
  thread_local Workspace workspace;
  void* scratch = workspace.Get(fuprune::ScratchSize(shape) * sizeof(float));
  const int threads = fuprune::ApplyThreads(problems.Operations());
  for (int64_t problem = 0; problem < problems.data.shape[0]; ++problem) {
    const Values data = problems.data.Problem(problem),
                 output = problems.output.Problem(problem);
    float* kernel = problems.kernel.Problem(problem).floats();
    if (kind == Kind::kForward) {
      fuprune::ConvolveByTaps(shape, false, data.floats(), kernel, output.floats(),
                              static_cast<float*>(scratch));
    } else if (kind == Kind::kDataGradient) {
      fuprune::ConvolveByTaps(shape, true, output.floats(), kernel, data.floats(),
                              static_cast<float*>(scratch));
    } else if (data.half) {
      fuprune::KernelGradientByTaps(shape, data.halves(), output.halves(), kernel,
                                    static_cast<fuprune::Half*>(scratch), threads);
    } else {
      fuprune::KernelGradientByTaps(shape, data.floats(), output.floats(), kernel,
                                    static_cast<float*>(scratch), threads);
    }
  }
}

// Calls convert(first element, elements) for shares of an array.
template <typename Convert>
void InShares(int64_t size, const Convert& convert) {
  constexpr int64_t kShare = 1 << 16;
  // An element costs about what ten operations of a convolution do: it is fetched.
  fuprune::Parallel((size + kShare - 1) / kShare, 10.0 * size, [&](int64_t share) {
    convert(share * kShare, std::min(kShare, size - share * kShare));
  });
}

// The same problems by a primitive of oneDNN, in the type of the arrays.
void RunByPlan(Kind kind, const Problems& problems) {
  thread_local dnnl::stream stream(Engine());
  thread_local Workspace workspace;
  const auto plan = FindPlan(kind, problems);
  const size_t scratch_bytes = (plan->scratch.get_size() + 4095) / 4096 * 4096;
  const size_t kernel_bytes =
      plan->reorders ? (plan->kernel.get_size() + 4095) / 4096 * 4096 : 0;
  // oneDNN could round while it reorders, but takes three times as long.
  const bool rounds =
      kind != Kind::kKernelGradient && problems.half() && !problems.half_kernel();
  const int64_t kernel_size = problems.kernel.Volume();
  char* base = static_cast<char*>(workspace.Get(
      scratch_bytes + kernel_bytes + (rounds ? 2 * kernel_size : 0)));
  const auto rounded = reinterpret_cast<fuprune::Half*>(base + scratch_bytes + kernel_bytes);

  memory data_memory(plan->data, Engine(), problems.data.values.base);
  memory output_memory(plan->output, Engine(), problems.output.values.base);
  memory user_kernel(plan->user_kernel, Engine(), problems.kernel.values.base);
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

  for (int64_t problem = 0; problem < problems.data.shape[0]; ++problem) {
    data_memory.set_data_handle(problems.data.Problem(problem).base);
    output_memory.set_data_handle(problems.output.Problem(problem).base);
    const Values kernel = problems.kernel.Problem(problem);
    user_kernel.set_data_handle(rounds ? rounded : kernel.base);
    if (rounds) {
      InShares(kernel_size, [&](int64_t start, int64_t size) {
        fuprune::ToBfloat16(kernel.floats() + start, size, rounded + start);
      });
    }
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

fuprune::Shape ShapeOf(const Problems& problems) {
  const int64_t *d = problems.data.shape, *k = problems.kernel.shape,
                *o = problems.output.shape;
  return {d[1], d[2], d[3], d[4], o[2], o[3], o[4], k[1], k[2], problems.strides[0],
          problems.strides[1], problems.padding[0], problems.padding[2]};
}

void RunInFloat32(Kind kind, const Problems& problems) {
  const fuprune::Shape shape = ShapeOf(problems);
  if (PaysByTaps(kind, shape)) {
    RunByTaps(kind, shape, problems);
  } else {
    RunByPlan(kind, problems);
  }
}

// On 2x2 pixels the kernel is nearly all that is moved. Rounding and reordering it takes
// longer than products in float32 by taps, which read it as it lies.
bool ReadsKernelAsItLies(Kind kind, const Problems& problems) {
  const fuprune::Shape shape = ShapeOf(problems);
  return !problems.half_kernel() && shape.p * shape.q <= 4 && PaysByTaps(kind, shape);
}

// Problems in bfloat16 by float32: one at a time, so that the scratch does not grow with
// their number. A kernel in float32 is rounded where products of bfloat16 would round it,
// so that processors with and without them differ in the order of their sums alone.
void RunWidened(Kind kind, const Problems& problems) {
  thread_local Workspace workspace;
  const Tensor tensors[] = {problems.data, problems.kernel, problems.output};
  const int result = kind == Kind::kForward ? 2 : kind == Kind::kDataGradient ? 0 : 1;
  const bool rounds = result != 1 && !ReadsKernelAsItLies(kind, problems);
  const bool copied[] = {tensors[0].values.half, tensors[1].values.half || rounds,
                         tensors[2].values.half};
  int64_t starts[4] = {};
  for (int i = 0; i < 3; ++i) {  // each starts on a cache line of its own
    const int64_t volume = copied[i] ? tensors[i].Volume() : 0;
    starts[i + 1] = starts[i] + (volume + 15) / 16 * 16;
  }
  float* scratch = static_cast<float*>(workspace.Get(starts[3] * sizeof(float)));
  std::vector<int64_t> shapes[3];
  for (int i = 0; i < 3; ++i) {
    shapes[i].assign(tensors[i].shape, tensors[i].shape + 5);
    shapes[i][0] = 1;
  }
  for (int64_t problem = 0; problem < problems.data.shape[0]; ++problem) {
    Tensor wide[3];
    for (int i = 0; i < 3; ++i) {
      const Values values = tensors[i].Problem(problem);
      wide[i] = {values, shapes[i].data()};
      if (!copied[i]) continue;
      wide[i].values = {scratch + starts[i], false};
      if (i == result) continue;
      InShares(tensors[i].Volume(), [&](int64_t start, int64_t size) {
        float* to = wide[i].values.floats() + start;
        if (values.half) {
          fuprune::FromBfloat16(values.halves() + start, size, to);
        } else {
          fuprune::RoundToBfloat16(values.floats() + start, size, to);
        }
      });
    }
    RunInFloat32(kind,
                 {wide[0], wide[1], wide[2], problems.strides, problems.padding});
    const Values rounded = tensors[result].Problem(problem);
    if (!rounded.half) continue;
    InShares(tensors[result].Volume(), [&](int64_t start, int64_t size) {
      fuprune::ToBfloat16(wide[result].values.floats() + start, size,
                          rounded.halves() + start);
    });
  }
}

void RunInBfloat16(Kind kind, const Problems& problems) {
  const fuprune::Shape shape = ShapeOf(problems);
  if (ReadsKernelAsItLies(kind, problems)) {
    RunWidened(kind, problems);
  } else if (!problems.half_kernel() && kind == Kind::kKernelGradient &&
             PaysByTaps(kind, shape)) {
    RunByTaps(kind, shape, problems);
  } else {
    RunByPlan(kind, problems);
  }
}

void Run(Kind kind, const Problems& problems) {
  if (!problems.half()) {
    RunInFloat32(kind, problems);
  } else if (MultipliesBfloat16()) {
    RunInBfloat16(kind, problems);
  } else {
    RunWidened(kind, problems);
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

Tensor TensorOf(Array& array) {
  return {fuprune::ValuesOf(array), array.dimensions().begin()};
}

ffi::Error Forward(Array data, Array kernel, Result output, Integers strides,
                   Integers padding) {
  return Guarded([&] {
    Run(Kind::kForward,
        {TensorOf(data), TensorOf(kernel), TensorOf(*output), strides, padding});
  });
}

ffi::Error DataGradient(Array output, Array kernel, Result data, Integers strides,
                        Integers padding) {
  return Guarded([&] {
    Run(Kind::kDataGradient,
        {TensorOf(*data), TensorOf(kernel), TensorOf(output), strides, padding});
  });
}

ffi::Error KernelGradient(Array data, Array output, Result kernel, Integers strides,
                          Integers padding) {
  return Guarded([&] {
    Run(Kind::kKernelGradient,
        {TensorOf(data), TensorOf(*kernel), TensorOf(output), strides, padding});
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

extern "C" FUPRUNE_EXPORT bool fuprune_multiplies_bfloat16() {
  return MultipliesBfloat16();
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
