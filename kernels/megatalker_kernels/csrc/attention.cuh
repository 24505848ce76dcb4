// Attention of single positions over paged keys and values. A unit is (row, key/value head, chunk of CHUNK positions), of
// which each warp takes 16 positions; each block takes a stretch of units, numbered (row, head) by (row, head), and the block
// that finishes the last unit of a (row, head) combines its chunks in a fixed order. Products run on tensor cores; their
// float32 operand is split in two bfloat16.
#pragma once
#include "activation.cuh"

constexpr float NO_PEAK = -1e30f;  // of no positions: larger than minus infinity, so that differences are numbers

struct Unit {
  int row, first;  // `first` is the first row of this pass that belongs to the row's stream
  int head, chunk, chunks;

  // Of this thread: a lane is 4 * place + quarter.
  __device__ static int warp() { return own_thread() >> 5; }
  __device__ static int place() { return own_thread() >> 2 & 7; }
  __device__ static int quarter() { return own_thread() & 3; }

  __device__ static int chunks_of(int row) { return shared().position[row] / CHUNK + 1; }

  // The unit with this number, which exists.
  __device__ void find(int number) {
    const Shared& s = shared();
    first = 0;
#pragma unroll 1
    for (row = 0;; ++row) {
      if (s.slot[row] != s.slot[first]) first = row;
      chunks = chunks_of(row);
      const int units = chunks * s.pass.sizes.kv_heads;
      if (number < units) break;
      number -= units;
    }
    head = number / chunks, chunk = number % chunks;
  }

  __device__ bool same_head(const Unit& other) const { return row == other.row && head == other.head; }

  __device__ int start() const { return chunk * CHUNK + warp() * 16; }  // of this warp's positions
  __device__ int fresh_from() const { return shared().position[first]; }
  __device__ int position() const { return shared().position[row]; }

  // Where the key of a position lies; its value lies `values_apart` further.
  __device__ u16* stored(int layer, int at, int head_dim) const {
    const Pass& p = shared().pass;
    const int slot = shared().slot[row];
    const u64 page = p.page_table ? __ldg(p.page_table + slot * MAX_PAGES + at / PAGE) : slot;
    return p.kv + layer * p.layer_elements + ((page * 2 * p.sizes.kv_heads + head) * PAGE + at % PAGE) * head_dim;
  }
  __device__ static int values_apart(int head_dim) { return shared().pass.sizes.kv_heads * PAGE * head_dim; }
};

// The units of this block.
struct Stretch {
  int begin = 0, end = 0;

  __device__ Stretch() {
    const Pass& p = shared().pass;
    const int block = blockIdx.x, heads = p.sizes.kv_heads;
    int chunks = 0, longest = 0;
#pragma unroll 1
    for (int row = 0; row < p.rows; ++row) {
      const int own = Unit::chunks_of(row);
      chunks += own, longest = max(longest, own);
    }
    const int units = chunks * heads;
    if (units <= BLOCKS) {
      begin = min(block, units), end = min(block + 1, units);
      return;
    }
    // Best is a part of one head; where a head is too long for that, the same number of units for each block.
    const int parts = BLOCKS / (p.rows * heads), fair = (units + BLOCKS - 1) / BLOCKS;
    if (longest > parts * fair) {
      begin = units * block / BLOCKS, end = units * (block + 1) / BLOCKS;
      return;
    }
    const int head = block / parts, part = block % parts, row = head / heads;
    if (row >= p.rows) return;
#pragma unroll 1
    for (int other = 0; other < row; ++other) begin += Unit::chunks_of(other) * heads;
    const int own = Unit::chunks_of(row);
    begin += head % heads * own;
    end = begin + own * (part + 1) / parts, begin += own * part / parts;
  }
};

