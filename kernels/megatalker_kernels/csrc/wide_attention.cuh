// Attention of many rows. A warp takes a row, a key/value head and a chunk of positions: what WARPS warps do side by side in the
// megakernel it does one after the other, so that every sum is taken alike. Keys and values come through a ring of its own,
// 16 positions at a time.
#pragma once
#include "barrier.cuh"
#include "positions.cuh"
#include "wide_copy.cuh"
#include "wide_rows.cuh"

constexpr int PIECE = 16, PIECES = CHUNK / PIECE;

template <int D, int G>
struct WarpHeads {
  uint4 query[Queries<D, G>::VECTORS];
  float4 score[PIECES][4 * G];
  float peak[PIECES][G];
  alignas(16) Stored fresh[2][D];
};

template <int D, int G>
struct WarpSpace : WarpHeads<D, G> {
  static constexpr int ROOM = ARENA_BYTES / WARPS / 128 * 128;
  static constexpr int SLOTS = clamped((ROOM - int(sizeof(WarpHeads<D, G>))) / (PIECE * D * int(sizeof(Stored))), 0, MOST_PIECES);
  static_assert(SLOTS >= 2);
  Stored slot[SLOTS][PIECE * D];

  __device__ static WarpSpace& own() {
    return *reinterpret_cast<WarpSpace*>(reinterpret_cast<char*>(wide_shared().arena) + own_warp() * ROOM);
  }
};

constexpr int PAGES_OF_CHUNK = CHUNK / PAGE;
static_assert(PAGES_OF_CHUNK == 2 && GROUPS <= PAGE && sizeof(RowChunk) == 32);

// The talker's chunks, for all layers of a launch.
__device__ inline void lay_out_chunks() {
  const WideShared& s = wide_shared();
#pragma unroll 1
  for (int i = blockIdx.x * CONSUMERS + own_thread(); i < s.wide.chunks; i += BLOCKS * CONSUMERS) {
    const int place = s.wide.chunk[i], row = place / MAX_CHUNKS, number = place % MAX_CHUNKS;
    const Row& which = s.wide.row[row];
    const int* table = s.to.page_table + which.slot * MAX_PAGES + number * PAGES_OF_CHUNK;
    const bool two = which.position >= number * CHUNK + PAGE;
    s.wide.row_chunk[i] = {row, number, which.position, s.wide.first[row], {table[0], table[two]}};
  }
}

// Of this number among the units of a pass, if there are so many.
__device__ inline RowChunk read_chunk(int number, int count) {
  const WideShared& s = wide_shared();
  const int item = number / s.pass.sizes.kv_heads;
  if (!s.pass.talker || number >= count) return {item, 0, s.pass.number, 0, {}};
  const uint4* words = reinterpret_cast<const uint4*>(s.wide.row_chunk + item);
  const uint4 a = __ldcg(words), b = __ldcg(words + 1);
  return {int(a.x), int(a.y), int(a.z), int(a.w), {int(b.x), int(b.y)}};
}

// A warp's share of attention.
template <int D, int G>
struct WideUnit {
  int row, head, chunk, layer;
  int position;      // of the row
  int index;         // of its first chunk among all
  int left;          // positions of the chunk up to here count
  int stored;        // positions of the chunk up to the row's, which is not stored before its attention where the mode is DECODE
  int values_apart;  // from a key to its value
  Stored* pages[PAGES_OF_CHUNK];  // keys of the chunk

  __device__ static WideUnit of(int number, const RowChunk& x, int layer) {
    const WideShared& s = wide_shared();
    const int heads = s.pass.sizes.kv_heads, head = number % heads;
    const int left = x.position - x.number * CHUNK, stored = left + (s.launch.mode != DECODE);
    if (!s.pass.talker) {
      Stored* keys = s.to.predictor_kv + ((u64(layer) * s.wide.room + x.row) * 2 * heads + head) * GROUPS * D;
      return {x.row, head, 0, layer, x.position, 0, left, left, heads * GROUPS * D, {keys, keys}};
    }
    const auto keys = [&](int page) { return s.to.talker_kv + ((u64(layer) * s.to.pages + page) * 2 * heads + head) * PAGE * D; };
    return {x.row, head, x.number, layer, x.position, x.first, left, stored, heads * PAGE * D, {keys(x.page[0]), keys(x.page[1])}};
  }

  __device__ int chunks() const { return position / CHUNK + 1; }
  __device__ int pieces() const { return min(left, CHUNK - 1) / PIECE + 1; }
  __device__ bool has_own() const { return left < CHUNK; }
  __device__ bool fresh() const { return stored == left; }

  // Of a position of the chunk.
  __device__ Stored* key(int place) const { return (place < PAGE ? pages[0] : pages[1]) + place % PAGE * D; }
};

