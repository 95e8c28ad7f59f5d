// softmax(a @ b, DIM): a product whose tiles leave exp(product - maximum of the tile) in c and the statistics of each tile in `stats`, and a
// light pass that joins the statistics and scales c in place. Operands as in matmul.cu.
#include "product_fma.cuh"
#include "product_wgmma.cuh"

template <class T, int BM, int BN, int WARPS_M, int WARPS_N, int BK, int STAGES, bool A_TURNED, bool B_TURNED, bool WHOLE, int DIM>
__global__ void __launch_bounds__(32 * WARPS_M * WARPS_N)
product_exp_mma(const T* a, i64 a_stride, const T* b, i64 b_stride, T* c, float* stats, i64 m, i64 n, i64 k) {
    product_mma<T, BM, BN, WARPS_M, WARPS_N, BK, STAGES, A_TURNED, B_TURNED, WHOLE, DIM>(a, a_stride, b, b_stride, c, stats, m, n, k);
}

#if __CUDA_ARCH_FEAT_SM90_ALL
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
// aligned, One<T> elsewhere.
template <class T, class P> __global__ void __launch_bounds__(256) scale_rows(T* c, const Wide<T>* stats, i64 m, i64 n, int parts, int step) {
    using F = Wide<T>;
    const int lane = threadIdx.x % 32;
    for (i64 i = i64(blockIdx.x) * 8 + threadIdx.x / 32; i < m; i += i64(gridDim.x) * 8) {
        Running<F> all;
        for (int p = lane; p < parts; p += 32) {
            Running<F> o;
            o.top = stats[p * m + i];
            o.sum = stats[(parts + p) * m + i];
            all.add(o);
        }
        const F top = over_lanes<31>(all.top, Max());
        const F sum = over_lanes<31>(all.sum * exp_from(all.top, no_less_than_all(top)), Sum());
        const F scale = F(1) / sum;
#pragma unroll 4
        for (i64 j = lane * P::N; j < n; j += 32 * P::N) {
            const F factor = exp_from(stats[unsigned(j) / unsigned(step) * m + i], top) * scale;
            P v = load<P>(c + i * n + j, 0);
#pragma unroll
            for (int k = 0; k < P::N; k++) v.at[k] = narrow<T>(wide(v.at[k]) * factor);
            store(c + i * n + j, 0, v);
        }
    }
}

// The same for columns, whose parts have `step` rows. A block takes COLS columns of `rows` rows, a multiple of `step`.
template <class T, class P, int COLS>
__global__ void __launch_bounds__(256) scale_columns(T* c, const Wide<T>* stats, i64 m, i64 n, int parts, int step, int rows) {
    using F = Wide<T>;
    constexpr int ACROSS = COLS / P::N, TEAMS = 256 / ACROSS, JOINING = 256 / COLS;  // threads that join a column's parts
    static_assert(256 % COLS == 0 && ACROSS <= 256);
    __shared__ F tops[JOINING][COLS], sums[JOINING][COLS];
    const i64 col0 = i64(blockIdx.x) * COLS;
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
    const int at = threadIdx.x % ACROSS * P::N;
    const i64 j = col0 + at;
    if (j >= n) return;
    F top[P::N], scale[P::N];
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
    const i64 end = min(m, (i64(blockIdx.y) + 1) * rows);
    for (i64 row = i64(blockIdx.y) * rows; row < end; row += step) {
        F factor[P::N];
#pragma unroll
        for (int k = 0; k < P::N; k++) factor[k] = exp_from(stats[row / step * n + j + k], top[k]) * scale[k];
        const i64 stop = min(end, row + step);
#pragma unroll 4
        for (i64 i = row + threadIdx.x / ACROSS; i < stop; i += TEAMS) {
            P v = load<P>(c + i * n + j, 0);
#pragma unroll
            for (int k = 0; k < P::N; k++) v.at[k] = narrow<T>(wide(v.at[k]) * factor[k]);
            store(c + i * n + j, 0, v);
        }
    }
}