// A warp's 16 keys as operand B of scores (positions are its rows), and its values as operand B of their weighted sum
// (dimensions are its rows): each lane's pieces of eight dimensions.
template <int D>
struct Positions {
  static constexpr int KEY_PIECES = D / KBLOCK, HALVES = (D + 63) / 64;
  uint4 key[2][KEY_PIECES];  // of position 8 * h + place, dimensions 32 * piece + 8 * quarter ...
  uint4 value[4][HALVES];    // of position 2 * quarter + place_of(e), dimensions 64 * half + 8 * place ...

  __device__ static constexpr int place_of(int e) { return e % 2 + e / 2 * 8; }

  // Those of earlier passes, from the pages. Nobody writes them now. What is not there must be numbers: the last one again.
  __device__ void load_keys(const Unit& unit, int layer) {
    const u16* keys = first_stored(unit, layer) + Unit::quarter() * 8;
#pragma unroll
    for (int h = 0; h < 2; ++h) read_pieces(key[h], keys + stored_place(unit, h * 8 + Unit::place()) * D, KBLOCK);
  }
  __device__ void load_values(const Unit& unit, int layer) {
    const u16* values = first_stored(unit, layer) + Unit::values_apart(D) + Unit::place() * 8 % D;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      read_pieces(value[e], values + stored_place(unit, Unit::quarter() * 2 + place_of(e)) * D, 64);
    }
  }
  __device__ static const u16* first_stored(const Unit& unit, int layer) {
    return unit.stored(layer, max(min(unit.start(), unit.fresh_from() - 1), 0), D);
  }
  __device__ static int stored_place(const Unit& unit, int place) {
    return max(min(place, unit.fresh_from() - unit.start() - 1), 0);
  }

  // Those of this pass.
  __device__ void add_fresh(const Unit& unit) {
    const AttentionSpace& space = shared().attention;
    const int ahead = unit.start() - unit.fresh_from(), count = unit.position() - unit.fresh_from() + 1;
    if (ahead + 16 <= 0 || ahead >= count) return;
    const auto fresh = [&](int p) { return p + ahead >= 0 && p + ahead < count; };
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int p = h * 8 + Unit::place();
      if (fresh(p)) copy_pieces(key[h], &space.fresh[0][p + ahead][Unit::quarter() * 8], KBLOCK);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int p = Unit::quarter() * 2 + place_of(e);
      if (fresh(p) && Unit::place() * 8 < D) copy_pieces(value[e], &space.fresh[1][p + ahead][Unit::place() * 8], 64);
    }
  }

  template <int N>
  __device__ static void read_pieces(uint4 (&to)[N], const u16* source, int apart) {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = __ldcg(reinterpret_cast<const uint4*>(source + i * apart));
  }
  template <int N>
  __device__ static void copy_pieces(uint4 (&to)[N], const u16* source, int apart) {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = *reinterpret_cast<const uint4*>(source + i * apart);
  }
};

// What rounding took away from a pair of numbers, rounded.
__device__ inline u32 pack_rest(u32 rounded, float first, float second) {
  return pack(first - low_half(rounded), second - high_half(rounded));
}

