// The threads of one step: stages with a barrier between them, work taken item by item.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace octavo {

static inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// A barrier that spins for a moment and then gives the core away: others may need it to arrive.
class Team {
 public:
  void gather(int threads, int stages) {
    size_ = threads;
    if (stages > capacity_) {
      next_ = std::make_unique<std::atomic<int>[]>(stages);
      capacity_ = stages;
    }
    for (int i = 0; i < stages; ++i) next_[i].store(0, std::memory_order_relaxed);
    arrived_.store(0, std::memory_order_relaxed);
  }

  void wait() {
    if (size_ == 1) return;
    const uint32_t generation = generation_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      generation_.store(generation + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; generation_.load(std::memory_order_acquire) == generation; ++spins) {
      if (spins < 4096) relax();
      else std::this_thread::yield();
    }
  }

  // The next piece of work of a stage that nobody has taken.
  int take(int stage) { return next_[stage].fetch_add(1, std::memory_order_relaxed); }

  int size() const { return size_; }

 private:
  int size_ = 1;
  int capacity_ = 0;
  std::unique_ptr<std::atomic<int>[]> next_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> generation_{0};
};

}  // namespace octavo
