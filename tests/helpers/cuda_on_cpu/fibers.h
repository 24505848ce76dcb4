// Runs the threads of a grid on one thread of a CPU: each is a fiber that runs until it waits for others. Lanes of a warp take
// turns; a warp goes on until one of its lanes has nothing to do, or now and then for no reason, so that warps get ahead of each
// other in ever new ways. The same seed gives the same ways.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <utility>
#include <vector>

struct Index {
  unsigned x;
};
inline Index threadIdx, blockIdx, blockDim, gridDim;

namespace emulation {

constexpr unsigned LANES = 32, MAX_WARPS = 256, BARRIERS = 2;
constexpr size_t STACK_BYTES = 1 << 16, MEMORY_ALIGNMENT = 128;
constexpr unsigned REST = 16;            // of this many waits of a warp's lanes for each other, one gives others a turn
constexpr unsigned LONG_REST = 64;       // of this many warps that barriers let go, one stays behind
constexpr unsigned LONGEST_REST = 1024;  // for up to this many turns of others

struct Barrier {
  int waiting = 0, generation = 0;

  // One more has come; true if it was the last of `count`: a new generation begins.
  bool arrive(int count) {
    if (++waiting < count) return false;
    waiting = 0, ++generation;
    return true;
  }
};

struct Warp {
  Barrier lanes;
  unsigned lane = 0;             // which goes on when the warp does
  unsigned finished = 0;         // lanes
  unsigned asleep = 0;           // lanes that wait
  const Barrier* bed = nullptr;  // at this
  bool stuck = false;            // some lane had nothing to do in this round
  long long rests_until = 0;     // tick, unless nobody else can run

  bool can_run() const { return finished + asleep < LANES; }
};

struct Memory {
  char* bytes = nullptr;
  size_t size = 0;

