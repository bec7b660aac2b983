// What one core can do at most: multiply-adds, a chain of additions, memory traffic.

#include <chrono>
#include <cstddef>
#include <vector>

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

extern "C" int Lanes() { return kLanes; }

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

// Cycles per second: each addition waits for the one before and takes one cycle.
extern "C" double Cycles(long turns) {
  unsigned long sum = 0;
  const double start = Now();
  for (long turn = 0; turn < turns; ++turn) {
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) asm volatile("add $1, %0" : "+r"(sum));
  }
  return 16.0 * turns / (Now() - start);
}

// Bytes per second of a[i] = b[i] + c * d[i] on arrays that no cache holds.
extern "C" double MemoryTraffic(long numbers, long turns) {
  std::vector<float> a(numbers, 0.f), b(numbers, 1.f), d(numbers, 2.f);
  const double start = Now();
  for (long turn = 0; turn < turns; ++turn) {
    for (long i = 0; i < numbers; ++i) a[i] = b[i] + 0.5f * d[i];
    asm volatile("" : : "r"(a.data()) : "memory");
  }
  return 12.0 * numbers * turns / (Now() - start);
}
