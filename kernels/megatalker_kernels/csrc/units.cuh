// How attention is divided among the blocks. A unit of work is (row, key/value head, chunk of CHUNK positions); units are
// numbered (row, head) by (row, head), and each block takes a range of them.
#pragma once
#include "positions.cuh"
#include "shared.cuh"

// The rows of the pass that the layers are working on.
struct RowsAtWork {
  __device__ static int count() { return shared().pass.rows; }
  __device__ static int heads() { return shared().pass.sizes.kv_heads; }
  __device__ static int slot(int row) { return shared().slot[row]; }
  __device__ static int position(int row) { return shared().position[row]; }
  __device__ static int fresh_from(int row) { return shared().fresh_from[row]; }
  __device__ static const Stream* streams() { return shared().pass.stream; }
  __device__ static Stored* layer(int number) { return shared().pass.kv + number * shared().pass.layer_elements; }
};

// The rows of the launch in the talker, whether or not it has got there.
struct TalkerRows {
  __device__ static int count() { return shared().launch.rows; }
  __device__ static constexpr int heads() { return Talker::KV_HEADS; }
  __device__ static int slot(int row) { return shared().launch.row[row].slot; }
  __device__ static int position(int row) { return shared().launch.row[row].position; }
  __device__ static int fresh_from(int row) { return position(row); }
  __device__ static const Stream* streams() { return shared().to.stream; }
  __device__ static u64 layer_elements() { return u64(shared().to.pages) * Talker::PAGE_ELEMENTS; }
  __device__ static Stored* layer(int number) { return shared().to.talker_kv + number * layer_elements(); }
};

template <class Rows>
struct WorkUnit {
  int row, head, chunk;

  __device__ static int chunks_of(int row) { return Rows::position(row) / CHUNK + 1; }

  // Becomes the unit with this number, which exists.
  __device__ void find(int number) {
#pragma unroll 1
    for (row = 0; number >= chunks_of(row) * Rows::heads(); ++row) number -= chunks_of(row) * Rows::heads();
    head = number / chunks(), chunk = number % chunks();
  }

  // Becomes the next one.
  __device__ void advance() {
    if (++chunk < chunks()) return;
    chunk = 0;
    if (++head < Rows::heads()) return;
    head = 0, ++row;
  }

  __device__ int chunks() const { return chunks_of(row); }
  __device__ bool last() const { return chunk == chunks() - 1; }  // of its head
  __device__ int position() const { return Rows::position(row); }
  __device__ int fresh_from() const { return Rows::fresh_from(row); }
  __device__ int nth() const { return position() - fresh_from(); }  // of the rows of its stream in this pass

  // How many of `count` positions from `begin` on, counted from the start of the chunk, are of earlier passes; below 1 if none.
  __device__ int stored_of(int begin, int count) const { return min(count, fresh_from() - chunk * CHUNK - begin); }

  // Address of the key of a position; its value lies `values_apart` further.
  __device__ Stored* key(int layer, int at, int head_dim) const {
    const Stream* streams = Rows::streams();
    const u64 page = streams ? __ldg(streams[Rows::slot(row)].pages + at / PAGE) : Rows::slot(row);
    return Rows::layer(layer) + ((page * 2 * Rows::heads() + head) * PAGE + at % PAGE) * head_dim;
  }
  __device__ static int values_apart(int head_dim) { return Rows::heads() * PAGE * head_dim; }
};

template <class Rows>
struct WorkRange {
  int begin = 0, end = 0;

  // The range of this block.
  __device__ static WorkRange own() {
    const int block = blockIdx.x, heads = Rows::heads(), rows = Rows::count();
    const auto chunks_of = WorkUnit<Rows>::chunks_of;
    int chunks = 0, longest = 0;
#pragma unroll 1
    for (int row = 0; row < rows; ++row) chunks += chunks_of(row), longest = max(longest, chunks_of(row));
    const int units = chunks * heads;
    if (units <= BLOCKS) {
      return {min(block, units), min(block + 1, units)};
    }
    // Best is a part of one head; where a head is too long for that, the same number of units for each block.
    const int parts = BLOCKS / (rows * heads), fair = (units + BLOCKS - 1) / BLOCKS;
    if (longest > parts * fair) {
      return {units * block / BLOCKS, units * (block + 1) / BLOCKS};
    }
    const int head = block / parts, part = block % parts, row = head / heads;
    if (row >= rows) return {};
    int first = head % heads * chunks_of(row);
#pragma unroll 1
    for (int other = 0; other < row; ++other) first += chunks_of(other) * heads;
    return {first + chunks_of(row) * part / parts, first + chunks_of(row) * (part + 1) / parts};
  }

  __device__ int count() const { return end - begin; }
};
