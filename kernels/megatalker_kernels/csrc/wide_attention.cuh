// Attention of many rows of the talker. A warp takes a row, a key/value head and a chunk of positions: what WARPS warps do side by
// side in the megakernel it does one after the other, so that every sum is taken alike. Keys and values come through a ring of its own,
// 16 positions at a time.
#pragma once
#include "barrier.cuh"
#include "wide_copy.cuh"
#include "wide_heads.cuh"

constexpr int PIECE = 16, PIECES = CHUNK / PIECE, PAGES_OF_CHUNK = CHUNK / PAGE;
constexpr int TALKER_DIM = Talker::HEAD_DIM, TALKER_HEADS = Talker::KV_HEADS, TALKER_QUERIES = Talker::QUERIES;
static_assert(PAGES_OF_CHUNK == 2 && sizeof(RowChunk) == 32);

// A warp's state for the current chunk, and its ring.
struct WarpScores : WarpHeads<Talker> {
  float4 score[PIECES][4 * TALKER_QUERIES];
  float peak[PIECES][TALKER_QUERIES];
};

struct WarpSpace : WarpScores {
  static constexpr int NUMBERS = PIECE * TALKER_DIM, ROOM = ARENA_BYTES / WARPS / 128 * 128;
  static constexpr int SLOTS = clamped((ROOM - int(sizeof(WarpScores))) / (NUMBERS * int(sizeof(Stored))), 0, MOST_PIECES);
  static_assert(SLOTS >= 2);
  Stored slot[SLOTS][NUMBERS];

  __device__ static WarpSpace& own() {
    return *reinterpret_cast<WarpSpace*>(reinterpret_cast<char*>(wide_shared().arena) + own_warp() * ROOM);
  }
};

// The talker's chunks, for all layers of a launch.
__device__ inline void lay_out_chunks() {
  const WideShared& s = wide_shared();
#pragma unroll 1
  for (int i = blockIdx.x * CONSUMERS + own_thread(); i < s.wide.chunks; i += BLOCKS * CONSUMERS) {
    const int place = s.wide.chunk[i], row = place / MAX_CHUNKS, number = place % MAX_CHUNKS;
    const Row& which = s.wide.row[row];
    const int* table = s.to.stream[which.slot].pages + number * PAGES_OF_CHUNK;
    const bool two = which.position >= number * CHUNK + PAGE;
    s.wide.row_chunk[i] = {row, number, which.position, s.wide.first[row], {table[0], table[two]}};
  }
}

// Reads the chunk of this unit of `count`, or of the last one, so that reading ahead needs no check whether there is another.
__device__ inline RowChunk read_chunk(int number, int count) {
  const uint4* words = reinterpret_cast<const uint4*>(wide_shared().wide.row_chunk + min(number, count - 1) / TALKER_HEADS);
  const uint4 a = __ldcg(words), b = __ldcg(words + 1);
  return {int(a.x), int(a.y), int(a.z), int(a.w), {int(b.x), int(b.y)}};
}

// A warp's share of attention.
struct WideUnit {
  static constexpr int VALUES_APART = TALKER_HEADS * PAGE * TALKER_DIM;  // from a key to its value
  int row, head, chunk;
  int position;      // of the row
  int index;         // of its first chunk among all
  int left;          // positions of the chunk up to here count
  int stored;        // positions of the chunk up to the row's, which is not stored before its attention where the mode is DECODE
  Stored* pages[PAGES_OF_CHUNK];  // keys of the chunk

  __device__ WideUnit() = default;
  __device__ WideUnit(int number, const RowChunk& x, int layer)
      : row(x.row), head(number % TALKER_HEADS), chunk(x.number), position(x.position), index(x.first) {
    const WideShared& s = wide_shared();
    left = position - chunk * CHUNK, stored = left + (s.launch.mode != DECODE);
#pragma unroll
    for (int i = 0; i < PAGES_OF_CHUNK; ++i) {
      pages[i] = s.to.talker_kv + ((u64(layer) * s.to.pages + x.page[i]) * 2 * TALKER_HEADS + head) * PAGE * TALKER_DIM;
    }
  }

  __device__ int chunks() const { return position / CHUNK + 1; }
  __device__ int pieces() const { return min(left, CHUNK - 1) / PIECE + 1; }
  __device__ bool has_own() const { return left < CHUNK; }
  __device__ bool fresh() const { return stored == left; }

  // Address of the row's own key.
  __device__ Stored* own_key() const { return (left < PAGE ? pages[0] : pages[1]) + left % PAGE * TALKER_DIM; }
};

// The pieces of all units of a warp, one after another: of each unit first those of the keys, then those of the values. All lanes
// come here.
struct PieceFeed {
  static constexpr int OF_PAGE = PAGE / PIECE;
  const int layer, count;
  int next = 0, now = 0;  // slots: the next one to fill, and to take
  u32 laps;               // a bit for each slot: the parity of what comes next
  int number;             // of the unit whose pieces come next
  WideUnit unit;
  RowChunk further;  // of the one after it
  bool values = false;
  int page = 0;
  const Stored* source;  // the next piece, of neighbours in a page
  int pieces = 0;        // of them
  int brought = 0;
  int stored;            // positions of them

