// Loops compiled for several instruction sets, the best of which is chosen at run time.

#ifndef FUPRUNE_KERNELS_VECTORISED_H_
#define FUPRUNE_KERNELS_VECTORISED_H_

#if !defined(__x86_64__)
#define FUPRUNE_VECTORISED
#elif defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
// With vectors of 16-bit integers, which bfloat16 needs; avx512f alone has none.
#define FUPRUNE_VECTORISED \
  __attribute__((target_clones("arch=x86-64-v4", "avx512f", "avx2", "default")))
#else
#define FUPRUNE_VECTORISED \
  __attribute__((target_clones("avx512f", "avx2", "default")))
#endif
#define FUPRUNE_INLINE inline __attribute__((always_inline))

#endif  // FUPRUNE_KERNELS_VECTORISED_H_
