// Common parts of the wide kernel's products: where weights and rows lie, and the operations on sums. A number is
// added up as in the megakernel: the column blocks chain, chain + WARPS, ... one after the other, in two halves, then the WARPS
// chains. So a row gets the same bits from either kernel and any instruction, whatever other rows there are.
#pragma once
#include "barrier.cuh"
#include "wide_rows.cuh"

constexpr int FRAGMENT_BYTES = TILE * KBLOCK * sizeof(Operand);  // a column block of a tile or of eight rows
constexpr int VECTORS = FRAGMENT_BYTES / 16;
constexpr int OF_UNIT = STAGE_COLUMNS / KBLOCK;  // column blocks of a stage of packing.py,
constexpr int OF_CHAIN = OF_UNIT / WARPS;        // and of one chain in it

// A product, and the part of it that a block is computing.
struct WidePart {
  PhaseKind kind;
  int layer;  // or number of the head
  Extent extent;
  const char* operand;
  int blocks;             // column blocks
  int units;              // stages of packing.py that a tile has
  int rows;               // in all
  int tile = 0, row = 0;  // the first ones
  bool first = true;      // of the block's parts: it waits for the phase before

  __device__ WidePart(PhaseKind kind, int layer, int rows)
      : kind(kind),
        layer(layer),
        extent(kind, wide_shared().pass.sizes),
        blocks(extent.columns / KBLOCK),
        units((blocks + OF_UNIT - 1) / OF_UNIT),
        rows(rows) {
    const WideShared& s = wide_shared();
    const void* source = s.wide.operand;
    if (kind == OUT || kind == PROJECT) source = s.to.attention;
    if (kind == DOWN) source = s.to.activation;
    operand = static_cast<const char*>(source);
  }

  __device__ const WideTile& own_tile(int own) const {
    const WideShared& s = wide_shared();
    return (first ? s.tile[s.pass.kind][kind] : s.further_tile)[own];
  }

  __device__ const char* weights(const WideTile& tile) const { return tile.start + layer * tile.of_layer; }

  // Bytes from one column block of the rows to the next.
  __device__ int apart() const { return wide_shared().pass.padded / TILE * FRAGMENT_BYTES; }

  // Groups of eight rows to be read, from the part's first row on, `most` at most.
  __device__ int eights(int most) const { return min(most, (padded_rows(rows) - row) / TILE); }
};

__device__ __noinline__ WideTile find_tile(bool talker, PhaseKind kind, int number) {
  const Buffers& to = common().to;
  const Sizes z = talker ? Sizes::of<Talker>() : Sizes::of<Predictor>();
  const Extent extent(kind, z);
  const int block = number % BLOCKS, local = number / BLOCKS, first = local / 2 * 2;
  const Places places(block);
  const u64 layer = share_of_layer(block, z);
  u64 offset = talker ? places.talker : kind == HEAD ? places.heads : kind == PROJECT ? 0 : places.predictor;
  if (talker && kind == HEAD) offset += z.layers * layer;
  if (kind < LAYER_PHASES) {
    for (const PhaseKind before : {MT_LAYER_MATRICES}) {
      if (before < kind) offset += share_of(block, Extent(before, z));
    }
  }
  offset += to.block_offset[block] + u64(first) * TILE * extent.columns * sizeof(Weight);
  return {reinterpret_cast<const char*>(to.weights) + offset, u32(kind == HEAD ? places.head : layer),
          first + 1 < tiles_of(block, extent.tiles) ? 1 + local % 2 : 0};
}