  __device__ PieceFeed(int layer, int count)
      : layer(layer), count(count), laps(wide_shared().piece_laps[own_warp()]), number(own_warp() * BLOCKS + blockIdx.x) {
    further = read_chunk(number, count);
    if (number < count) begin_unit();
  }

  __device__ void begin() {
    admit_to_copies();
#pragma unroll 1
    for (int i = 0; i < WarpSpace::SLOTS - 1; ++i) bring();
  }

  // Nothing that was begun is under way any more.
  __device__ void abandon() {
#pragma unroll 1
    for (int i = 0; i < brought; ++i) await_piece<0>(&wide_shared().piece_landed[own_warp()][i], laps >> i & 1);
  }

  __device__ void end() {
    __syncwarp();
    if ((own_thread() & 31) == 0) wide_shared().piece_laps[own_warp()] = laps;
  }

  // The next piece, as soon as it is there; what was taken before is not needed any more.
  __device__ Stored* take() {
    await_piece<WarpSpace::SLOTS - 2>(&wide_shared().piece_landed[own_warp()][now], laps >> now & 1);
    __syncwarp();
    bring();
    Stored* slot = WarpSpace::own().slot[now];
    laps ^= 1u << now;
    now = now + 1 == WarpSpace::SLOTS ? 0 : now + 1;
    return slot;
  }

  __device__ void bring() {
    if (pieces > 0) {
      const int bytes = max(0, min(PIECE, stored)) * TALKER_DIM * int(sizeof(Stored));
      bring_piece(WarpSpace::own().slot[next], source, bytes, &wide_shared().piece_landed[own_warp()][next]);
      source += WarpSpace::NUMBERS, stored -= PIECE, ++brought;
      if (--pieces == 0) go_on();
    }
    end_piece();
    next = next + 1 == WarpSpace::SLOTS ? 0 : next + 1;
  }

  __device__ void go_on() {
    if (page == 0 && unit.pieces() > OF_PAGE) {
      page = 1;
    } else if (page = 0, values = !values; !values) {
      number += WARPS * BLOCKS;
      if (number < count) begin_unit();
      return;
    }
    begin_page();
  }

  __device__ void begin_unit() {
    unit = WideUnit(number, further, layer);
    further = read_chunk(number + WARPS * BLOCKS, count);
    begin_page();
  }

  __device__ void begin_page() {
    source = (page ? unit.pages[1] : unit.pages[0]) + values * WideUnit::VALUES_APART;
    pieces = min(unit.pieces() - page * OF_PAGE, OF_PAGE);
    stored = unit.stored - page * PAGE;
  }
};

// The last piece as attention wants it: with the row's own key or value, and numbers where nothing is.
__device__ inline void complete(const WideUnit& unit, Stored* slot, const Stored* own) {
  constexpr int D = TALKER_DIM;
  const int lane = own_thread() & 31, place = unit.left % PIECE;
  if (!unit.has_own()) return;
#pragma unroll 1
  for (int i = place * D + lane * 8; i < PIECE * D; i += 32 * 8) {
    const int at = i / D, d = i % D;
    if (at == place && !unit.fresh()) continue;
    *reinterpret_cast<uint4*>(slot + at * D + swizzled_dimension(d, at, D)) =
        at == place ? *reinterpret_cast<const uint4*>(own + d) : uint4{0, 0, 0, 0};
  }
  admit_to_copies();
  __syncwarp();
}

// Data of a unit that is read ahead.
struct UnitHeads {
  WideHeads<Talker> heads;
  Angles<TALKER_DIM> angles;

  __device__ UnitHeads(int number, const RowChunk& x)
      : heads(x.row, number % TALKER_HEADS), angles(wide_shared().to.talker_rope + x.position * TALKER_DIM) {}
};

