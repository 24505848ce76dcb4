// Float32 products on tensor cores, which take shorter numbers: a number becomes the sum of a high and a low part, and what two low
// parts would add is left out; or it is rounded to float16. Weights and the inputs of products lie in memory packed, eight
// neighbouring columns in 32 or 16 bytes. numbers.py says which of these structures a source is compiled for. `place`: of the first
// number among those of all rows, whose lengths are multiples of eight. A fragment: what a lane multiplies of four words of a row.
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
  static constexpr int PER_WORD = 1;  // numbers in 32 bits
  struct Fragment {
    u32 high[4], low[4];
  };

  __device__ static void pack(float* data, i64 place, float4 v) { *reinterpret_cast<float4*>(data + place) = v; }

  __device__ static void pack(float* data, i64 place, const Eight& v) { put_eight(data + place, v); }

  // The fragment of that number in a row whose 16-byte vectors are stored at their number XOR `swizzle`.
  __device__ static Fragment unpack(const float4* row, int number, int swizzle) {
    const float4 v = row[number ^ swizzle];
    Fragment four;
    const float value[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      four.high[i] = (__float_as_uint(value[i]) + 0x1000u) & 0xffffe000u;
      four.low[i] = __float_as_uint(value[i] - __uint_as_float(four.high[i]));
    }
    return four;
  }

  __device__ static float squares(const Fragment& x) {
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

  // One of the steps by which sixteen words of sixteen weight rows and eight input rows are multiplied.
  static constexpr int PASSES = 6;
  __device__ static void multiply(Sum& sum, int pass, const Fragment& upper, const Fragment& lower, const Fragment& x) {
    const int i = pass % 2 * 2;
    const auto &u = pass < 2 ? upper.low : upper.high, &l = pass < 2 ? lower.low : lower.high;
    const auto& b = pass / 2 == 1 ? x.low : x.high;
    mma_tf32(pass < 4 ? sum.low : sum.high, u[i], l[i], u[i + 1], l[i + 1], b[i], b[i + 1]);
  }
};

// Parts in float16, twice as fast, for numbers within its range: eight high parts, then eight low parts.
struct Halves {
  static constexpr int PER_WORD = 1;
  struct Fragment {
    u32 high[2], low[2];
  };

  __device__ static float4 four_words(const u32 (&words)[4]) {
    return {__uint_as_float(words[0]), __uint_as_float(words[1]), __uint_as_float(words[2]), __uint_as_float(words[3])};
  }

  __device__ static u32 low(u32 high, float first, float second) {
    const float2 rounded = from_f16(high);
    return to_f16(first - rounded.x, second - rounded.y);
  }

  __device__ static void pack(float* data, i64 place, float4 v) {
    float* const at = data + place / 8 * 8 + place % 8 / 2;
    const u32 front = to_f16(v.x, v.y), back = to_f16(v.z, v.w);
    *reinterpret_cast<uint2*>(at) = {front, back};
    *reinterpret_cast<uint2*>(at + 4) = {low(front, v.x, v.y), low(back, v.z, v.w)};
  }

  __device__ static void pack(float* data, i64 place, const Eight& v) {
    const float4 &f = v.front, &b = v.back;
    const u32 high[4] = {to_f16(f.x, f.y), to_f16(f.z, f.w), to_f16(b.x, b.y), to_f16(b.z, b.w)};
    const u32 rest[4] = {low(high[0], f.x, f.y), low(high[1], f.z, f.w), low(high[2], b.x, b.y), low(high[3], b.z, b.w)};
    put_eight(data + place, {four_words(high), four_words(rest)});
  }

  __device__ static Fragment unpack(const float4* row, int number, int swizzle) {
    const int high = number / 2 * 2;
    const uint2 front = reinterpret_cast<const uint2*>(row + (high ^ swizzle))[number % 2];
    const uint2 back = reinterpret_cast<const uint2*>(row + (high + 1 ^ swizzle))[number % 2];
    return {{front.x, front.y}, {back.x, back.y}};
  }

  __device__ static float squares(const Fragment& x) {
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

  // High and low parts of a weight times those of an input: low times high, high times low, high times high. For warpgroups: the
  // first of a group's four vectors that a pass multiplies, and how far it is to the other.
  static constexpr int PASSES = 3, APART = 2;
  // Tensor cores cut off what they add to a sum: warpgroups let them add up two stages, the rest is rounded as float32 is.
  static constexpr int CUT_STAGES = 2;
  __device__ static constexpr int weight_vector(int pass) { return pass == 0; }
  __device__ static constexpr int input_vector(int pass) { return pass == 1; }
  __device__ static void multiply(Sum& sum, int pass, const Fragment& upper, const Fragment& lower, const Fragment& x) {
    const auto &u = weight_vector(pass) ? upper.low : upper.high, &l = weight_vector(pass) ? lower.low : lower.high;
    const auto& b = input_vector(pass) ? x.low : x.high;
    mma_f16(pass < 2 ? sum.low : sum.high, u[0], l[0], u[1], l[1], b[0], b[1]);
  }
};

// Rounded to float16, with an error of 2^-11 of the value: a third of the products, half of the memory.
struct Half {
  static constexpr int PER_WORD = 2;
  struct Fragment {
    u32 pair[4];
  };

  __device__ static void pack(float* data, i64 place, float4 v) {
    *reinterpret_cast<uint2*>(data + place / 2) = {to_f16(v.x, v.y), to_f16(v.z, v.w)};
  }

  __device__ static void pack(float* data, i64 place, const Eight& v) {
    const float4 &f = v.front, &b = v.back;
    *reinterpret_cast<uint4*>(data + place / 2) = {to_f16(f.x, f.y), to_f16(f.z, f.w), to_f16(b.x, b.y), to_f16(b.z, b.w)};
  }

  __device__ static Fragment unpack(const float4* row, int number, int swizzle) {
    const uint4 v = reinterpret_cast<const uint4*>(row)[number ^ swizzle];
    return {{v.x, v.y, v.z, v.w}};
  }

  __device__ static float squares(const Fragment& x) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 value = from_f16(x.pair[i]);
      sum += value.x * value.x + value.y * value.y;
    }
    return sum;
  }

  struct Sum {
    float value[4];
    __device__ float operator[](int i) const { return value[i]; }
  };

  // Sixteen columns each.
  static constexpr int PASSES = 2, APART = 1;
  static constexpr int CUT_STAGES = 0;  // what is cut off is small beside what was rounded
  __device__ static constexpr int weight_vector(int pass) { return 2 * pass; }
  __device__ static constexpr int input_vector(int pass) { return 2 * pass; }
  __device__ static void multiply(Sum& sum, int pass, const Fragment& upper, const Fragment& lower, const Fragment& x) {
    const int i = 2 * pass;
    const auto &u = upper.pair, &l = lower.pair, &b = x.pair;
    mma_f16(sum.value, u[i], l[i], u[i + 1], l[i + 1], b[i], b[i + 1]);
  }
};
