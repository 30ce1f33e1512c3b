// The threads of one step: stages with a barrier between them, work taken item by item.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace octavo {

static inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// A word that threads wait at. They spin for a moment and then sleep: whoever has yet to arrive may
// need this core, when others are using the rest.
class Gate {
 public:
  uint32_t generation() const { return generation_.load(std::memory_order_acquire); }

  void open() {
    generation_.fetch_add(1);
    if (asleep_.load() > 0) wake();
  }

  // Wait until it is not `generation` any more.
  void pass(uint32_t generation) {
    for (int spins = 0; spins < SPINS; ++spins) {
      if (this->generation() != generation) return;
      relax();
    }
    asleep_.fetch_add(1);
    while (this->generation() == generation) sleep(generation);
    asleep_.fetch_sub(1);
  }

 private:
  static constexpr int SPINS = 2000;

#if defined(__linux__)
  void sleep(uint32_t generation) {
    syscall(SYS_futex, &generation_, FUTEX_WAIT_PRIVATE, generation, nullptr, nullptr, 0);
  }
  void wake() {
    syscall(SYS_futex, &generation_, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
  }
#else
  void sleep(uint32_t) { std::this_thread::yield(); }
  void wake() {}
#endif

  alignas(64) std::atomic<uint32_t> generation_{0};
  std::atomic<int> asleep_{0};
};

// The threads of a step: a barrier, and who takes which piece of work.
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
    const uint32_t generation = gate_.generation();
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      gate_.open();
    } else {
      gate_.pass(generation);
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
  Gate gate_;
};

}  // namespace octavo
