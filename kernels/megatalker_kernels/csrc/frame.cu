// One frame of up to ROWS streams, or ROWS positions of a prompt, in one cooperative launch. This file is the order of
// the phases; each role has a header of its own.
#include "attention.cuh"
#include "matrix.cuh"
#include "sampler.cuh"

static_assert(sizeof(Partials) >= sizeof(Contest), "a choice is made where the partial sums lie");
static_assert(ROWS <= BLOCKS, "one block chooses for one row");

struct Shared {
  alignas(128) Ring ring;
  Partials partials;
  float squares[WARPS * ROWS];
  float residual[OWNED_TILES][ROWS][TILE];
  AttentionSpace attention;
  int codes[ROWS][GROUPS];
  Source source[ROWS];
  int slot[ROWS];
  int position[ROWS];
  int verdict;
  int quit;
};

// ------------------------------------------------------------------------------------------------- the weights' order

template <int K>
__device__ void fetch(Writer& writer, u64& offset, int tiles) {
  for (int t = tiles_of_block(tiles); t > 0; --t) {
    for (int k = 0; k < K; k += STAGE_COLUMNS) {
      const int bytes = TILE * 2 * (K - k < STAGE_COLUMNS ? K - k : STAGE_COLUMNS);
      writer.put(offset, bytes);
      offset += bytes;
    }
  }
}

template <class S>
__device__ void fetch_stack(Writer& writer, u64& offset) {
  for (int layer = 0; layer < S::LAYERS && writer.alive; ++layer) {
    fetch<S::HIDDEN>(writer, offset, S::QKV / TILE);
    fetch<S::ATTENTION>(writer, offset, S::HIDDEN / TILE);
    fetch<S::HIDDEN>(writer, offset, 2 * S::INTERMEDIATE / TILE);
    fetch<S::INTERMEDIATE>(writer, offset, S::HIDDEN / TILE);
  }
}

__device__ constexpr u64 matrix_bytes(int k) { return u64(TILE) * k * 2; }

template <class S>
__device__ u64 stack_bytes() {
  return u64(S::LAYERS) * (tiles_of_block(S::QKV / TILE) * matrix_bytes(S::HIDDEN) +
                           tiles_of_block(S::HIDDEN / TILE) * (matrix_bytes(S::ATTENTION) + matrix_bytes(S::INTERMEDIATE)) +
                           tiles_of_block(2 * S::INTERMEDIATE / TILE) * matrix_bytes(S::HIDDEN));
}

// Two predictor positions share the first pass when their rows fit.
__device__ inline bool merged(const Launch& launch) { return 2 * launch.rows <= ROWS; }

__device__ void fetch_weights(Writer& writer, const Launch& launch) {
  const u64 projection = PROJECTS ? tiles_of_block(Predictor::HIDDEN / TILE) * matrix_bytes(Talker::HIDDEN) : 0;
  const u64 head = tiles_of_block(Predictor::VOCAB / TILE) * matrix_bytes(Predictor::HIDDEN);
  const u64 heads = projection + stack_bytes<Predictor>();
  const u64 talker = heads + (GROUPS - 1) * head;
  u64 offset = 0;
  if (launch.mode == DECODE) {
    if (PROJECTS) fetch<Talker::HIDDEN>(writer, offset, Predictor::HIDDEN / TILE);
    for (int pass = merged(launch) ? 1 : 0; pass < GROUPS && writer.alive; ++pass) {
      offset = projection;
      fetch_stack<Predictor>(writer, offset);
      offset = heads + (pass - 1) * head;
      if (pass > 0) fetch<Predictor::HIDDEN>(writer, offset, Predictor::VOCAB / TILE);
    }
  }
  offset = talker;
  fetch_stack<Talker>(writer, offset);
  if (launch.mode == DECODE || launch.finish) fetch<Talker::HIDDEN>(writer, offset, Talker::VOCAB / TILE);
}

// --------------------------------------------------------------------------------------------------- the consumers' side

struct Frame {
  const Buffers& to;
  const Launch& launch;
  Shared& s;
  Grid& grid;
  Reader& reader;

  __device__ int row_of_lane() const { return (threadIdx.x & 31) >> 2; }

  // The residual stream of this block's rows, from the sources.
  template <class S>
  __device__ void open_residual(int rows) {
    const int tiles = tiles_of_block(S::HIDDEN / TILE);
    for (int o = threadIdx.x; o < tiles * rows * TILE; o += CONSUMERS) {
      const int n = o % TILE, row = o / TILE % rows, local = o / TILE / rows;
      s.residual[local][row][n] = s.source[row].one((int(blockIdx.x) + local * BLOCKS) * TILE + n);
    }
  }