// Four neighbouring columns of a row; all lanes come here, those not `there` for company.
__device__ inline void finish_wide(PhaseKind kind, int layer, bool there, int row, int column, float4 value, float factor) {
  const WideShared& s = wide_shared();
  const Buffers& to = s.to;
  const Sizes& z = s.pass.sizes;
  if (kind == GATE_UP) {  // of each eight columns, four are gates and four go up
    const int other = (own_thread() & 31) ^ 1;
    value = value * factor;
    const float4 up{__shfl_sync(0xffffffffu, value.x, other), __shfl_sync(0xffffffffu, value.y, other),
                    __shfl_sync(0xffffffffu, value.z, other), __shfl_sync(0xffffffffu, value.w, other)};
    if (there && column % TILE == 0) put_columns(to.activation, row, column / 2, gated(value, up));
    return;
  }
  if (kind == QKV || kind == HEAD) {
    if (!there) return;
    value = value * factor;
    if (kind == QKV) {
      four(to.qkv + u64(row) * z.qkv + column) = value;
    } else if (s.pass.talker) {
      four(to.pending + u64(s.wide.row[s.wide.source[row]].slot) * Talker::VOCAB + column) = value;
    } else {
      four(to.predictor_logits + (u64(row) * (GROUPS - 1) + s.pass.number - 1) * Predictor::VOCAB + column) = value;
    }
    return;
  }
  if (kind == PROJECT) row *= 2;
  float4& residual = four(to.x + u64(row) * z.hidden + column);
  if (there) {
    value = kind == PROJECT ? value + four(const_cast<float*>(to.projection_bias) + column) : residual + value;
    residual = value;
  }
  const float* norm = s.pass.norms;
  if (kind == OUT) norm += layer * z.norms + z.norms - z.hidden;
  if (kind == DOWN) norm += (layer + 1) * z.norms;  // of the next layer, or the final one
  int place = row;
  if (kind == DOWN && layer == z.layers - 1 && there) {  // whose head is wanted
    if (s.pass.talker) place = s.wide.heard[row];
    if (s.pass.kind == OF_PAIRS) place = row % 2 ? row / 2 : -1;
  }
  put_operand(there && place >= 0, place, column, value, norm);
}

// The phase before is over, as far as this part has to wait for it. False: leave the kernel.
__device__ inline bool may_read(const WidePart& part) {
  return !part.first || await_phase();
}

// Finds the norm's factors of the part's rows, for products that follow a norm.
__device__ inline void find_factors(const WidePart& part, int rows) {
  const int row = part.row + own_thread();
  if (part.kind == OUT || part.kind == DOWN || part.kind == PROJECT || own_thread() >= rows || row >= part.rows) return;
  wide_shared().factor[own_thread()] = norm_factor(row);
}

// How the sums of a part lie in shared memory: SUMS times [ROWS_][STRIDE].
template <int ROWS_, int COLUMNS_, int SUMS_>
struct WideShares {
  static constexpr int COLUMNS = COLUMNS_, SUMS = SUMS_;
  static constexpr int STRIDE =
      COLUMNS + (SUMS * ROWS_ * (COLUMNS + 8) * 4 <= ARENA_BYTES ? 8 : 4);  // so that few lie in the same bank
  static constexpr int ONE = ROWS_ * STRIDE;
  static_assert(ROWS_ * COLUMNS / 4 % 32 == 0 && SUMS * ONE * 4 <= ARENA_BYTES);

  // Stores this lane's results of mma, or of a warpgroup's product: sixteen rows and some tiles from `row` and `column` on.
  template <int TILES>
  __device__ static void put(int share, int row, int column, const float (&values)[TILES][4]) {
    const int lane = own_thread() & 31;
    float* place =
        reinterpret_cast<float*>(wide_shared().arena) + share * ONE + (row + (lane >> 2)) * STRIDE + column + (lane & 3) * 2;
#pragma unroll
    for (int n = 0; n < TILES; ++n) {
      float2* pair = reinterpret_cast<float2*>(place + n * TILE);
      pair[0] = {values[n][0], values[n][1]}, pair[8 * STRIDE / 2] = {values[n][2], values[n][3]};
    }
  }

  __device__ static void finish(const WidePart& part) {
    WideShared& s = wide_shared();
    float* shares = reinterpret_cast<float*>(s.arena);
#pragma unroll 1
    for (int o = own_thread(); o < ROWS_ * COLUMNS / 4; o += CONSUMERS) {
      constexpr int QUADS = COLUMNS / 4;
      const int local = o / QUADS, at = o % QUADS * 4, row = part.row + local, column = part.tile * TILE + at;
      float4 value{};
#pragma unroll
      for (int i = 0; i < SUMS; ++i) value = value + four(shares + i * ONE + local * STRIDE + at);
      finish_wide(part.kind, part.layer, row < part.rows && column < part.extent.tiles * TILE, row, column, value, s.factor[local]);
    }
  }
};