// Queries, and the keys and values of this pass, as soon as they are there: RMSNorm over the head, then rotary embedding (not
// of values). A warp takes one head at a time, a lane four neighbouring dimensions; a lane D / 8 further holds their partners.
template <int D, int G>
__device__ __noinline__ void prepare_heads(Unit unit, const float* norms) {
  Shared& s = shared();
  const int lane = threadIdx.x & 31, fresh = unit.row - unit.first + 1, d = lane * 4 % D;
  const bool near = d < D / 2, mine = lane < D / 4;
  const int kv_heads = s.pass.sizes.kv_heads;
  const u32 tag = tag_of_phase(0);
#pragma unroll 1
  for (int job = threadIdx.x >> 5; job < G + 2 * fresh; job += WARPS) {
    const bool query = job < G, value = job >= G + fresh;
    const int nth = query ? unit.row - unit.first : (job - G) - (value ? fresh : 0);
    const int index = query ? unit.head * G + job : G * kv_heads + unit.head + (value ? kv_heads : 0);
    const float* source = s.to.qkv + (unit.first + nth) * s.pass.sizes.qkv + index * D + d;
    const float4 weight = value ? float4{} : __ldg(reinterpret_cast<const float4*>(norms + (query ? 0 : D) + d));
    Quad quad;
    Patience patience;
    do {
      fetch(true, source, quad);
    } while (!quad.bears(tag) && wait_on(patience));
    __syncwarp();
    float x[4] = {quad[0], quad[1], quad[2], quad[3]};
    if (!value) {
      const float squares = x[0] * x[0] + x[1] * x[1] + x[2] * x[2] + x[3] * x[3];
      const float sum = warp_sum(mine ? squares : 0.f);
      const float factor = rsqrtf(sum * (1.f / D) + s.pass.eps) * (query ? rsqrtf(float(D)) : 1.f);
      const float* rope = s.rope[unit.first + nth];
      const float4 cosine = *reinterpret_cast<const float4*>(rope + d % (D / 2));
      const float4 sine = *reinterpret_cast<const float4*>(rope + D / 2 + d % (D / 2));
      const float w[4] = {weight.x, weight.y, weight.z, weight.w}, c[4] = {cosine.x, cosine.y, cosine.z, cosine.w};
      const float t[4] = {sine.x, sine.y, sine.z, sine.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        x[e] *= factor * w[e];
        const float partner = __shfl_xor_sync(0xffffffffu, x[e], D / 8);
        x[e] = x[e] * c[e] + (near ? -partner : partner) * t[e];
      }
    }
    if (!mine) continue;
    const uint2 pairs{pack(x[0], x[1]), pack(x[2], x[3])};
    const auto put = [&](void* place, uint2 four) { *reinterpret_cast<uint2*>(place) = four; };
    if (query) {
      const auto place = [&](int rest) {
        return reinterpret_cast<u16*>(s.attention.query[rest]) + (d / KBLOCK * G + job) * KBLOCK + d % KBLOCK;
      };
      put(place(0), pairs);
      put(place(1), {pack_rest(pairs.x, x[0], x[1]), pack_rest(pairs.y, x[2], x[3])});
    } else {
      put(&s.attention.fresh[value][nth][d], pairs);
    }
  }
}

// Scores, softmax and weighted values of this warp's positions. `keys_read` is called when the keys are needed no more.
template <int D, int G, class KeysRead>
__device__ __forceinline__ void attend_positions(const Unit& unit, const Positions<D>& positions, int turn, KeysRead keys_read) {
  AttentionSpace& space = shared().attention;
  AttentionShares& shares = space.shares[turn];
  const int warp = Unit::warp(), query = Unit::place(), quarter = Unit::quarter();
  float score[2][4] = {};
#pragma unroll
  for (int piece = 0; piece < Positions<D>::KEY_PIECES; ++piece) {
    uint4 q{0, 0, 0, 0}, rest{0, 0, 0, 0};
    if (query < G) {
      q = space.query[0][(piece * G + query) * 4 + quarter];
      rest = space.query[1][(piece * G + query) * 4 + quarter];
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint4& k = positions.key[h][piece];
      mma(score[h], q.x, rest.x, q.y, rest.y, k.x, k.y);
      mma(score[h], q.z, rest.z, q.w, rest.w, k.z, k.w);
    }
  }
  keys_read();
  const int left = unit.position() - unit.start();  // positions up to here count
  float weight[2][2], peak = NO_PEAK, mass = 0;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      weight[h][e] = h * 8 + quarter * 2 + e <= left ? score[h][e] + score[h][e + 2] : LOWEST;
      peak = fmaxf(peak, weight[h][e]);
    }
  }
  peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, 1));
  peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, 2));
  u32 whole[2], rest[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float first = __expf(weight[h][0] - peak), second = __expf(weight[h][1] - peak);
    mass += first + second;
    whole[h] = pack(first, second);
    rest[h] = pack_rest(whole[h], first, second);
  }
  mass += __shfl_xor_sync(0xffffffffu, mass, 1);
  mass += __shfl_xor_sync(0xffffffffu, mass, 2);
  if (query < G && quarter == 0) shares.peak[warp][query] = peak, shares.mass[warp][query] = mass;