// The pieces of all units of a warp, one after another: of each unit first those of the keys, then those of the values. All lanes
// come here.
template <int D, int G>
struct PieceFeed {
  using Space = WarpSpace<D, G>;
  static constexpr int OF_PAGE = PAGE / PIECE;
  const int layer, count;
  int next = 0, now = 0;  // slots: the next one to fill, and to take
  u32 laps;               // a bit for each slot: the parity of what comes next
  int number;             // of the unit whose pieces come next
  WideUnit<D, G> unit;
  RowChunk further;  // of the one after it
  bool values = false;
  int page = 0;
  const Stored* source;  // the next piece, of neighbours in a page
  int pieces = 0;        // of them
  int stored;            // positions of them

  __device__ PieceFeed(int layer, int count)
      : layer(layer), count(count), laps(wide_shared().piece_laps[own_warp()]), number(own_warp() * BLOCKS + blockIdx.x) {
    admit_to_copies();
    further = read_chunk(number, count);
    if (number < count) begin_unit();
#pragma unroll 1
    for (int i = 0; i < Space::SLOTS - 1; ++i) bring();
  }

  __device__ void end() {
    __syncwarp();
    if ((own_thread() & 31) == 0) wide_shared().piece_laps[own_warp()] = laps;
  }

  // The next piece, as soon as it is there; what was taken before is not needed any more.
  __device__ Stored* take() {
    await_piece<Space::SLOTS - 2>(&wide_shared().piece_landed[own_warp()][now], laps >> now & 1);
    __syncwarp();
    bring();
    Stored* slot = Space::own().slot[now];
    laps ^= 1u << now;
    now = now + 1 == Space::SLOTS ? 0 : now + 1;
    return slot;
  }

  __device__ void bring() {
    if (pieces > 0) {
      const int bytes = max(0, min(PIECE, stored)) * D * int(sizeof(Stored));
      bring_piece(Space::own().slot[next], source, bytes, &wide_shared().piece_landed[own_warp()][next]);
      source += PIECE * D, stored -= PIECE;
      if (--pieces == 0) go_on();
    }
    end_piece();
    next = next + 1 == Space::SLOTS ? 0 : next + 1;
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
    unit = WideUnit<D, G>::of(number, further, layer);
    further = read_chunk(number + WARPS * BLOCKS, count);
    begin_page();
  }

  __device__ void begin_page() {
    source = (page ? unit.pages[1] : unit.pages[0]) + values * unit.values_apart;
    pieces = min(unit.pieces() - page * OF_PAGE, OF_PAGE);
    stored = unit.stored - page * PAGE;
  }
};

// This lane's four dimensions of the norms of queries and keys.
template <int D>
struct HeadNorms {
  float4 query, key;

  __device__ explicit HeadNorms(int layer) {
    const WidePass& p = wide_shared().pass;
    const float4* norms =
        reinterpret_cast<const float4*>(p.norms + layer * p.sizes.norms + p.sizes.hidden + (own_thread() & 31) * 4 % D);
    query = __ldg(norms), key = __ldg(norms + D / 4);
  }
};

// The same dimensions of the heads of a unit: queries, key and value, as the layer's first product left them. They are read while the
// unit before is attended to.
template <int D, int G>
struct WideHeads {
  float4 x[G + 2];
  Angles<D> angles;

  __device__ WideHeads(int row, int head, int position)
      : angles((wide_shared().pass.talker ? wide_shared().to.talker_rope : wide_shared().to.predictor_rope) + position * D) {
    const WideShared& s = wide_shared();
    const int heads = s.pass.sizes.kv_heads;
    const float* place = s.to.qkv + u64(row) * s.pass.sizes.qkv + head * D + (own_thread() & 31) * 4 % D;
#pragma unroll
    for (int job = 0; job < G + 2; ++job) {
      const int which = job < G ? head * (G - 1) + job : heads * job;
      x[job] = __ldcg(reinterpret_cast<const float4*>(place + which * D));
    }
  }

  __device__ float4 query(int job, const HeadNorms<D>& norms) const {
    return norm_and_rotate(without_tags(x[job]), norms.query, angles, wide_shared().pass.eps, true);
  }
  __device__ float4 key(const HeadNorms<D>& norms) const {
    return norm_and_rotate(without_tags(x[G]), norms.key, angles, wide_shared().pass.eps, false);
  }
  __device__ float4 value() const { return without_tags(x[G + 1]); }
};

// The row's key and value go to its page, and where they are wanted at once.
template <int D, int G>
__device__ inline void append_own(const WideUnit<D, G>& unit, const WideHeads<D, G>& heads, const HeadNorms<D>& norms,
                                  Stored (*copies)[D]) {
  const int lane = own_thread() & 31, d = lane * 4 % D;
  Stored* page = unit.key(unit.left) + swizzled_dimension(d, unit.position, D);
  const float4 key = heads.key(norms), own_value = heads.value();
  if (lane >= D / 4) return;
#pragma unroll
  for (int value = 0; value < 2; ++value) {
    const float4& x = value ? own_value : key;
    const uint2 pairs{pack(x.x, x.y), pack(x.z, x.w)};
    *reinterpret_cast<uint2*>(page + value * unit.values_apart) = pairs;
    if (copies) *reinterpret_cast<uint2*>(copies[value] + d) = pairs;
  }
}

