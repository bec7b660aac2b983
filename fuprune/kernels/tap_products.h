// A convolution as one matrix product per tap (a place in the kernel), for images of few
// pixels and many channels. There oneDNN's direct convolutions run at a fifth to a half
// of the peak: they multiply by padding (on 2x2 pixels more than half of a 3x3 kernel
// lies outside) and reorder a kernel that is larger than the data. Here only pairs of
// pixels that exist are multiplied, and the kernel [KH, KW, I, O] is read as it lies.

#ifndef FUPRUNE_KERNELS_TAP_PRODUCTS_H_
#define FUPRUNE_KERNELS_TAP_PRODUCTS_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

#include "bfloat16.h"
#include "oneapi/dnnl/dnnl.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace fuprune {

struct Shape {  // of one problem; see onednn_conv.cc for the letters
  int64_t n, h, w, i, p, q, o, kh, kw, down, right, top, left;
};

// Rows of the data and of the output, taken as matrices of pixels by channels, that one
// tap pairs.
struct Pairs {
  std::vector<int64_t> data, output;
};

inline Pairs PairsOf(const Shape& s, int64_t tap_row, int64_t tap_column) {
  Pairs pairs;
  for (int64_t image = 0; image < s.n; ++image) {
    for (int64_t row = 0; row < s.p; ++row) {
      const int64_t y = row * s.down + tap_row - s.top;
      if (y < 0 || y >= s.h) continue;
      for (int64_t column = 0; column < s.q; ++column) {
        const int64_t x = column * s.right + tap_column - s.left;
        if (x < 0 || x >= s.w) continue;
        pairs.data.push_back((image * s.h + y) * s.w + x);
        pairs.output.push_back((image * s.p + row) * s.q + column);
      }
    }
  }
  return pairs;
}

template <typename T>
void Gather(const T* matrix, int64_t width, const std::vector<int64_t>& rows, T* to) {
  for (const int64_t row : rows) {
    std::memcpy(to, matrix + row * width, width * sizeof(T));
    to += width;
  }
}

inline void AddTo(float* matrix, int64_t width, const std::vector<int64_t>& rows,
                  const float* from) {
  for (const int64_t row : rows) {
    float* target = matrix + row * width;
    for (int64_t column = 0; column < width; ++column) target[column] += from[column];
    from += width;
  }
}

inline void Multiply(bool flip_a, bool flip_b, int64_t m, int64_t n, int64_t k,
                     const float* a, const float* b, float* c) {
  const dnnl_status_t status =
      dnnl_sgemm(flip_a ? 'T' : 'N', flip_b ? 'T' : 'N', m, n, k, 1.0f, a,
                 flip_a ? m : k, b, flip_b ? k : n, 0.0f, c, n);
  if (status != dnnl_success) throw dnnl::error(status, "a matrix product failed");
}

// a^T b of bfloat16, summed and written in float32: a [k, m], b [k, n], c [m, n]. The
// primitives are each thread's own, because they hold scratch memory.
inline void MultiplyTransposed(int64_t m, int64_t n, int64_t k, const Half* a,
                               const Half* b, float* c, int threads) {
  using dnnl::memory;
  struct Product {
    memory::desc a, b, c;
    dnnl::matmul primitive;
  };
  thread_local const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  thread_local dnnl::stream stream(engine);
  thread_local std::map<std::array<int64_t, 4>, Product> products;
  auto [found, absent] = products.try_emplace({m, n, k, threads});
  Product& product = found->second;
  if (absent) {
    product.a = memory::desc({m, k}, memory::data_type::bf16, memory::dims{1, m});
    product.b = memory::desc({k, n}, memory::data_type::bf16, memory::dims{n, 1});
    product.c = memory::desc({m, n}, memory::data_type::f32, memory::dims{n, 1});
    product.primitive = dnnl::matmul(
        dnnl::matmul::primitive_desc(engine, product.a, product.b, product.c));
  }
  product.primitive.execute(
      stream, {{DNNL_ARG_SRC, memory(product.a, engine, const_cast<Half*>(a))},
               {DNNL_ARG_WEIGHTS, memory(product.b, engine, const_cast<Half*>(b))},
               {DNNL_ARG_DST, memory(product.c, engine, c)}});
}

inline void MultiplyTransposed(int64_t m, int64_t n, int64_t k, const float* a,
                               const float* b, float* c, int) {
  Multiply(true, false, m, n, k, a, b, c);
}

// Elements of scratch memory that the functions below need.
inline size_t ScratchSize(const Shape& s) { return s.n * s.p * s.q * (s.i + s.o); }

// The convolution, or, backward, its gradient with respect to the data: each tap reads
// one side's rows and adds to the other's.
inline void ConvolveByTaps(const Shape& s, bool backward, const float* from,
                           const float* kernel, float* to, float* scratch) {
  const int64_t read = backward ? s.o : s.i, written = backward ? s.i : s.o;
  const int64_t pixels = backward ? s.h * s.w : s.p * s.q;
  std::fill(to, to + s.n * pixels * written, 0.0f);
  for (int64_t tap = 0; tap < s.kh * s.kw; ++tap, kernel += s.i * s.o) {
    const Pairs pairs = PairsOf(s, tap / s.kw, tap % s.kw);
    const int64_t count = pairs.data.size();
    if (count == 0) continue;
    float* product = scratch + count * read;
    Gather(from, read, backward ? pairs.output : pairs.data, scratch);
    Multiply(false, backward, count, written, read, scratch, kernel, product);
    AddTo(to, written, backward ? pairs.data : pairs.output, product);
  }
}

template <typename T>
void KernelGradientByTaps(const Shape& s, const T* data, const T* output, float* kernel,
                          T* scratch, int threads) {
  for (int64_t tap = 0; tap < s.kh * s.kw; ++tap, kernel += s.i * s.o) {
    const Pairs pairs = PairsOf(s, tap / s.kw, tap % s.kw);
    const int64_t count = pairs.data.size();
    if (count == 0) {
      std::fill(kernel, kernel + s.i * s.o, 0.0f);
      continue;
    }
    T* outputs = scratch + count * s.i;
    Gather(data, s.i, pairs.data, scratch);
    Gather(output, s.o, pairs.output, outputs);
    MultiplyTransposed(s.i, s.o, count, scratch, outputs, kernel, threads);
  }
}

}  // namespace fuprune

#endif  // FUPRUNE_KERNELS_TAP_PRODUCTS_H_
