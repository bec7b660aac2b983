// Arrays of float32 or bfloat16, and the way from one to the other.

#ifndef FUPRUNE_KERNELS_BFLOAT16_H_
#define FUPRUNE_KERNELS_BFLOAT16_H_

#include <cstdint>
#include <cstring>

#include "vectorised.h"
#include "xla/ffi/api/ffi.h"

namespace fuprune {

FUPRUNE_VECTORISED
static void FromBfloat16(const uint16_t* __restrict values, int64_t size,
                         float* __restrict wide) {
  for (int64_t i = 0; i < size; ++i) {
    const uint32_t bits = static_cast<uint32_t>(values[i]) << 16;
    std::memcpy(&wide[i], &bits, sizeof(bits));
  }
}

// To the nearest, and to the even one of two that are as near. A NaN stays one.
FUPRUNE_VECTORISED
static void ToBfloat16(const float* __restrict values, int64_t size,
                       uint16_t* __restrict rounded) {
  for (int64_t i = 0; i < size; ++i) {
    uint32_t bits;
    std::memcpy(&bits, &values[i], sizeof(bits));
    const uint32_t nearest = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    rounded[i] = static_cast<uint16_t>(nan ? (bits >> 16) | 0x40u : nearest);
  }
}

// The values of an array in either type, from some element on.
struct Values {
  void* base = nullptr;
  bool half = false;  // bfloat16

  explicit operator bool() const { return base != nullptr; }
  float* floats() const { return static_cast<float*>(base); }
  uint16_t* halves() const { return static_cast<uint16_t*>(base); }

  Values At(int64_t element) const {
    if (base == nullptr) return *this;
    return {static_cast<char*>(base) + element * (half ? 2 : 4), half};
  }
};

inline Values ValuesOf(xla::ffi::AnyBuffer buffer) {
  return {buffer.untyped_data(), buffer.element_type() == xla::ffi::BF16};
}

}  // namespace fuprune

#endif  // FUPRUNE_KERNELS_BFLOAT16_H_