// The last piece as attention wants it: with the row's own key or value, and numbers where nothing is.
template <int D, int G>
__device__ inline void complete(const WideUnit<D, G>& unit, Stored* slot, const Stored* own) {
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

__device__ inline uint2 shares_of(float4 total, float mass) {
  return {pack(__fdividef(total.x, mass), __fdividef(total.y, mass)), pack(__fdividef(total.z, mass), __fdividef(total.w, mass))};
}

template <int D, int G>
__device__ __forceinline__ void attend_unit(const WideUnit<D, G>& unit, const WideHeads<D, G>& heads, const HeadNorms<D>& norms,
                                            PieceFeed<D, G>& feed) {
  const WideShared& s = wide_shared();
  auto& space = WarpSpace<D, G>::own();
  const int lane = own_thread() & 31, pieces = unit.pieces();
  const Lane own_lane;
  const auto [query, quarter] = own_lane;
  const bool mine = query < G;
  const auto read = [](const uint4* vector) { return *vector; };
  __syncwarp();
  if (unit.fresh() && unit.has_own()) append_own(unit, heads, norms, space.fresh);
#pragma unroll
  for (int job = 0; job < G; ++job) {
    const float4 x = heads.query(job, norms);
    if (lane * 4 < D) Queries<D, G>::put(space.query, job, lane * 4, x);
  }
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
      const float own = score_positions(key, own_lane, queries, unit.left - piece * PIECE, score);
      peak = fmaxf(peak, own);
      if (mine) space.score[piece][query * 4 + quarter] = {score[0][0], score[0][1], score[1][0], score[1][1]};
      if (mine && quarter == 0) space.peak[piece][query] = own;
      continue;
    }
    Values<D> value;
    load_values<D>(value, own_lane, slot, 0, PIECE - 1, read);
    const float4 four_scores = mine ? space.score[piece][query * 4 + quarter] : float4{};
    const float score[2][2] = {{four_scores.x, four_scores.y}, {four_scores.z, four_scores.w}},
                own = mine ? space.peak[piece][query] : 0.f;
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
  if (unit.chunks() > 1 && mine && quarter == 0) {
    float* stats = s.to.partial + (u64(unit.index + unit.chunk) * all + head) * (D + CHUNK_STATS) + D;
    *reinterpret_cast<float2*>(stats) = {peak, mass};
  }
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
  const int first = own_warp() * BLOCKS + blockIdx.x;
  RowChunk next = read_chunk(first, count), further = read_chunk(first + WARPS * BLOCKS, count);
  const auto read_heads = [&](int number) { return WideHeads<D, G>(next.row, number % s.pass.sizes.kv_heads, next.position); };
  auto next_heads = read_heads(first);
  const HeadNorms<D> norms(layer);
  PieceFeed<D, G> feed(layer, count);
  each_of_warp(count, [&](int number) {
    const auto unit = WideUnit<D, G>::of(number, next, layer);
    const auto heads = next_heads;
    next = further, further = read_chunk(number + 2 * WARPS * BLOCKS, count);
    if (number + WARPS * BLOCKS < count) next_heads = read_heads(number + WARPS * BLOCKS);
    attend_unit(unit, heads, norms, feed);
  });
  feed.end();
}

// Puts the chunks of a row's head together, where there are several.
__device__ __noinline__ void combine_all(int rows) {
  constexpr int D = Talker::HEAD_DIM, G = Talker::QUERIES, HEADS = Talker::KV_HEADS;
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
  constexpr int D = Talker::HEAD_DIM, G = Talker::QUERIES;
  const WideShared& s = wide_shared();
  const int count = s.wide.chunks * Talker::KV_HEADS;
  const HeadNorms<D> norms(layer);
  each_of_warp(count, [&](int number) {
    const auto unit = WideUnit<D, G>::of(number, read_chunk(number, count), layer);
    if (unit.has_own()) append_own<D, G>(unit, WideHeads<D, G>(unit.row, unit.head, unit.position), norms, nullptr);
  });
}

__device__ inline void attend_wide(int layer, int rows) {
  constexpr bool SAME = Talker::HEAD_DIM == Predictor::HEAD_DIM && Talker::QUERIES == Predictor::QUERIES;
  if (SAME || wide_shared().pass.talker) return attend_all<Talker::HEAD_DIM, Talker::QUERIES>(layer, rows);
  return attend_all<Predictor::HEAD_DIM, Predictor::QUERIES>(layer, rows);
}
