// softmax over rows of n contiguous elements, and over the middle of (outer, n, inner).
//
// What fits on chip is read once: a row in the registers of a warp or of a block or in the shared memory of a cluster of blocks, columns in the registers or
// the shared memory of a cluster, or in that of all of the GPU, some after the others. Longer ones are read twice: a pass for the maximum and the sum (kept up
// to date as in Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018), a pass that writes.
#include "softmax_columns.cuh"
#include "softmax_rows.cuh"
#include "softmax_tall.cuh"