  // `wanted` is a multiple of MEMORY_ALIGNMENT.
  char* of(size_t wanted) {
    if (wanted > size) {
      std::free(bytes);
      bytes = static_cast<char*>(std::aligned_alloc(MEMORY_ALIGNMENT, size = wanted));
    }
    return bytes;
  }
};

// Contexts are for a fiber's beginning: to switch between them takes a system call, a jump does not.
struct Fiber {
  ucontext_t start;
  jmp_buf place;
  bool begun = false, finished = false;
};

inline std::vector<Fiber> fibers;
inline std::vector<Warp> warps;
inline std::vector<Barrier> barriers;  // BARRIERS of each block
inline std::vector<std::function<void()>> copies;  // on their way
inline std::function<void()> body;
inline ucontext_t home;
inline Memory stacks, shared;
inline size_t shared_bytes;
inline unsigned current, first_block;  // fiber; block of the first fiber
inline long long ticks;
inline std::minstd_rand chance;

inline Warp& own_warp() { return warps[current / LANES]; }
inline void* block_memory() { return shared.bytes + (blockIdx.x - first_block) * shared_bytes; }

// Hardware makes copies in the background: some time, in any order.
inline void make_a_copy() {
  if (copies.empty() || chance() % 4 != 0) return;
  std::swap(copies[chance() % copies.size()], copies.back());
  const auto copy = std::move(copies.back());
  copies.pop_back();
  copy();
}

inline void become(unsigned fiber) {
  current = fiber;
  threadIdx.x = fiber % blockDim.x, blockIdx.x = first_block + fiber / blockDim.x;
}

inline void switch_to(unsigned fiber) {
  Fiber &from = fibers[current], &to = fibers[fiber];
  become(fiber);
  if (&from == &to || (!from.finished && _setjmp(from.place))) return;
  if (to.begun) _longjmp(to.place, 1);
  to.begun = true;
  setcontext(&to.start);
}

inline void switch_warp() {
  ++ticks;
  make_a_copy();
  const unsigned start = chance() % warps.size();
  for (const bool rested : {true, false}) {
    for (unsigned i = 0; i < warps.size(); ++i) {
      const unsigned next = (start + i) % warps.size();
      const Warp& warp = warps[next];
      if (warp.can_run() && (!rested || warp.rests_until <= ticks)) return switch_to(next * LANES + warp.lane);
    }
  }
  for (const Warp& warp : warps) {
    if (warp.finished < LANES) {
      std::fprintf(stderr, "all threads wait at barriers\n");
      std::abort();
    }
  }
  setcontext(&home);
}

// The warp's next lane, or, after a round in which one was stuck, another warp.
inline void pass_on() {
  Warp& warp = own_warp();
  const unsigned first = current / LANES * LANES, lane = current % LANES;
  unsigned next = lane;
  do {
    next = (next + 1) % LANES;
  } while (fibers[first + next].finished && next != lane);
  warp.lane = next;
  if (next > lane || !(warp.stuck || warp.finished == LANES)) return switch_to(first + next);
  warp.stuck = false;
  switch_warp();
}

inline void rest() {
  own_warp().stuck = true;
  pass_on();
}

inline void wait_for_warp() {
  Warp& warp = own_warp();
  const int before = warp.lanes.generation;
  if (warp.lanes.arrive(LANES)) warp.stuck |= chance() % REST == 0;
  while (warp.lanes.generation == before) pass_on();
}

// Until `count` threads of the block have come.
inline void wait_for_block(unsigned number, int count) {
  Barrier& barrier = barriers[(blockIdx.x - first_block) * BARRIERS + number];
  const int before = barrier.generation;
  if (barrier.arrive(count)) {
    for (Warp& warp : warps) {
      if (warp.bed != &barrier) continue;
      warp.asleep = 0, warp.bed = nullptr;
      if (chance() % LONG_REST == 0) warp.rests_until = ticks + chance() % LONGEST_REST;
    }
  } else {
    Warp& warp = own_warp();
    ++warp.asleep, warp.bed = &barrier;
  }
  while (barrier.generation == before) rest();
}

inline void run_fiber() {
  body();
  fibers[current].finished = true;
  ++own_warp().finished;
  pass_on();
}

// `together` blocks at once, each with so many bytes of shared memory, until all have ended.
inline void run(unsigned blocks, unsigned threads, size_t bytes, unsigned together, unsigned seed, std::function<void()> work) {
  body = std::move(work);
  gridDim.x = blocks, blockDim.x = threads;
  chance.seed(seed + 1);
  shared_bytes = (bytes + MEMORY_ALIGNMENT - 1) / MEMORY_ALIGNMENT * MEMORY_ALIGNMENT;
  for (first_block = 0; first_block < blocks; first_block += together) {
    const unsigned count = std::min(together, blocks - first_block), all = count * threads;
    std::memset(shared.of(count * shared_bytes), 0xff, count * shared_bytes);  // not numbers: who reads what nobody wrote shall notice
    fibers.assign(all, {});
    warps.assign(all / LANES, {}), barriers.assign(count * BARRIERS, {});
    char* stack = stacks.of(all * STACK_BYTES);
    for (Fiber& fiber : fibers) {
      getcontext(&fiber.start);
      fiber.start.uc_stack.ss_sp = std::exchange(stack, stack + STACK_BYTES);
      fiber.start.uc_stack.ss_size = STACK_BYTES;
      makecontext(&fiber.start, run_fiber, 0);
    }
    become(0);
    fibers[0].begun = true;
    swapcontext(&home, &fibers[0].start);
  }
}

// What the lanes of a warp show each other. The second copy lets fast lanes show the next while slow ones still look.
template <class Value>
struct Exchange {
  Value values[MAX_WARPS][2][LANES];
  int turn[MAX_WARPS][LANES] = {};

  const Value* show(const Value& own) {
    const unsigned warp = current / LANES, lane = current % LANES, now = turn[warp][lane] ^= 1;
    values[warp][now][lane] = own;
    wait_for_warp();
    return values[warp][now];
  }
};

template <class Value>
inline const Value* show(const Value& own) {
  static Exchange<Value> exchange;
  return exchange.show(own);
}

}  // namespace emulation