  // One stack of layers over `rows` rows whose inputs are s.source; afterwards s.source points to the residual stream.
  template <class S>
  __device__ bool run(const float* norms, const float* rope, float eps, u16* kv, int pages, const int* page_table, int rows) {
    open_residual<S>(rows);
    const u64 layer_pages = u64(pages) * 2 * S::KV_HEADS * PAGE * S::HEAD_DIM;
    for (int layer = 0; layer < S::LAYERS; ++layer) {
      const float* weights = norms + layer * S::NORMS;
      const Cache cache{kv + layer * layer_pages, page_table, s.slot, s.position};
      queries_keys_values<S>(weights, eps, rows);
      if (!grid.sync()) return false;
      attend<S>(to, cache, weights, rope, eps, rows, s.attention);
      if (!grid.sync()) return false;
      add_attention<S>(rows);
      if (!grid.sync()) return false;
      if (layer == 0) point_to_residual<S>(rows);
      gate_and_up<S>(weights + S::HIDDEN + 2 * S::HEAD_DIM, eps, rows);
      if (!grid.sync()) return false;
      add_down<S>(rows);
      if (!grid.sync()) return false;
    }
    return true;
  }

  // Each phase with a matrix is a function of its own: its registers are not shared with the others'.
  template <class S>
  __device__ __noinline__ void queries_keys_values(const float* weight, float eps, int rows) {
    const bool live = row_of_lane() < rows;
    Activations<S::HIDDEN> a;
    a.load_normed(s.source[live ? row_of_lane() : 0], weight, live, s.squares);
    multiply<S::HIDDEN, S::QKV / TILE, 1>(a, reader, s.partials, rows, [&](int tile, int, int row, int n, float* v) {
      to.qkv[row * S::QKV + tile * TILE + n] = v[0] * norm_factor(s.squares, row, S::HIDDEN, eps);
    });
  }

  template <class S>
  __device__ __noinline__ void add_attention(int rows) {
    Activations<S::ATTENTION> a;
    a.load(to.attention, rows);
    multiply<S::ATTENTION, S::HIDDEN / TILE, 1>(a, reader, s.partials, rows, Residual<S>{to, s});
  }

  template <class S>
  __device__ __noinline__ void gate_and_up(const float* weight, float eps, int rows) {
    const bool live = row_of_lane() < rows;
    Activations<S::HIDDEN> a;
    a.load_normed(s.source[live ? row_of_lane() : 0], weight, live, s.squares);
    multiply<S::HIDDEN, 2 * S::INTERMEDIATE / TILE, 2>(
        a, reader, s.partials, rows, [&](int tile, int, int row, int n, float* v) {
          const float factor = norm_factor(s.squares, row, S::HIDDEN, eps);
          const float gate = v[0] * factor, up = v[1] * factor;
          to.activation[row * S::INTERMEDIATE + tile * (TILE / 2) + n] = narrow(gate / (1.f + __expf(-gate)) * up);
        });
  }

  template <class S>
  __device__ __noinline__ void add_down(int rows) {
    Activations<S::INTERMEDIATE> a;
    a.load(to.activation, rows);
    multiply<S::INTERMEDIATE, S::HIDDEN / TILE, 1>(a, reader, s.partials, rows, Residual<S>{to, s});
  }

  // Adds to the residual rows this block owns, and shows them to the others.
  template <class S>
  struct Residual {
    const Buffers& to;
    Shared& s;
    __device__ void operator()(int tile, int local, int row, int n, float* v) const {
      const float sum = s.residual[local][row][n] + v[0];
      s.residual[local][row][n] = sum;
      to.x[row * S::HIDDEN + tile * TILE + n] = sum;
    }
  };

  template <class S>
  __device__ void point_to_residual(int rows) {
    if (threadIdx.x < rows) s.source[threadIdx.x] = Source{to.x + threadIdx.x * S::HIDDEN, nullptr};
    consumer_sync();
  }

  // Norm and head of the last layer: logits of `rows` rows to `target(row)`.
  template <class S, class Target>
  __device__ __noinline__ void head(const float* norm, float eps, int rows, Target target) {
    const bool live = row_of_lane() < rows;
    Activations<S::HIDDEN> a;
    a.load_normed(s.source[live ? row_of_lane() : 0], norm, live, s.squares);
    multiply<S::HIDDEN, S::VOCAB / TILE, 1>(a, reader, s.partials, rows, [&](int tile, int, int row, int n, float* v) {
      float* out = target(row);
      if (out) out[tile * TILE + n] = v[0] * norm_factor(s.squares, row, S::HIDDEN, eps);
    });
  }

