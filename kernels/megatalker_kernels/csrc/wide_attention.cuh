// Attention of many rows. A warp takes a row, a key/value head and a chunk of positions: what WARPS warps do side by side in the
// megakernel it does one after the other, so that every sum is taken alike. Keys and values come through a ring of its own,
// 16 positions at a time: all keys, then all values.
#pragma once
#include "barrier.cuh"
#include "copy.cuh"
#include "positions.cuh"
#include "wide_rows.cuh"

constexpr int PIECE = 16, PIECES = CHUNK / PIECE;

template <int D, int G>
struct WarpHeads {
  uint4 query[2][D / 8 * G];   // as operands: rounded, and what rounding took away
  float4 score[PIECES][4 * G];
  float peak[PIECES][G];
  alignas(16) Stored fresh[2][D];
};

template <int D, int G>
struct WarpSpace : WarpHeads<D, G> {
  static constexpr int ROOM = ARENA_BYTES / WARPS / 128 * 128;
  static constexpr int SLOTS = clamped((ROOM - int(sizeof(WarpHeads<D, G>))) / (PIECE * D * int(sizeof(Stored))), 0, 8);
  static_assert(SLOTS >= 2);
  Stored slot[SLOTS][PIECE * D];

  __device__ static WarpSpace& own() {
    return *reinterpret_cast<WarpSpace*>(reinterpret_cast<char*>(wide_shared().arena) + own_warp() * ROOM);
  }
};

// A warp's share of attention.
template <int D, int G>
struct WideUnit {
  int row, head, chunk, layer;
  int position;   // of the row
  int index;      // of its first chunk among all
  int page_size;  // positions
  const int* table;
  Stored* pages;  // of this layer
  u64 page;       // where there is no table
  bool fresh;     // the row's own key and value are not stored yet

  __device__ static WideUnit of(int number, int layer) {
    const WideShared& s = wide_shared();
    const int heads = s.pass.sizes.kv_heads, head = number % heads, item = number / heads;
    if (!s.pass.talker) {
      Stored* pages = s.to.predictor_kv + u64(layer) * s.wide.room * 2 * heads * GROUPS * D;
      return {item, head, 0, layer, s.pass.number, 0, GROUPS, nullptr, pages, u64(item), true};
    }
    const int chunk = __ldg(s.wide.chunk + item), row = chunk / MAX_CHUNKS, place = chunk % MAX_CHUNKS;
    const Row& which = s.wide.row[row];
    Stored* pages = s.to.talker_kv + u64(layer) * s.to.pages * 2 * heads * PAGE * D;
    return {row, head, place, layer, which.position, __ldg(s.wide.first + row), PAGE, s.to.page_table + which.slot * MAX_PAGES, pages, 0,
            s.launch.mode == DECODE};
  }

  __device__ int chunks() const { return position / CHUNK + 1; }
  __device__ int left() const { return position - chunk * CHUNK; }  // positions of the chunk up to here count
  __device__ int pieces() const { return min(left(), CHUNK - 1) / PIECE + 1; }
  __device__ bool has_own() const { return left() < CHUNK; }

  // Of a position; its value lies `values_apart` further.
  __device__ Stored* key(int at) const {
    const u64 where = table ? __ldg(table + at / page_size) : page;
    return pages + ((where * 2 * wide_shared().pass.sizes.kv_heads + head) * page_size + at % page_size) * D;
  }
  __device__ int values_apart() const { return wide_shared().pass.sizes.kv_heads * page_size * D; }

  // Begins to bring piece `number`: first those of the keys, then those of the values.
  __device__ void load(WarpSpace<D, G>& space, int number) const {
    const int count = pieces(), values = number >= count, begin = (number - values * count) * PIECE;
    const int there = min(PIECE, left() + !fresh - begin), lane = own_thread() & 31;
    if (number < 2 * count && there > 0) {
      const Stored* source = key(chunk * CHUNK + begin) + values * values_apart();
      Stored* target = space.slot[number % WarpSpace<D, G>::SLOTS];
#pragma unroll 1
      for (int i = lane * 8; i < there * D; i += 32 * 8) copy_async_16(target + i, source + i);
    }
    commit_async_copies();
  }
};

// This lane's four dimensions of the heads of a unit: queries, key and value, as the layer's first product left them. All are read
// before any is used.
template <int D, int G>
struct WideHeads {
  float4 x[G + 2], query_norm, key_norm;
  Angles<D> angles;
  float eps;