__device__ __forceinline__ void attend_unit(const WideUnit& unit, const UnitHeads& own, const HeadNorms<Talker>& norms,
                                            PieceFeed& feed) {
  constexpr int D = TALKER_DIM, G = TALKER_QUERIES;
  const WideShared& s = wide_shared();
  auto& space = WarpSpace::own();
  const int pieces = unit.pieces();
  const Lane own_lane;
  const auto [query, quarter] = own_lane;
  const bool mine = query < G;
  const auto read = [](const uint4* vector) { return *vector; };
  __syncwarp();
  if (unit.fresh() && unit.has_own()) {
    own.heads.append(unit.own_key(), WideUnit::VALUES_APART, unit.position, space, norms, own.angles, s.pass.eps);
  }
  own.heads.put_queries(space, norms, own.angles, s.pass.eps);
  __syncwarp();
  float peak = NO_PEAK, mass = 0;
  float4 total[HALVES<D>][4] = {};
#pragma unroll 1
  for (int step = 0; step < 2 * pieces; ++step) {
    const bool values = step >= pieces;
    const int piece = values ? step - pieces : step;
    Stored* slot = feed.take();
    if (piece == pieces - 1) complete(unit, slot, space.fresh[values]);
    if (!values) {
      Keys<D> key;
      load_keys<D>(key, own_lane, slot, 0, PIECE - 1, read);
      float score[2][2];
      const Queries<D, G> queries(own_lane, space.query);
      const float own_peak = score_positions(key, own_lane, queries, unit.left - piece * PIECE, score);
      peak = fmaxf(peak, own_peak);
      if (mine) space.score[piece][query * 4 + quarter] = {score[0][0], score[0][1], score[1][0], score[1][1]};
      if (mine && quarter == 0) space.peak[piece][query] = own_peak;
      continue;
    }
    Values<D> value;
    load_values<D>(value, own_lane, slot, 0, PIECE - 1, read);
    const float4 four_scores = mine ? space.score[piece][query * 4 + quarter] : float4{};
    const float score[2][2] = {{four_scores.x, four_scores.y}, {four_scores.z, four_scores.w}},
                own_peak = mine ? space.peak[piece][query] : 0.f;
    const Weights weights(score, own_peak);
    const float share = __expf(own_peak - peak);
    mass = fmaf(share, weights.mass, mass);
#pragma unroll
    for (int half = 0; half < HALVES<D>; ++half) {
      float4 sum[4];
      sum_values<D>(value, half, weights, sum);
#pragma unroll
      for (int part = 0; part < 4; ++part) add_share(total[half][part], share, sum[part]);
    }
  }
  const int head = unit.head * G + query;
  float* partial = s.to.partial + (u64(unit.index + unit.chunk) * TALKER_HEADS * G + head) * (D + CHUNK_STATS);
#pragma unroll
  for (int half = 0; half < HALVES<D>; ++half) {
    const int d = half * 64 + quarter * 16;
    if (!mine || d >= D) continue;
    if (unit.chunks() == 1) {
      put_attention(unit.row, head * D + d, total[half], mass);
      continue;
    }
#pragma unroll
    for (int part = 0; part < 4; ++part) four(partial + d + part * 4) = total[half][part];
  }
  if (unit.chunks() > 1 && mine && quarter == 0) *reinterpret_cast<float2*>(partial + D) = {peak, mass};
}

// Data of earlier launches is fetched before the phase before is over. False: leave the kernel.
__device__ __noinline__ bool attend_talker(int layer) {
  const int count = wide_shared().wide.chunks * TALKER_HEADS, first = own_warp() * BLOCKS + blockIdx.x;
  const bool stored = wide_shared().launch.mode == DECODE;
  RowChunk next = read_chunk(first, count), further = read_chunk(first + WARPS * BLOCKS, count);
  const HeadNorms<Talker> norms(wide_shared().to.talker_norms, layer);
  PieceFeed feed(layer, count);
  if (stored) feed.begin();
  if (!await_phase()) {
    feed.abandon();
    return false;
  }
  if (!stored) feed.begin();
  UnitHeads next_heads(first, next);
  each_of_warp(count, [&](int number) {
    const WideUnit unit(number, next, layer);
    const UnitHeads heads = next_heads;
    next = further, further = read_chunk(number + 2 * WARPS * BLOCKS, count);
    if (number + WARPS * BLOCKS < count) next_heads = UnitHeads(number + WARPS * BLOCKS, next);
    attend_unit(unit, heads, norms, feed);
  });
  feed.end();
  return true;
}

// Puts the chunks of a row's head together, where there are several.
__device__ __noinline__ void combine_all(int rows) {
  constexpr int D = TALKER_DIM, G = TALKER_QUERIES, HEADS = TALKER_HEADS;
  const WideShared& s = wide_shared();
  each_of_warp(rows * HEADS, [&](int number) {
    const int row = number / HEADS, head = number % HEADS, chunks = s.wide.row[row].position / CHUNK + 1, first = s.wide.first[row];
    if (chunks == 1) return;
#pragma unroll 1
    for (int o = (own_thread() & 31) * 4; o < G * D; o += 32 * 4) {
      const int query = head * G + o / D, d = o % D;
      float mass;
      const float* partial = s.to.partial + (u64(first) * HEADS * G + query) * (D + CHUNK_STATS);
      const float4 total = combined<D>(partial, HEADS * G * (D + CHUNK_STATS), chunks, d, mass);
      put_columns(s.to.attention, row, query * D + d, shares_of(total, mass));
    }
  });
}

// Keys and values of prompt rows, before their attention: rows of a stream see each other's.
__device__ __noinline__ void append_all(int layer) {
  const WideShared& s = wide_shared();
  const int count = s.wide.chunks * TALKER_HEADS;
  const HeadNorms<Talker> norms(s.to.talker_norms, layer);
  each_of_warp(count, [&](int number) {
    const RowChunk chunk = read_chunk(number, count);
    const WideUnit unit(number, chunk, layer);
    if (!unit.has_own()) return;
    const UnitHeads own(number, chunk);
    own.heads.append(unit.own_key(), WideUnit::VALUES_APART, unit.position, WarpSpace::own(), norms, own.angles, s.pass.eps);
  });
}
