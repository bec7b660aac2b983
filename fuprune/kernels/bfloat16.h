// Arrays of float32 or bfloat16, and the way from one to the other.

#ifndef FUPRUNE_KERNELS_BFLOAT16_H_
#define FUPRUNE_KERNELS_BFLOAT16_H_

#include <cstdint>
#include <cstring>

#include "vectorised.h"
#include "xla/ffi/api/ffi.h"

namespace fuprune {

// A bfloat16: the upper half of a float32.
struct Half {
  uint16_t bits;
};

FUPRUNE_INLINE float Load(float value) { return value; }
FUPRUNE_INLINE float Load(Half value) {
  const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof(bits));
  return wide;
}

FUPRUNE_INLINE void Store(float value, float& to) { to = value; }
// To the nearest, and to the even one of two that are as near. A NaN stays one.
FUPRUNE_INLINE void Store(float value, Half& to) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t nearest = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  to.bits = static_cast<uint16_t>(nan ? (bits >> 16) | 0x40u : nearest);
}

FUPRUNE_VECTORISED
static void FromBfloat16(const Half* __restrict values, int64_t size,
                         float* __restrict wide) {
  for (int64_t i = 0; i < size; ++i) wide[i] = Load(values[i]);
}

FUPRUNE_VECTORISED
static void ToBfloat16(const float* __restrict values, int64_t size,
                       Half* __restrict rounded) {
  for (int64_t i = 0; i < size; ++i) Store(values[i], rounded[i]);
}

// The same values as `ToBfloat16`, in float32.
FUPRUNE_VECTORISED
static void RoundToBfloat16(const float* __restrict values, int64_t size,
                            float* __restrict rounded) {
  for (int64_t i = 0; i < size; ++i) {
    Half half;
    Store(values[i], half);
    rounded[i] = Load(half);
  }
}

// The values of an array in either type, from some element on.
struct Values {
  void* base = nullptr;
  bool half = false;  // bfloat16

  explicit operator bool() const { return base != nullptr; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(base);
  }
  float* floats() const { return as<float>(); }
  Half* halves() const { return as<Half>(); }

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
