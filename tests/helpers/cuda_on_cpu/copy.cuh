// Stands in for the file of the same name in csrc. Copies are made as late as their waits allow, or in any order.
#pragma once
#include "primitive.cuh"

// What an mbarrier's word holds.
struct Arrivals {
  u16 expected;
  u16 missing : 15, phase : 1;
  int bytes;  // that are on their way

  void settle() {
    if (missing == 0 && bytes == 0) missing = expected, phase ^= 1;
  }
};
static_assert(sizeof(Arrivals) == sizeof(u64));

inline Arrivals& arrivals(u64* barrier) { return *reinterpret_cast<Arrivals*>(barrier); }

inline u32 shared_address(const void* pointer) { return u32(static_cast<const char*>(pointer) - static_cast<char*>(block_memory())); }

inline void mbarrier_init(u64* barrier, u32 count) { arrivals(barrier) = {u16(count), u16(count), 0, 0}; }

inline void mbarrier_arrive(u64* barrier) {
  --arrivals(barrier).missing;
  arrivals(barrier).settle();
}

inline bool mbarrier_done(u64* barrier, u32 parity) {
  const bool done = arrivals(barrier).phase != parity;
  if (!done) emulation::rest();
  return done;
}

inline void wait_for(u64* barrier, u32 parity) {
  while (!mbarrier_done(barrier, parity)) {
  }
}

inline void fence_mbarrier_init() {}

struct AsyncCopy {
  void* target;
  const void* source;  // null for zeros
  int group;

  void make() const { source ? std::memcpy(target, source, 16) : std::memset(target, 0, 16); }
};
struct AsyncCopies {
  std::vector<AsyncCopy> pending;
  int group = 0;  // of the copies to come

  // Those of groups before this one.
  void make(int before) {
    const auto rest = std::stable_partition(pending.begin(), pending.end(), [&](const AsyncCopy& copy) { return copy.group < before; });
    for (auto copy = pending.begin(); copy != rest; ++copy) copy->make();
    pending.erase(pending.begin(), rest);
  }
};
inline std::vector<AsyncCopies> async_copies;  // of each thread

inline AsyncCopies& own_copies() {
  async_copies.resize(emulation::fibers.size());
  return async_copies[emulation::current];
}

inline void copy_async_16(void* target, const void* source) {
  AsyncCopies& own = own_copies();
  own.pending.push_back({target, source, own.group});
}
inline void copy_async_16(u32 target, const void* source) { copy_async_16(static_cast<char*>(block_memory()) + target, source); }

inline void copy_async_16(void* target, const void* source, bool wanted) { copy_async_16(target, wanted ? source : nullptr); }
inline void copy_async_cached_16(void* target, const void* source, bool wanted) { copy_async_16(target, source, wanted); }

inline void prefetch(const void*, u32) {}
inline void prefetch_line(const void*) {}

inline void commit_async_copies() { ++own_copies().group; }

template <int GROUPS_>
inline void await_async_copies_but() {
  own_copies().make(own_copies().group - GROUPS_);
}

inline void await_async_copies() { own_copies().make(own_copies().group + 1); }

inline u64 streaming_policy() { return 0; }

inline void expect_bytes(u64* barrier, int bytes) {
  arrivals(barrier).bytes += bytes;
  mbarrier_arrive(barrier);
}

inline void copy_bulk(void* target, const void* source, int bytes, u64* barrier, u64 = 0) {
  emulation::copies.push_back([=] {
    std::memcpy(target, source, bytes);
    arrivals(barrier).bytes -= bytes;
    arrivals(barrier).settle();
  });
}

inline void admit_to_copies() {}

inline void copy_then_arrive(u64* barrier) {
  await_async_copies();
  mbarrier_arrive(barrier);
}