  __device__ void place(int row, int slot, int position, Source source) {
    s.slot[row] = slot, s.position[row] = position, s.source[row] = source;
  }

  // One code of every row. A single row is chosen by every block for itself, which saves a hand-over; several rows are
  // dealt to the blocks.
  __device__ __noinline__ bool pick(int codebook) {
    Contest& contest = *reinterpret_cast<Contest*>(&s.partials);
    u32* chosen = to.barrier + CHOSEN;
    const int rows = launch.rows, dealt = rows == 1 ? 0 : blockIdx.x;
    if (dealt < rows && !launch.row[dealt].forced) {
      const Row& row = launch.row[dealt];
      const int code = codebook == 0 ? choose_first(to, row, contest) : choose_rest(to, row, dealt, codebook, contest);
      if (threadIdx.x == 0) {
        s.codes[dealt][codebook] = code;
        if (rows > 1) chosen[dealt] = code;
      }
    }
    if (rows > 1 && !grid.join()) return false;
    if (threadIdx.x < rows) {
      const Row& row = launch.row[threadIdx.x];
      if (row.forced) {
        s.codes[threadIdx.x][codebook] = row.codes[codebook];
      } else if (rows > 1) {
        s.codes[threadIdx.x][codebook] = __ldcg(chosen + threadIdx.x);
      }
    }
    consumer_sync();
    return true;
  }

  __device__ bool project_hidden() {
    if (threadIdx.x < launch.rows) {
      s.source[threadIdx.x] = Source{to.hidden + u64(launch.row[threadIdx.x].slot) * Talker::HIDDEN, nullptr};
    }
    consumer_sync();
    const bool live = row_of_lane() < launch.rows;
    Activations<Talker::HIDDEN> a;
    a.load_plain(s.source[live ? row_of_lane() : 0], live);
    multiply<Talker::HIDDEN, Predictor::HIDDEN / TILE, 1>(
        a, reader, s.partials, launch.rows, [&](int tile, int, int row, int n, float* v) {
          const int column = tile * TILE + n;
          to.projected[row * Predictor::HIDDEN + column] = v[0] + to.projection_bias[column];
        });
    return grid.sync();
  }

  __device__ const float* predictor_start(int row) const {
    return PROJECTS ? to.projected + row * Predictor::HIDDEN : to.hidden + u64(launch.row[row].slot) * Talker::HIDDEN;
  }

  __device__ Source embedding(int row, int codebook) const {
    return Source{nullptr, to.input_tables[codebook] + u64(s.codes[row][codebook]) * Predictor::HIDDEN};
  }

  __device__ bool predict() {
    const float* final_norm = to.predictor_norms + Predictor::LAYERS * Predictor::NORMS;
    const bool both = merged(launch);
    if (!pick(0)) return false;
    if (PROJECTS && !project_hidden()) return false;
    for (int pass = both ? 1 : 0; pass < GROUPS; ++pass) {
      const bool pair = both && pass == 1;
      if (threadIdx.x < launch.rows) {
        const int row = threadIdx.x;
        if (pair) {
          place(2 * row, row, 0, Source{predictor_start(row), nullptr});
          place(2 * row + 1, row, 1, embedding(row, 0));
        } else if (pass == 0) {
          place(row, row, 0, Source{predictor_start(row), nullptr});
        } else {
          place(row, row, pass, embedding(row, pass - 1));
        }
      }
      consumer_sync();
      const int rows = pair ? 2 * launch.rows : launch.rows;
      if (!run<Predictor>(to.predictor_norms, to.predictor_rope, to.predictor_eps, to.predictor_kv, ROWS, nullptr, rows)) {
        return false;
      }
      if (pass == 0) continue;
      head<Predictor>(final_norm, to.predictor_eps, rows, [&](int row) -> float* {
        const int stream = pair ? row / 2 : row;
        if (pair && row % 2 == 0) return nullptr;
        return to.predictor_logits + (u64(stream) * (GROUPS - 1) + pass - 1) * Predictor::VOCAB;
      });
      if (!grid.sync()) return false;
      if (!pick(pass)) return false;
    }
    return true;
  }

