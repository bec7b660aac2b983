// Moves the channels of pixels between a narrow tensor and a wider one that holds them.

#ifndef FUPRUNE_KERNELS_PLACEMENT_H_
#define FUPRUNE_KERNELS_PLACEMENT_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#if defined(__x86_64__)
#define FUPRUNE_AVX512 __attribute__((target("avx512f")))
#include <immintrin.h>
#endif

namespace fuprune {

class Placement {
 public:
  // Channel c of the narrow tensor is channel places[c] of the wide one; increasing.
  Placement(const int64_t* places, int64_t channels, int64_t width)
      : places_(places, places + channels), width_(width) {
    for (int64_t start = 0; start < width; start += kLanes) {
      Vector vector{start, 0, 0, 0};
      for (int64_t lane = 0; lane < kLanes && start + lane < width; ++lane) {
        vector.present |= 1u << lane;
      }
      for (int64_t c = 0; c < channels; ++c) {
        if (places[c] < start) ++vector.offset;
        if (places[c] / kLanes == start / kLanes) {
          vector.held |= 1u << (places[c] - start);
        }
      }
      vectors_.push_back(vector);
    }
  }

  int64_t channels() const { return places_.size(); }
  bool IsIdentity() const { return channels() == width_; }

  // narrow [pixels, channels] -> wide [pixels, width], zero where nothing is held.
  void Widen(const float* narrow, int64_t pixels, float* wide) const {
#if defined(FUPRUNE_AVX512)
    if (HasVectors()) return WidenByVectors(narrow, pixels, wide);
#endif
    std::fill_n(wide, pixels * width_, 0.0f);
    for (int64_t pixel = 0; pixel < pixels; ++pixel) {
      for (int64_t c = 0; c < channels(); ++c) {
        wide[pixel * width_ + places_[c]] = narrow[pixel * channels() + c];
      }
    }
  }

  // wide [pixels, width] -> narrow [pixels, channels].
  void Narrow(const float* wide, int64_t pixels, float* narrow) const {
#if defined(FUPRUNE_AVX512)
    if (HasVectors()) return NarrowByVectors(wide, pixels, narrow);
#endif
    for (int64_t pixel = 0; pixel < pixels; ++pixel) {
      for (int64_t c = 0; c < channels(); ++c) {
        narrow[pixel * channels() + c] = wide[pixel * width_ + places_[c]];
      }
    }
  }

 private:
  static constexpr int64_t kLanes = 16;

  struct Vector {  // of the wide tensor
    int64_t start;
    int64_t offset;    // in the narrow tensor, of the first channel it holds
    uint32_t present;  // one bit for each lane within the width
    uint32_t held;     // one bit for each lane that the narrow tensor has
  };

#if defined(FUPRUNE_AVX512)
  static bool HasVectors() {
    static const bool has = __builtin_cpu_supports("avx512f");
    return has;
  }

  FUPRUNE_AVX512 void WidenByVectors(const float* narrow, int64_t pixels,
                                     float* wide) const {
    for (const Vector& vector : vectors_) {
      const __mmask16 present = vector.present, held = vector.held;
      const float* from = narrow + vector.offset;
      float* to = wide + vector.start;
      for (int64_t pixel = 0; pixel < pixels; ++pixel) {
        _mm512_mask_storeu_ps(to, present, _mm512_maskz_expandloadu_ps(held, from));
        from += channels();
        to += width_;
      }
    }
  }

  FUPRUNE_AVX512 void NarrowByVectors(const float* wide, int64_t pixels,
                                      float* narrow) const {
    for (const Vector& vector : vectors_) {
      const __mmask16 held = vector.held;
      const __mmask16 first = (1u << __builtin_popcount(vector.held)) - 1;
      const float* from = wide + vector.start;
      float* to = narrow + vector.offset;
      for (int64_t pixel = 0; pixel < pixels; ++pixel) {
        const __m512 values = _mm512_maskz_loadu_ps(held, from);
        _mm512_mask_storeu_ps(to, first, _mm512_maskz_compress_ps(held, values));
        from += width_;
        to += channels();
      }
    }
  }
#endif

  std::vector<int64_t> places_;
  int64_t width_;
  std::vector<Vector> vectors_;
};

}  // namespace fuprune

#endif  // FUPRUNE_KERNELS_PLACEMENT_H_
