// softmax(a @ b, DIM): a product whose tiles leave exp(product - maximum of the tile) in c and the statistics of each tile in `stats`, and a
// light pass that joins the statistics and scales c in place; or one kernel, where a cluster of blocks has whole lines. Operands as in matmul.cu.
#include "product_fma.cuh"
#include "product_tma.cuh"

template <class T, int BM, int BN, int WARPS_M, int WARPS_N, int BK, int STAGES, bool A_TURNED, bool B_TURNED, bool WHOLE, int DIM>
__global__ void __launch_bounds__(32 * WARPS_M * WARPS_N)
product_exp_mma(const T* a, i64 a_stride, const T* b, i64 b_stride, T* c, float* stats, i64 m, i64 n, i64 k) {
    product_mma<T, BM, BN, WARPS_M, WARPS_N, BK, STAGES, A_TURNED, B_TURNED, WHOLE, DIM>(a, a_stride, b, b_stride, c, stats, m, n, k);
}

#if __CUDA_ARCH_FEAT_SM90_ALL
// FLIPPED: the softmax is over columns, those of the product's transpose: that is computed, from the transposes of a and b, and c its transpose.
template <class T, int BM, int BN, int STAGES, int PANELS, int CTAS, bool A_TURNED, bool B_TURNED, bool FLIPPED>
__global__ void __launch_bounds__(2 * BM + 128, 1)
product_exp_tma(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap c, float* stats, i64 m, i64 n, i64 k) {
    product_tma<T, BM, BN, STAGES, PANELS, CTAS, 0, A_TURNED, B_TURNED, FLIPPED, ROWS>(a, b, c, stats, m, n, k);
}

// c = softmax(a @ b) over rows: SPAN blocks of a cluster have all of a row.
template <class T, int BM, int BN, int STAGES, int PANELS, int SPAN, bool A_TURNED, bool B_TURNED, bool FLIPPED>
__global__ void __launch_bounds__(2 * BM + 128, 1)
product_softmax_tma(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap c, i64 m, i64 n, i64 k) {
    product_tma<T, BM, BN, STAGES, PANELS, 1, SPAN, A_TURNED, B_TURNED, FLIPPED, ROWS>(a, b, c, nullptr, m, n, k);
}

template <class T, int BM, int BN, int STAGES, bool A_TURNED, bool B_TURNED, bool WHOLE, int DIM>
__global__ void __launch_bounds__(2 * BM, 1)
product_exp_wgmma(const T* a, i64 a_stride, const T* b, i64 b_stride, T* c, float* stats, i64 m, i64 n, i64 k) {
    product_wgmma<T, BM, BN, STAGES, A_TURNED, B_TURNED, WHOLE, DIM>(a, a_stride, b, b_stride, c, stats, m, n, k);
}
#endif

template <class T, int G, bool A_TURNED, bool B_TURNED, bool WHOLE, int DIM>
__global__ void __launch_bounds__(256)
product_exp_fma(const T* a, i64 a_stride, const T* b, i64 b_stride, T* c, Wide<T>* stats, i64 m, i64 n, i64 k) {
    product_fma<T, G, A_TURNED, B_TURNED, WHOLE, DIM>(a, a_stride, b, b_stride, c, stats, m, n, k);
}