#pragma unroll
  for (int half = 0; half < Positions<D>::HALVES; ++half) {
    float total[2][8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const auto words = [&](int e) {
        const uint4& v = positions.value[e][half];
        return j / 2 == 0 ? v.x : j / 2 == 1 ? v.y : j / 2 == 2 ? v.z : v.w;
      };
      const u32 select = j % 2 ? 0x7632 : 0x5410;
      float c[4] = {};
      mma(c, whole[0], rest[0], whole[1], rest[1], __byte_perm(words(0), words(1), select),
          __byte_perm(words(2), words(3), select));
      total[0][j] = c[0] + c[2], total[1][j] = c[1] + c[3];
    }
    const int d = half * 64 + quarter * 16;
    if (query < G && d < D) {
      float4* out = reinterpret_cast<float4*>(&shares.total[warp][query][d]);
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        const float* four = &total[part / 2][part % 2 * 4];
        out[part] = float4{four[0], four[1], four[2], four[3]};
      }
    }
  }
}

// The pages of a row get its own key and value.
template <int D>
__device__ void append(const Unit& unit, int layer) {
  const int value = threadIdx.x / (D / 2), pair = threadIdx.x % (D / 2);
  if (unit.chunk != unit.chunks - 1 || value > 1) return;
  u16* key = unit.stored(layer, unit.position(), D);
  const u16* fresh = shared().attention.fresh[value][unit.row - unit.first];
  reinterpret_cast<u32*>(key + value * Unit::values_apart(D))[pair] = reinterpret_cast<const u32*>(fresh)[pair];
}

__device__ inline void add_share(float4& sum, float share, float4 value) {
  sum.x = fmaf(share, value.x, sum.x), sum.y = fmaf(share, value.y, sum.y);
  sum.z = fmaf(share, value.z, sum.z), sum.w = fmaf(share, value.w, sum.w);
}

// Four dimensions of a row's attention, from the weighted sum of its values.
__device__ inline void finish_attention(int row, int column, float4 total, float mass) {
  const Shared& s = shared();
  const u32 low = pack(__fdividef(total.x, mass), __fdividef(total.y, mass));
  const u32 high = pack(__fdividef(total.z, mass), __fdividef(total.w, mass));
  hand_over(s.to.attention + row * s.pass.sizes.attention + column,
            {low_half(low), high_half(low), low_half(high), high_half(high)}, tag_of_phase(1));
}

// The warps' shares together: the row's attention, or the part of one chunk.
template <int D, int G>
__device__ void finish_chunk(const Unit& unit, int turn) {
  const Shared& s = shared();
  const AttentionShares& shares = s.attention.shares[turn];
  const int worker = (threadIdx.x + turn * (CONSUMERS / 2)) % CONSUMERS;  // in turn, too: others are ahead meanwhile
#pragma unroll 1
  for (int o = worker * 4; o < G * D; o += CONSUMERS * 4) {
    const int g = o / D, d = o % D, query = unit.head * G + g;
    float peak = NO_PEAK, mass = 0;
    float4 total{};
#pragma unroll
    for (int w = 0; w < WARPS; ++w) peak = fmaxf(peak, shares.peak[w][g]);
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
      const float share = __expf(shares.peak[w][g] - peak);
      mass = fmaf(share, shares.mass[w][g], mass);
      add_share(total, share, *reinterpret_cast<const float4*>(&shares.total[w][g][d]));
    }
    if (unit.chunks == 1) {
      finish_attention(unit.row, query * D + d, total, mass);
    } else {
      float* partial = s.to.partial + (u64(unit.row * s.pass.sizes.kv_heads * G + query) * MAX_CHUNKS + unit.chunk) * (D + 4);
      *reinterpret_cast<float4*>(partial + d) = total;
      if (d == 0) *reinterpret_cast<float2*>(partial + D) = float2{peak, mass};
    }
  }
}

