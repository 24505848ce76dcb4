// Parameters of each stream of a call, and how the end of a convolution's input is carried to the next call.
#pragma once
#include "primitive.cuh"

// Behind it lie the codes of the stream's frames, frame by frame.
struct Ticket {
  const float* now;  // context of every convolution, as the last call left it
  float* next;       // the same, for the call after this one
  float* cache;      // keys and values of every layer
  i64 position;      // frames before this call
};

static_assert(sizeof(Ticket) == TICKET_WORDS * sizeof(i64), "see structures.py");

struct Tickets {
  const i64* words;
  i64 stride;  // words of a stream

  __device__ const Ticket& operator[](int stream) const {
    return *reinterpret_cast<const Ticket*>(words + stream * stride);
  }
  __device__ const i64* codes(int stream) const { return words + stream * stride + sizeof(Ticket) / sizeof(i64); }
};

// The input of a convolution: `rows` of `words`, each a float or some packed numbers, `time` of them for each stream, after
// `context` earlier ones.
struct Input {
  const float* data;
  i64 slot;  // where its context begins, in words
  int rows, time, words, context;

  // All threads of the grid together write the context of the next call.
  __device__ void remember(const Tickets& tickets) const {
    const int vectors = words / 4, stream_vectors = context * vectors, all = rows / time * stream_vectors;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < all; i += gridDim.x * blockDim.x) {
      const int stream = i / stream_vectors, row = i % stream_vectors / vectors, vector = i % vectors;
      const Ticket& ticket = tickets[stream];
      const int from = time + row;  // counted from the start of the context
      const float* source = from < context ? ticket.now + slot + from * words
                                           : data + (stream * i64(time) + from - context) * words;
      reinterpret_cast<float4*>(ticket.next + slot + row * words)[vector] =
          reinterpret_cast<const float4*>(source)[vector];
    }
  }
};