  __device__ explicit WideHeads(const WideUnit<D, G>& unit)
      : angles((wide_shared().pass.talker ? wide_shared().to.talker_rope : wide_shared().to.predictor_rope) + unit.position * D) {
    const WideShared& s = wide_shared();
    const int heads = s.pass.sizes.kv_heads, d = (own_thread() & 31) * 4 % D;
    const float* row = s.to.qkv + u64(unit.row) * s.pass.sizes.qkv + unit.head * D + d;
#pragma unroll
    for (int job = 0; job < G + 2; ++job) {
      const int head = job < G ? unit.head * (G - 1) + job : heads * job;
      x[job] = without_tags(__ldcg(reinterpret_cast<const float4*>(row + head * D)));
    }
    const float4* norms = reinterpret_cast<const float4*>(s.pass.norms + unit.layer * s.pass.sizes.norms + s.pass.sizes.hidden + d);
    query_norm = __ldg(norms), key_norm = __ldg(norms + D / 4);
    eps = s.pass.eps;
  }

  __device__ float4 query(int job) const { return norm_and_rotate(x[job], query_norm, angles, eps, true); }
  __device__ float4 key() const { return norm_and_rotate(x[G], key_norm, angles, eps, false); }
  __device__ const float4& value() const { return x[G + 1]; }
};

// The row's key and value go to its page, and where they are wanted at once.
template <int D, int G>
__device__ inline void append_own(const WideUnit<D, G>& unit, const WideHeads<D, G>& heads, Stored (*copies)[D]) {
  const int lane = own_thread() & 31, d = lane * 4 % D;
  Stored* page = unit.key(unit.position) + swizzled_dimension(d, unit.position, D);
  const float4 key = heads.key();
  if (lane >= D / 4) return;
#pragma unroll
  for (int value = 0; value < 2; ++value) {
    const float4& x = value ? heads.value() : key;
    const uint2 pairs{pack(x.x, x.y), pack(x.z, x.w)};
    *reinterpret_cast<uint2*>(page + value * unit.values_apart()) = pairs;
    if (copies) *reinterpret_cast<uint2*>(copies[value] + d) = pairs;
  }
}

// The last piece as attention wants it: with the row's own key or value, and numbers where nothing is.
template <int D, int G>
__device__ inline void complete(const WideUnit<D, G>& unit, Stored* slot, const Stored* own) {
  const int lane = own_thread() & 31, place = unit.left() % PIECE;
  if (!unit.has_own()) return;
#pragma unroll 1
  for (int i = place * D + lane * 8; i < PIECE * D; i += 32 * 8) {
    const int at = i / D, d = i % D;
    if (at == place && !unit.fresh) continue;
    *reinterpret_cast<uint4*>(slot + at * D + swizzled_dimension(d, at, D)) =
        at == place ? *reinterpret_cast<const uint4*>(own + d) : uint4{0, 0, 0, 0};
  }
  __syncwarp();
}

__device__ inline uint2 shares_of(float4 total, float mass) {
  return {pack(__fdividef(total.x, mass), __fdividef(total.y, mass)), pack(__fdividef(total.z, mass), __fdividef(total.w, mass))};
}

// The last warp that finishes a chunk of a row's head puts all together.
template <int D, int G>
__device__ inline void combine_wide(const WideUnit<D, G>& unit) {
  const WideShared& s = wide_shared();
  const int lane = own_thread() & 31, heads = s.pass.sizes.kv_heads;
  bool last = false;
  __syncwarp();
  if (lane == 0) {
    u32* arrivals = s.to.arrivals + unit.row * heads + unit.head;
    last = add_acquire_release(arrivals, 1) + 1 == u32(unit.chunks());
    if (last) *arrivals = 0;
  }
  if (!__shfl_sync(0xffffffffu, int(last), 0)) return;
#pragma unroll 1
  for (int o = lane * 4; o < G * D; o += 32 * 4) {
    const int query = unit.head * G + o / D, d = o % D;
    float mass;
    const float* partial = s.to.partial + (u64(unit.index) * heads * G + query) * (D + CHUNK_STATS);
    const float4 total = combined<D>(partial, heads * G * (D + CHUNK_STATS), unit.chunks(), d, mass);
    put_columns(s.to.attention, unit.row, query * D + d, shares_of(total, mass));
  }
}