// This block has finished so many chunks of the unit's head; if they were the last ones, all are put together.
template <int D, int G>
__device__ void combine_chunks(const Unit& unit, int finished) {
  constexpr int AT_ONCE = 4;
  Shared& s = shared();
  consumer_sync();
  if (threadIdx.x == 0) {
    u32* arrivals = s.to.arrivals + unit.row * s.pass.sizes.kv_heads + unit.head;
    const u32 before = add_acquire_release(arrivals, finished);
    s.attention.last = before + finished == u32(unit.chunks);
    if (s.attention.last) *arrivals = 0;
  }
  consumer_sync();
  if (!s.attention.last) return;
#pragma unroll 1
  for (int o = threadIdx.x * 4; o < G * D; o += CONSUMERS * 4) {
    const int query = unit.head * G + o / D, d = o % D;
    const float* partial = s.to.partial + u64(unit.row * s.pass.sizes.kv_heads * G + query) * MAX_CHUNKS * (D + 4);
    float peak = NO_PEAK, mass = 0;
    float4 total{};
#pragma unroll 1
    for (int c = 0; c < unit.chunks; c += AT_ONCE) {
      float2 ends[AT_ONCE];
      float4 totals[AT_ONCE];
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        const float* one = partial + (c + i) * (D + 4);
        const bool there = c + i < unit.chunks;
        ends[i] = there ? __ldcg(reinterpret_cast<const float2*>(one + D)) : float2{NO_PEAK, 0.f};
        totals[i] = there ? __ldcg(reinterpret_cast<const float4*>(one + d)) : float4{};
      }
      float higher = peak;
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) higher = fmaxf(higher, ends[i].x);
      const float kept = __expf(peak - higher);
      const float4 before = total;
      total = float4{}, mass *= kept, peak = higher;
      add_share(total, kept, before);
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        const float share = __expf(ends[i].x - peak);
        mass = fmaf(share, ends[i].y, mass);
        add_share(total, share, totals[i]);
      }
    }
    finish_attention(unit.row, query * D + d, total, mass);
  }
}

// One phase. Stored keys and values do not depend on it and are on their way while it waits for the fresh ones, and those of
// a unit while the unit before is worked on. False: leave the kernel.
template <int D, int G>
__device__ __forceinline__ bool attend(int layer) {
  Shared& s = shared();
  const Sizes& z = s.pass.sizes;
  const Stretch stretch;
  if (stretch.begin == stretch.end) return end_phase(false);
  Positions<D> positions;
  Unit unit, next;
  unit.find(stretch.begin);
  positions.load_keys(unit, layer);
  positions.load_values(unit, layer);
  await_pieces();
  int finished = 0;  // chunks of this head
#pragma unroll 1
  for (int number = stretch.begin, turn = 0; number < stretch.end; ++number, turn ^= 1) {
    const bool more = number + 1 < stretch.end;
    if (more) next.find(number + 1);
    if (finished == 0) {
      consumer_sync();  // nobody uses the head before, and all pieces have landed
      prepare_heads<D, G>(unit, s.pass.norms + layer * z.norms + z.hidden);
      consumer_sync();
      if (!all_there()) return false;
      if (threadIdx.x == 0 && number == stretch.begin) stamp(1);
    }
    append<D>(unit, layer);
    positions.add_fresh(unit);
    attend_positions<D, G>(unit, positions, turn, [&] {
      if (more) positions.load_keys(next, layer);
    });
    if (more) positions.load_values(next, layer);
    consumer_sync();
    finish_chunk<D, G>(unit, turn);
    ++finished;
    if (!more || !next.same_head(unit)) {
      if (unit.chunks > 1) combine_chunks<D, G>(unit, finished);
      finished = 0;
    }
    unit = next;
  }
  consumer_sync();  // the next phase has other uses for the space
  return end_phase(true);
}