// c *= exp(top of its part - maximum) / sum for every row, whose parts have `step` columns: a warp takes a row. P: Vec<T> where rows are 16-byte
// aligned, One<T> elsewhere. The row's first pieces are on their way while its statistics are joined.
template <class T, class P> __global__ void __launch_bounds__(256) scale_rows(T* c, const Wide<T>* stats, i64 m, i64 n, int parts, int step) {
    using F = Wide<T>;
    constexpr int HELD = 8;
    const int lane = threadIdx.x % 32;
    for (i64 i = i64(blockIdx.x) * 8 + threadIdx.x / 32; i < m; i += i64(gridDim.x) * 8) {
        P held[HELD];
        const auto column = [=](i64 from, int h) { return from + (h * 32 + lane) * P::N; };
        const auto fetch = [&](i64 from) {
#pragma unroll
            for (int h = 0; h < HELD; h++)
                if (column(from, h) < n) held[h] = load<P>(c + i * n + column(from, h), 0);
        };
        fetch(0);
        const F first = lane < parts ? stats[lane * m + i] : -infinity<F>();
        Running<F> all;
        for (int p = lane; p < parts; p += 32) {
            Running<F> o;
            o.top = stats[p * m + i];
            o.sum = stats[(parts + p) * m + i];
            all.add(o);
        }
        const F top = over_lanes<31>(all.top, Max());
        const F sum = over_lanes<31>(all.sum * exp_from(all.top, no_less_than_all(top)), Sum());
        const F scale = F(1) / sum, own = exp_from(first, top) * scale;  // of the part of this lane's number
        for (i64 from = 0; from < n; from += 32 * HELD * P::N) {
            if (from > 0) fetch(from);
#pragma unroll
            for (int h = 0; h < HELD; h++) {
                const i64 j = column(from, h);
                const unsigned part = unsigned(j) / unsigned(step);
                F factor = __shfl_sync(0xffffffff, own, part % 32);
                if (j < n) {
                    if (part >= 32) factor = exp_from(stats[part * m + i], top) * scale;
#pragma unroll
                    for (int k = 0; k < P::N; k++) held[h].at[k] = narrow<T>(wide(held[h].at[k]) * factor);
                    store(c + i * n + j, 0, held[h]);
                }
            }
        }
    }
}

// The same for columns, whose parts have `step` rows. A block takes COLS columns, and `turns` times as many rows as its threads have on their way.
template <class T, class P, int COLS>
__global__ void __launch_bounds__(256) scale_columns(T* c, const Wide<T>* stats, i64 m, i64 n, int parts, int step, int turns) {
    using F = Wide<T>;
    constexpr int ACROSS = COLS / P::N, TEAMS = 256 / ACROSS, JOINING = 256 / COLS, HELD = 4;  // JOINING: threads that join a column's parts
    static_assert(256 % COLS == 0 && ACROSS <= 256);
    __shared__ F tops[JOINING][COLS], sums[JOINING][COLS];
    const i64 col0 = i64(blockIdx.x) * COLS;
    const int at = threadIdx.x % ACROSS * P::N;
    const i64 j = col0 + at, row = i64(blockIdx.y) * turns * (TEAMS * HELD) + threadIdx.x / ACROSS;
    P held[HELD];
    const auto fetch = [&](i64 from) {
#pragma unroll
        for (int h = 0; h < HELD; h++)
            if (j < n && from + h * TEAMS < m) held[h] = load<P>(c + (from + h * TEAMS) * n + j, 0);
    };
    fetch(row);
    {
        const i64 j = col0 + threadIdx.x % COLS;
        F top = -infinity<F>(), sum = 0;
        if (j < n) {
#pragma unroll 8
            for (int p = threadIdx.x / COLS; p < parts; p += JOINING) top = larger(top, stats[p * n + j]);
            const F base = no_less_than_all(top);
#pragma unroll 8
            for (int p = threadIdx.x / COLS; p < parts; p += JOINING) sum += stats[(parts + p) * n + j] * exp_from(stats[p * n + j], base);
        }
        tops[threadIdx.x / COLS][threadIdx.x % COLS] = top;
        sums[threadIdx.x / COLS][threadIdx.x % COLS] = sum;
    }
    __syncthreads();
    if (j >= n) return;
    F top[P::N], scale[P::N], factor[P::N];
#pragma unroll
    for (int k = 0; k < P::N; k++) {
        Running<F> all;
        for (int t = 0; t < JOINING; t++) {
            Running<F> o;
            o.top = tops[t][at + k];
            o.sum = sums[t][at + k];
            all.add(o);
        }
        top[k] = all.top;
        scale[k] = F(1) / all.sum;
    }
    i64 part = 0, end = 0;  // of the part that `factor` is of
    for (int turn = 0; turn < turns; turn++) {
        const i64 from = row + turn * (TEAMS * HELD);
        if (turn > 0) fetch(from);
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            const i64 i = from + h * TEAMS;
            if (i >= m) break;
            if (i >= end) {
                part = i / step;
                end = (part + 1) * step;
#pragma unroll
                for (int k = 0; k < P::N; k++) factor[k] = exp_from(stats[part * n + j + k], top[k]) * scale[k];
            }
#pragma unroll
            for (int k = 0; k < P::N; k++) held[h].at[k] = narrow<T>(wide(held[h].at[k]) * factor[k]);
            store(c + i * n + j, 0, held[h]);
        }
    }
}
