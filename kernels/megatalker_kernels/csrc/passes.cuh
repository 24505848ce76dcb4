// The order of the passes of a launch, for the warps that compute and for the one that fetches: 0 ... GROUPS - 1 are the
// predictor's, by their position; the talker's comes last.
#pragma once
#include "params.cuh"

constexpr int PROJECTION_PASS = -1;  // before the predictor's, where there is one: the hidden states of the streams, in its width
constexpr int TALKER_PASS = GROUPS;

// Two predictor positions share the first pass when their rows fit.
__device__ inline bool merged(const Launch& launch) { return 2 * launch.rows <= ROWS; }

// Pass 0 is left out where it is merged.
__device__ inline int first_pass(const Launch& launch) {
  return PROJECTS ? PROJECTION_PASS : merged(launch) ? 1 : 0;
}

// Whether a phase follows those of the layers: a head, or the projection, which has no layers.
__device__ inline bool has_last_phase(int pass) { return pass != 0; }
