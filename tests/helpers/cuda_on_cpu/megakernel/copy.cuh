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

inline void publish_barriers() {}

struct Piece {
  void* target;
  const void* source;
};
inline std::vector<std::vector<Piece>> pieces;  // of each thread

inline std::vector<Piece>& own_pieces() {
  pieces.resize(emulation::fibers.size());
  return pieces[emulation::current];
}

inline void copy_piece(void* target, const void* source) { own_pieces().push_back({target, source}); }
inline void copy_piece(u32 target, const void* source) { copy_piece(static_cast<char*>(block_memory()) + target, source); }

inline void await_pieces() {
  for (const Piece& piece : own_pieces()) std::memcpy(piece.target, piece.source, 16);
  own_pieces().clear();
}

inline u64 streaming_policy() { return 0; }

inline void expect_bytes(u64* barrier, int bytes) {
  arrivals(barrier).bytes += bytes;
  mbarrier_arrive(barrier);
}

inline void copy_bulk(void* target, const void* source, int bytes, u64* barrier, u64) {
  emulation::copies.push_back([=] {
    std::memcpy(target, source, bytes);
    arrivals(barrier).bytes -= bytes;
    arrivals(barrier).settle();
  });
}

inline void copy_then_arrive(u64* barrier) {
  await_pieces();
  mbarrier_arrive(barrier);
}
