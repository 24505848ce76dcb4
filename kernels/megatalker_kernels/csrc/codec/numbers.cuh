// Float32 products on tensor cores, which take shorter numbers: a number becomes the sum of a high and a low part, and what two low
// parts would add is left out. Weights and the inputs of products lie in memory packed, eight neighbouring columns in 32 bytes, read
// and written in fours. numbers.py says which of these structures a source is compiled for.
#pragma once
#include "primitive.cuh"

__device__ inline float4 operator+(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

__device__ inline float4 operator*(float4 a, float4 b) { return {a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w}; }

__device__ inline float4 operator*(float4 a, float b) { return {a.x * b, a.y * b, a.z * b, a.w * b}; }

__device__ inline float4 float4_at(const float* data, i64 index) { return *reinterpret_cast<const float4*>(data + index); }

struct Eight {
  float4 front, back;
};

__device__ inline Eight operator+(const Eight& a, const Eight& b) { return {a.front + b.front, a.back + b.back}; }

__device__ inline Eight eight_at(const float* data, i64 index) { return {float4_at(data, index), float4_at(data, index + 4)}; }

// Reads numbers that other blocks have just written.
__device__ inline Eight fresh_eight_at(const float* data) {
  const float4* const fours = reinterpret_cast<const float4*>(data);
  return {__ldcg(fours), __ldcg(fours + 1)};
}

__device__ inline void put_eight(float* data, const Eight& v) {
  reinterpret_cast<float4*>(data)[0] = v.front, reinterpret_cast<float4*>(data)[1] = v.back;
}

// Parts in TensorFloat-32, for numbers of any size: the error is below 2^-21 of the value. Packed means as it is.
struct Tensorfloats {
  struct Four {
    u32 high[4], low[4];
  };

  __device__ static void pack(float* row, int column, float4 v) { *reinterpret_cast<float4*>(row + column) = v; }

  __device__ static Eight pack(const Eight& v) { return v; }

  // The four of that number in a row whose 16-byte vectors are stored at their number XOR `swizzle`.
  __device__ static Four unpack(const float4* row, int number, int swizzle) {
    const float4 v = row[number ^ swizzle];
    Four four;
    const float value[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      four.high[i] = (__float_as_uint(value[i]) + 0x1000u) & 0xffffe000u;
      four.low[i] = __float_as_uint(value[i] - __uint_as_float(four.high[i]));
    }
    return four;
  }

  __device__ static float squares(const Four& x) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float value = __uint_as_float(x.high[i]) + __uint_as_float(x.low[i]);
      sum += value * value;
    }
    return sum;
  }

  // Sums of products of high parts with each other, and with low parts.
  struct Sum {
    float high[4], low[4];
    __device__ float operator[](int i) const { return high[i] + low[i]; }
  };

  // One of the steps by which sixteen columns of sixteen weight rows and eight input rows are multiplied.
  static constexpr int PASSES = 6;
  __device__ static void multiply(Sum& sum, int pass, const Four& upper, const Four& lower, const Four& x) {
    const int i = pass % 2 * 2;
    const auto &u = pass < 2 ? upper.low : upper.high, &l = pass < 2 ? lower.low : lower.high;
    const auto& b = pass / 2 == 1 ? x.low : x.high;
    mma_tf32(pass < 4 ? sum.low : sum.high, u[i], l[i], u[i + 1], l[i + 1], b[i], b[i + 1]);
  }
};

// Parts in float16, twice as fast, for numbers within its range: eight high parts, then eight low parts.
struct Halves {
  struct Four {
    u32 high[2], low[2];
  };

  __device__ static float4 four_words(const u32 (&words)[4]) {
    return {__uint_as_float(words[0]), __uint_as_float(words[1]), __uint_as_float(words[2]), __uint_as_float(words[3])};
  }

  __device__ static u32 low(u32 high, float first, float second) {
    const float2 rounded = from_f16(high);
    return to_f16(first - rounded.x, second - rounded.y);
  }

  __device__ static void pack(float* row, int column, float4 v) {
    float* const at = row + column / 8 * 8 + column % 8 / 2;
    const u32 front = to_f16(v.x, v.y), back = to_f16(v.z, v.w);
    *reinterpret_cast<uint2*>(at) = {front, back};
    *reinterpret_cast<uint2*>(at + 4) = {low(front, v.x, v.y), low(back, v.z, v.w)};
  }

  __device__ static Eight pack(const Eight& v) {
    const float4 &f = v.front, &b = v.back;
    const u32 high[4] = {to_f16(f.x, f.y), to_f16(f.z, f.w), to_f16(b.x, b.y), to_f16(b.z, b.w)};
    const u32 rest[4] = {low(high[0], f.x, f.y), low(high[1], f.z, f.w), low(high[2], b.x, b.y), low(high[3], b.z, b.w)};
    return {four_words(high), four_words(rest)};
  }

  __device__ static Four unpack(const float4* row, int number, int swizzle) {
    const int high = number / 2 * 2;
    const uint2 front = reinterpret_cast<const uint2*>(row + (high ^ swizzle))[number % 2];
    const uint2 back = reinterpret_cast<const uint2*>(row + (high + 1 ^ swizzle))[number % 2];
    return {{front.x, front.y}, {back.x, back.y}};
  }

  __device__ static float squares(const Four& x) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 high = from_f16(x.high[i]), low = from_f16(x.low[i]);
      const float first = high.x + low.x, second = high.y + low.y;
      sum += first * first + second * second;
    }
    return sum;
  }

  // Two, so that fewer products wait for each other.
  struct Sum {
    float high[4], low[4];
    __device__ float operator[](int i) const { return high[i] + low[i]; }
  };

  // High and low parts of a weight times those of an input: low times high, high times low, high times high.
  static constexpr int PASSES = 3;
  __device__ static constexpr bool low_weight(int pass) { return pass == 0; }
  __device__ static constexpr bool low_input(int pass) { return pass == 1; }
  __device__ static void multiply(Sum& sum, int pass, const Four& upper, const Four& lower, const Four& x) {
    const auto &u = low_weight(pass) ? upper.low : upper.high, &l = low_weight(pass) ? lower.low : lower.high;
    const auto& b = low_input(pass) ? x.low : x.high;
    mma_f16(pass < 2 ? sum.low : sum.high, u[0], l[0], u[1], l[1], b[0], b[1]);
  }
};

// The same numbers, multiplied by their high parts alone: three times as fast, with an error of 2^-11 of the value.
struct HighHalves : Halves {
  struct Sum {
    float high[4];
    __device__ float operator[](int i) const { return high[i]; }
  };

  static constexpr int PASSES = 1;
  __device__ static constexpr bool low_weight(int) { return false; }
  __device__ static constexpr bool low_input(int) { return false; }
  __device__ static void multiply(Sum& sum, int, const Four& upper, const Four& lower, const Four& x) {
    mma_f16(sum.high, upper.high[0], lower.high[0], upper.high[1], lower.high[1], x.high[0], x.high[1]);
  }
};
