// How many OpenMP threads a kernel may use, shared by the sources of this library.

#ifndef FUPRUNE_KERNELS_THREADS_H_
#define FUPRUNE_KERNELS_THREADS_H_

#include <atomic>
#include <cstdint>

// Resolved through libdnnl's own dependency, so that exactly one OpenMP runtime is in
// use whatever compiler builds this library.
extern "C" void omp_set_num_threads(int);
extern "C" int omp_get_max_threads(void);
extern "C" int omp_get_thread_num(void);
extern "C" int omp_get_num_threads(void);
extern "C" void GOMP_parallel(void (*function)(void*), void* data, unsigned threads,
                              unsigned flags);

namespace fuprune {

// 0 leaves OpenMP's own choice.
inline std::atomic<int> num_threads{0};

// Below this many operations a team takes longer to meet than to work, much longer
// where other processes want the cores.
constexpr double kWorthATeam = 4e6;

// Sets and returns how many threads are worth their while for so many operations. OpenMP
// keeps the number per calling thread, and XLA calls from many.
inline int ApplyThreads(double operations) {
  thread_local const int initial = omp_get_max_threads();
  int threads = num_threads.load(std::memory_order_relaxed);
  if (threads == 0) threads = initial;
  if (operations < kWorthATeam) threads = 1;
  if (threads != omp_get_max_threads()) omp_set_num_threads(threads);
  return threads;
}

// Runs function(item) for every item below count, in contiguous shares.
template <typename Function>
void Parallel(int64_t count, double operations, const Function& function) {
  const int threads = ApplyThreads(operations);
  if (threads == 1 || count == 1) {
    for (int64_t item = 0; item < count; ++item) function(item);
    return;
  }
  struct Task {
    int64_t count;
    const Function& function;
  } task{count, function};
  GOMP_parallel(
      [](void* data) {
        const Task& task = *static_cast<Task*>(data);
        const int64_t team = omp_get_num_threads(), rank = omp_get_thread_num();
        const int64_t end = task.count * (rank + 1) / team;
        for (int64_t item = task.count * rank / team; item < end; ++item) {
          task.function(item);
        }
      },
      &task, threads, 0);
}

}  // namespace fuprune

#endif  // FUPRUNE_KERNELS_THREADS_H_
