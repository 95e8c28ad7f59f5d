// A tile of a @ b by fused multiply-adds, in float (double for double), for every element type and GPU. fp32 is multiplied as fp32.
//
// 16 x 16 threads, each with G x G groups of 4 x 4 elements, 64 apart: threads side by side then read shared memory side by side. The next piece
// of BK is read into registers while this one is multiplied.
#pragma once
#include "product.cuh"

template <class F_, int G> struct FmaAcc {
    using F = F_;
    using Team = Block;
    static constexpr int BM = 64 * G, BN = 64 * G, M = 4 * G, N = 4 * G, WARPS_M = 8, WARPS_N = 1, ROW_MATES = 15, COLUMN_MATES = 16;
    static constexpr int STRIPS = 4;
    F at[M][N];
    static __device__ int warp_m() { return threadIdx.x / 32; }
    static __device__ int warp_n() { return 0; }
    static __device__ int row0() { return threadIdx.x / 16 * 4; }
    static __device__ int col0() { return threadIdx.x % 16 * 4; }
    static __device__ constexpr int down(int i) { return i / 4 * 64 + i % 4; }
    static __device__ constexpr int across(int j) { return j / 4 * 64 + j % 4; }
    static __device__ int in_strip(int i) { return threadIdx.x / 16 * G + i % G; }  // G rows of every thread
    static __device__ int row_of(int strip, int r) { return down(strip * G + r % G) + r / G * 4; }
    __device__ F& operator()(int i, int j) { return at[i][j]; }
};

// One operation for NVRTC's optimiser, which takes a product and a sum apart until its end.
__device__ inline float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ inline double fused(double a, double b, double c) { return __fma_rn(a, b, c); }

// A piece of an operand on its way: B x K elements of it as K lines of B in shared memory. ALONG: memory runs along B, else along K.
template <class T, int B, int K, bool ALONG, bool WHOLE> struct Carried {
    using F = Wide<T>;
    static constexpr int V = WHOLE ? Vec<T>::N : 1, PITCH = B + 4, PIECES = B * K / V, TURNS = (PIECES + 255) / 256;
    static constexpr int WIDTH = (ALONG ? B : K) / V;  // of a line of memory, in pieces
    T got[TURNS][V];

    // lines, width: of the whole matrix in memory; b0, k0: where this piece begins.
    __device__ void read(Matrix<T> x, i64 b0, i64 k0, i64 lines, i64 width) {
#pragma unroll
        for (int t = 0; t < TURNS; t++) {
            const int n = t * 256 + threadIdx.x;
            const i64 line = (ALONG ? k0 : b0) + n / WIDTH, at = (ALONG ? b0 : k0) + n % WIDTH * V;
            const bool here = n < PIECES && line < lines;
            if (WHOLE && here && at + V <= width) {
                const Vec<T> v = load<Vec<T>>(x.at + line * x.stride + at, 0);
#pragma unroll
                for (int k = 0; k < V; k++) got[t][k] = v.at[k % Vec<T>::N];
            } else {
#pragma unroll
                for (int k = 0; k < V; k++) got[t][k] = here && at + k < width ? x.at[line * x.stride + at + k] : T{0};
            }
        }
    }
    __device__ void put(F (&to)[K][PITCH]) const {
#pragma unroll
        for (int t = 0; t < TURNS; t++) {
            const int n = t * 256 + threadIdx.x;
            if (n < PIECES)
#pragma unroll
                for (int k = 0; k < V; k++) {
                    if constexpr (ALONG) to[n / WIDTH][n % WIDTH * V + k] = wide(got[t][k]);
                    else to[n % WIDTH * V + k][n / WIDTH] = wide(got[t][k]);
                }
        }
    }
};

// Operands as in product_mma.cuh. 256 threads.
template <class T, int G, bool A_TURNED, bool B_TURNED, bool WHOLE, int RESULT>
__device__ inline void product_fma(const T* a, i64 a_stride, const T* b, i64 b_stride, T* c, Wide<T>* stats, i64 m, i64 n, i64 k) {
    using F = Wide<T>;
    using Acc = FmaAcc<F, G>;
    constexpr int BK = 16;
    using A = Carried<T, Acc::BM, BK, A_TURNED, WHOLE>;
    using B = Carried<T, Acc::BN, BK, !B_TURNED, WHOLE>;
    struct Pieces { F a[2][BK][A::PITCH], b[2][BK][B::PITCH]; };
    __shared__ __align__(16) unsigned char shared[sizeof(Pieces)];
    Pieces& s = *reinterpret_cast<Pieces*>(shared);
    const Tile tile = tile_of<Acc::BM, Acc::BN>(blockIdx.x, m, n);
    A next_a;
    B next_b;
    auto read = [&](i64 at) {
        next_a.read({a, a_stride}, tile.m, at, A_TURNED ? k : m, A_TURNED ? m : k);
        next_b.read({b, b_stride}, tile.n, at, B_TURNED ? n : k, B_TURNED ? k : n);
    };
    Acc acc;
    clear(acc);
    read(0);
    next_a.put(s.a[0]);
    next_b.put(s.b[0]);
    __syncthreads();
    int half_ = 0;
    for (i64 at = 0; at < k; at += BK) {
        const bool more = at + BK < k;
        if (more) read(at + BK);
#pragma unroll
        for (int kk = 0; kk < BK; kk++) {
            alignas(16) F fa[Acc::M];
            alignas(16) F fb[Acc::N];
#pragma unroll
            for (int i = 0; i < Acc::M; i += Vec<F>::N) reinterpret_cast<Vec<F>&>(fa[i]) = load<Vec<F>>(&s.a[half_][kk][acc.row0() + acc.down(i)], 0);
#pragma unroll
            for (int j = 0; j < Acc::N; j += Vec<F>::N) reinterpret_cast<Vec<F>&>(fb[j]) = load<Vec<F>>(&s.b[half_][kk][acc.col0() + acc.across(j)], 0);
#pragma unroll
            for (int i = 0; i < Acc::M; i++)
#pragma unroll
                for (int j = 0; j < Acc::N; j++) acc(i, j) = fused(fa[i], fb[j], acc(i, j));
        }
        if (more) {  // the other half was last read before the barrier below
            next_a.put(s.a[half_ ^ 1]);
            next_b.put(s.b[half_ ^ 1]);
        }
        __syncthreads();
        half_ ^= 1;
    }
    finish<RESULT>(acc, c, stats, tile, m, n, shared);
}
