// Float32 products on tensor cores, which take shorter numbers: a number becomes the sum of a high and a low part, and what two low
// parts would add is left out. Weights and the inputs of products lie in memory packed, four neighbouring columns in sixteen bytes.
// numbers.py says which of these structures a source is compiled for.
#pragma once
#include "primitive.cuh"

__device__ inline float4 operator+(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

__device__ inline float4 float4_at(const float* data, i64 index) { return *reinterpret_cast<const float4*>(data + index); }

// Parts in TensorFloat-32, for numbers of any size: the error is below 2^-21 of the value. Packed means as it is.
struct Tensorfloats {
  struct Four {
    u32 high[4], low[4];
  };

  __device__ static float4 pack(float4 v) { return v; }

  __device__ static void pack_pair(float* row, int column, float2 v) { *reinterpret_cast<float2*>(row + column) = v; }

  __device__ static Four unpack(float4 v) {
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

  // Of what high parts give with each other, and with low parts.
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

// Parts in float16, twice as fast, for numbers within its range; low parts are kept 2^11 times as large, so that they stay in it, too:
// the error is below 2^-22 of the value, or 2^-36.
struct Halves {
  struct Four {
    u32 high[2], low[2];
  };
  static constexpr float ENLARGED = 2048;

  __device__ static u32 low(u32 high, float first, float second) {
    const float2 rounded = from_f16(high);
    return to_f16((first - rounded.x) * ENLARGED, (second - rounded.y) * ENLARGED);
  }

  __device__ static float4 pack(float4 v) {
    const u32 front = to_f16(v.x, v.y), back = to_f16(v.z, v.w);
    return {__uint_as_float(front), __uint_as_float(back), __uint_as_float(low(front, v.x, v.y)),
            __uint_as_float(low(back, v.z, v.w))};
  }

  // Two of a four, from an even column on.
  __device__ static void pack_pair(float* row, int column, float2 v) {
    float* const at = row + column / 4 * 4 + column % 4 / 2;
    const u32 high = to_f16(v.x, v.y);
    at[0] = __uint_as_float(high), at[2] = __uint_as_float(low(high, v.x, v.y));
  }

  __device__ static Four unpack(float4 v) {
    return {{__float_as_uint(v.x), __float_as_uint(v.y)}, {__float_as_uint(v.z), __float_as_uint(v.w)}};
  }

  __device__ static float squares(const Four& x) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 high = from_f16(x.high[i]), low = from_f16(x.low[i]);
      const float first = fmaf(low.x, 1 / ENLARGED, high.x), second = fmaf(low.y, 1 / ENLARGED, high.y);
      sum += first * first + second * second;
    }
    return sum;
  }

  struct Sum {
    float high[4], low[4];
    __device__ float operator[](int i) const { return fmaf(low[i], 1 / ENLARGED, high[i]); }
  };

  static constexpr int PASSES = 3;
  __device__ static void multiply(Sum& sum, int pass, const Four& upper, const Four& lower, const Four& x) {
    const auto &u = pass == 0 ? upper.low : upper.high, &l = pass == 0 ? lower.low : lower.high, &b = pass == 1 ? x.low : x.high;
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
  __device__ static void multiply(Sum& sum, int, const Four& upper, const Four& lower, const Four& x) {
    mma_f16(sum.high, upper.high[0], lower.high[0], upper.high[1], lower.high[1], x.high[0], x.high[1]);
  }
};