  // The codes, as early as they exist; the ticket comes last.
  __device__ void publish() {
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    for (int row = 0; row < launch.rows; ++row) {
      for (int i = 0; i < GROUPS; ++i) to.codes[row * (GROUPS + 1) + i] = s.codes[row][i];
    }
    __threadfence_system();
    for (int row = 0; row < launch.rows; ++row) {
      *const_cast<volatile int*>(to.codes + row * (GROUPS + 1) + GROUPS) = to.ticket;
    }
  }

  __device__ void remember() {
    if (blockIdx.x != 0 || threadIdx.x >= launch.rows) return;
    const Row& row = launch.row[threadIdx.x];
    const int code = s.codes[threadIdx.x][0];
    to.seen[row.slot * (Talker::VOCAB / 32) + code / 32] |= 1u << (code % 32);
  }

  // The talker's input: the sum of the frame's code embeddings and the text row.
  __device__ bool sum_embeddings() {
    constexpr int H = Talker::HIDDEN;
    const int tiles = tiles_of_block(H / TILE);
    for (int o = threadIdx.x; o < tiles * launch.rows * TILE; o += CONSUMERS) {
      const int n = o % TILE, row = o / TILE % launch.rows, local = o / TILE / launch.rows;
      const int column = (int(blockIdx.x) + local * BLOCKS) * TILE + n;
      float sum = 0;
#pragma unroll
      for (int i = 0; i < GROUPS; ++i) sum += widen(to.sum_tables[i][u64(s.codes[row][i]) * H + column]);
      to.x[row * H + column] = sum + to.text[row * H + column];
    }
    return grid.sync();
  }

  __device__ bool talk() {
    constexpr int H = Talker::HIDDEN;
    const bool decoding = launch.mode == DECODE;
    if (threadIdx.x < launch.rows) {
      const Row& row = launch.row[threadIdx.x];
      place(threadIdx.x, row.slot, row.position, Source{(decoding ? to.x : to.text) + threadIdx.x * H, nullptr});
    }
    consumer_sync();
    if (!run<Talker>(to.talker_norms, to.talker_rope, to.talker_eps, to.talker_kv, to.pages, to.page_table, launch.rows)) {
      return false;
    }
    if (!decoding && !launch.finish) return true;
    const float* final_norm = to.talker_norms + Talker::LAYERS * Talker::NORMS;
    const int last = launch.rows - 1;
    head<Talker>(final_norm, to.talker_eps, launch.rows, [&](int row) -> float* {
      if (!decoding && row != last) return nullptr;
      return to.pending + u64(launch.row[row].slot) * Talker::VOCAB;
    });
    const int tiles = tiles_of_block(H / TILE);
    for (int o = threadIdx.x; o < tiles * launch.rows * TILE; o += CONSUMERS) {
      const int n = o % TILE, row = o / TILE % launch.rows, local = o / TILE / launch.rows;
      if (!decoding && row != last) continue;
      const int column = (int(blockIdx.x) + local * BLOCKS) * TILE + n;
      to.hidden[u64(launch.row[row].slot) * H + column] =
          s.residual[local][row][n] * norm_factor(s.squares, row, H, to.talker_eps) * final_norm[column];
    }
    return true;
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) megatalker_frame(const __grid_constant__ Params params) {
  extern __shared__ __align__(128) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const Buffers& to = params.to;
  const Launch& launch = params.launch;
  const Status status{to.status, to.barrier, to.patience};
  if (threadIdx.x == 0) {
    shared.ring.init();
    shared.quit = 0;
  }
  __syncthreads();
  if (threadIdx.x >= CONSUMERS) {
    Writer writer{shared.ring, status, reinterpret_cast<const char*>(to.weights) + to.block_offset[blockIdx.x],
                  &shared.quit};
    fetch_weights(writer, launch);
    writer.drain();
  } else {
    u64* profile = to.profile ? to.profile + u64(blockIdx.x) * MAX_PHASES * 2 : nullptr;
    Grid grid{to.barrier, BLOCKS, 0, launch, status, &shared.verdict, profile};
    if (threadIdx.x == 0) grid.stamp(1);
    Reader reader{shared.ring, status, grid.phase};
    Frame frame{to, launch, shared, grid, reader};
    bool going = true;
    if (launch.mode == DECODE) {
      going = frame.predict();
      if (going) {
        frame.publish();
        frame.remember();
        going = frame.sum_embeddings();
      }
    }
    if (going) frame.talk();
    grid.leave();
    shared.quit = 1;
  }
  __syncthreads();
}

extern "C" __global__ void megatalker_layout(int* out) {
  out[0] = sizeof(Params);
  out[1] = sizeof(Shared);
}