template <int D, int G>
__device__ __forceinline__ void attend_unit(const WideUnit<D, G>& unit) {
  using Space = WarpSpace<D, G>;
  const WideShared& s = wide_shared();
  Space& space = Space::own();
  const int lane = own_thread() & 31, query = own_place(), quarter = own_quarter(), pieces = unit.pieces();
  const bool mine = query < G;
  const auto read = [](const uint4* vector) { return *vector; };
  __syncwarp();
#pragma unroll 1
  for (int i = 0; i < Space::SLOTS - 1; ++i) unit.load(space, i);
  const WideHeads<D, G> heads(unit);
  if (unit.fresh && unit.has_own()) append_own(unit, heads, space.fresh);
#pragma unroll
  for (int job = 0; job < G; ++job) {
    const float4 x = heads.query(job);
    const int d = lane * 4;
    if (d >= D) continue;
    const uint2 pairs{pack(x.x, x.y), pack(x.z, x.w)};
    const auto place = [&](int rest) {
      return reinterpret_cast<uint2*>(reinterpret_cast<Operand*>(space.query[rest]) + (d / KBLOCK * G + job) * KBLOCK + d % KBLOCK);
    };
    *place(0) = pairs;
    *place(1) = {pack_rest(pairs.x, x.x, x.y), pack_rest(pairs.y, x.z, x.w)};
  }
  const auto await = [&](int number) {
    await_async_copies_but<Space::SLOTS - 2>();
    __syncwarp();
    unit.load(space, number + Space::SLOTS - 1);
    Stored* slot = space.slot[number % Space::SLOTS];
    if (number % pieces == pieces - 1) complete(unit, slot, space.fresh[number >= pieces]);
    return slot;
  };
  float peak = NO_PEAK, mass = 0;
#pragma unroll 1
  for (int piece = 0; piece < pieces; ++piece) {
    Keys<D> key;
    load_keys<D>(key, await(piece), 0, PIECE - 1, read);
    float score[2][2];
    const float own = score_positions<D, G>(key, space.query[0], space.query[1], unit.left() - piece * PIECE, score);
    peak = fmaxf(peak, own);
    if (mine) space.score[piece][query * 4 + quarter] = {score[0][0], score[0][1], score[1][0], score[1][1]};
    if (mine && quarter == 0) space.peak[piece][query] = own;
  }
  float4 total[HALVES<D>][4] = {};
#pragma unroll 1
  for (int piece = 0; piece < pieces; ++piece) {
    Values<D> value;
    load_values<D>(value, await(pieces + piece), 0, PIECE - 1, read);
    const float4 four_scores = mine ? space.score[piece][query * 4 + quarter] : float4{};
    const float score[2][2] = {{four_scores.x, four_scores.y}, {four_scores.z, four_scores.w}}, own = mine ? space.peak[piece][query] : 0.f;
    const Weights weights(score, own);
    const float share = __expf(own - peak);
    mass = fmaf(share, weights.mass, mass);
#pragma unroll
    for (int half = 0; half < HALVES<D>; ++half) {
      float4 sum[4];
      sum_values<D>(value, half, weights, sum);
#pragma unroll
      for (int part = 0; part < 4; ++part) add_share(total[half][part], share, sum[part]);
    }
  }
  const int head = unit.head * G + query, all = s.pass.sizes.kv_heads * G;
#pragma unroll
  for (int half = 0; half < HALVES<D>; ++half) {
    const int d = half * 64 + quarter * 16;
    if (!mine || d >= D) continue;
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      if (unit.chunks() == 1) {
        put_columns(s.to.attention, unit.row, head * D + d + part * 4, shares_of(total[half][part], mass));
      } else {
        four(s.to.partial + (u64(unit.index + unit.chunk) * all + head) * (D + CHUNK_STATS) + d + part * 4) = total[half][part];
      }
    }
  }
  if (unit.chunks() == 1) return;
  if (mine && quarter == 0) {
    float* stats = s.to.partial + (u64(unit.index + unit.chunk) * all + head) * (D + CHUNK_STATS) + D;
    *reinterpret_cast<float2*>(stats) = {peak, mass};
  }
  combine_wide(unit);
}

// Calls `visit` with the units of this warp, of `count`: neighbours go to different blocks.
template <class Visit>
__device__ inline void each_of_warp(int count, Visit visit) {
#pragma unroll 1
  for (int number = own_warp() * BLOCKS + blockIdx.x; number < count; number += WARPS * BLOCKS) visit(number);
}

template <int D, int G>
__device__ __noinline__ void attend_all(int layer, int rows) {
  const WideShared& s = wide_shared();
  const int count = (s.pass.talker ? s.wide.chunks : rows) * s.pass.sizes.kv_heads;
  each_of_warp(count, [&](int number) { attend_unit(WideUnit<D, G>::of(number, layer)); });
  await_async_copies();
}

// Keys and values of prompt rows, before their attention: rows of a stream see each other's.
__device__ __noinline__ void append_all(int layer, int rows) {
  constexpr int D = Talker::HEAD_DIM, G = Talker::QUERIES;
  const WideShared& s = wide_shared();
  each_of_warp(s.wide.chunks * Talker::KV_HEADS, [&](int number) {
    const auto unit = WideUnit<D, G>::of(number, layer);
    if (unit.has_own()) append_own<D, G>(unit, WideHeads<D, G>(unit), nullptr);
  });
}

__device__ inline void attend_wide(int layer, int rows) {
  constexpr bool SAME = Talker::HEAD_DIM == Predictor::HEAD_DIM && Talker::QUERIES == Predictor::QUERIES;
  if (SAME || wide_shared().pass.talker) return attend_all<Talker::HEAD_DIM, Talker::QUERIES>(layer, rows);
  return attend_all<Predictor::HEAD_DIM, Predictor::QUERIES>(layer, rows);
}
