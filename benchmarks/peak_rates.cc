// What one core can do at most: multiply-adds and products of bfloat16.

#include <chrono>
#include <csetjmp>
#include <csignal>

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
typedef float Vector __attribute__((vector_size(4 * kLanes)));

namespace {
double Now() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}
}  // namespace

// FLOP/s of independent multiply-adds that stay in registers. Twelve chains hide the
// latency of four or five cycles on two units.
extern "C" double MultiplyAdds(long turns) {
  constexpr int kChains = 12;
  Vector sums[kChains] = {}, factor = {}, addend = {};
  for (int i = 0; i < kLanes; ++i) factor[i] = 0.999f, addend[i] = 0.001f;
  const double start = Now();
  for (long turn = 0; turn < turns; ++turn) {
#pragma GCC unroll 12
    for (int chain = 0; chain < kChains; ++chain) {
      sums[chain] = sums[chain] * factor + addend;
      asm volatile("" : "+x"(sums[chain]));  // keeps every product
    }
  }
  const double seconds = Now() - start;
  return 2.0 * kLanes * kChains * turns / seconds;
}

#if defined(__x86_64__)
namespace {
sigjmp_buf illegal;

// Tried and not asked: a virtual machine may hide the flag of an instruction that works.
bool ExecutesBfloat16() {
  const auto previous = std::signal(SIGILL, [](int) { siglongjmp(illegal, 1); });
  const bool executes = sigsetjmp(illegal, 1) == 0;
  if (executes) asm volatile("vdpbf16ps %%zmm0, %%zmm0, %%zmm0" ::: "xmm0");
  std::signal(SIGILL, previous);
  return executes;
}
}  // namespace
#endif

// FLOP/s of independent products of bfloat16 (avx512_bf16) that stay in registers; 0 if
// the processor does not execute them.
extern "C" double Bfloat16Products(long turns) {
#if defined(__x86_64__)
  static const bool executes = ExecutesBfloat16();
  if (!executes) return 0;
#define PRODUCT(sum) "vdpbf16ps %%zmm16, %%zmm16, %%zmm" #sum "\n\t"
  const double start = Now();
  for (long turn = 0; turn < turns; ++turn) {
    asm volatile(PRODUCT(0) PRODUCT(1) PRODUCT(2) PRODUCT(3) PRODUCT(4) PRODUCT(5)
                     PRODUCT(6) PRODUCT(7) PRODUCT(8) PRODUCT(9) PRODUCT(10) PRODUCT(11)
                 ::: "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",
                     "xmm8", "xmm9", "xmm10", "xmm11");
  }
  return 12 * 64.0 * turns / (Now() - start);  // 16 sums of two products each
#undef PRODUCT
#else
  return 0;
#endif
}
