// What the matrix products share: which tile a block computes, and what becomes of its accumulators: c itself, or the first half of a softmax.
#pragma once
#include "common.cuh"

enum Result { PLAIN = -1, COLUMNS = 0, ROWS = 1 };  // a softmax's dim

// A matrix whose elements stand `stride` apart from line to line; lines are rows, or columns where it is taken as transposed.
template <class T> struct Matrix {
    const T* at;
    i64 stride;
};

struct Tile { i64 m, n; };

// GROUP rows of tiles are walked column by column, so that neighbouring blocks share what they read. There are fewer than 2^31 tiles, so 32 bits hold
// all of it: the machine divides 64 bits by a long function.
template <int BM, int BN> __device__ inline Tile tile_of(unsigned index, i64 m, i64 n) {
    const unsigned tiles_m = (m + BM - 1) / BM, tiles_n = (n + BN - 1) / BN, most = tiles_m < 8 ? tiles_m : 8, in_group = most * tiles_n;
    const unsigned group = index / in_group, at = index % in_group, left = tiles_m - group * most, rows = left < most ? left : most;
    return {i64(group * most + at % rows) * BM, i64(at / rows) * BN};
}

template <class T> struct alignas(2 * sizeof(T)) Two { T x, y; };

// Two numbers rounded, in one instruction where there is one.
template <class T> __device__ inline Two<T> narrow_both(Wide<T> x, Wide<T> y) { return {narrow<T>(x), narrow<T>(y)}; }
#if __CUDA_ARCH__ >= 800
template <> __device__ inline Two<half> narrow_both<half>(float x, float y) {
    unsigned both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(y), "f"(x));
    return __builtin_bit_cast(Two<half>, both);
}
template <> __device__ inline Two<bf16> narrow_both<bf16>(float x, float y) {
    unsigned both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(y), "f"(x));
    return __builtin_bit_cast(Two<bf16>, both);
}
#endif

// Of COUNT values in each thread, over the lanes that differ in the bits of MASK: while the count is even a thread gives half of them to its mate
// and takes the other half, which needs half as many exchanges as if all had all. Returns which of them, from where on, are in x now; scattered():
// how many; leads(): of threads that have the same ones, is this the first?
template <int MASK, int COUNT, int BIT = 16> __device__ constexpr int scattered() {
    if constexpr (BIT == 0) return COUNT;
    else return scattered<MASK, (MASK & BIT) && COUNT % 2 == 0 ? COUNT / 2 : COUNT, BIT / 2>();
}
template <int MASK, int COUNT, int BIT = 16> __device__ inline bool leads() {
    if constexpr (BIT == 0) return true;
    else if constexpr ((MASK & BIT) && COUNT % 2 == 0) return leads<MASK, COUNT / 2, BIT / 2>();
    else return (!(MASK & BIT) || !(threadIdx.x & BIT)) && leads<MASK, COUNT, BIT / 2>();
}
template <int MASK, int COUNT, int BIT = 16, class F, int N, class Join> __device__ inline int scatter_over_lanes(F (&x)[N], Join join) {
    if constexpr (BIT == 0) {
        return 0;
    } else if constexpr (!(MASK & BIT)) {
        return scatter_over_lanes<MASK, COUNT, BIT / 2>(x, join);
    } else if constexpr (COUNT % 2 == 0) {
        const bool upper = threadIdx.x & BIT;
#pragma unroll
        for (int i = 0; i < COUNT / 2; i++) {
            const F low = x[i], high = x[i + COUNT / 2], give = upper ? low : high;
            x[i] = join(upper ? high : low, __shfl_xor_sync(0xffffffff, give, BIT));
        }
        return (upper ? COUNT / 2 : 0) + scatter_over_lanes<MASK, COUNT / 2, BIT / 2>(x, join);
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; i++) x[i] = join(x[i], __shfl_xor_sync(0xffffffff, x[i], BIT));
        return scatter_over_lanes<MASK, COUNT, BIT / 2>(x, join);
    }
}

// Who computes a tile: all of a block.
struct Block {
    static __device__ int thread() { return threadIdx.x; }
    static __device__ void meet() { __syncthreads(); }
};

// Or each warp group of 128 threads one of its own, and none waits for another.
struct WarpGroup {
    static __device__ int thread() { return threadIdx.x % 128; }
    static __device__ void meet() { asm volatile("bar.sync %0, 128;" ::"r"(1 + threadIdx.x / 128) : "memory"); }
};

// The accumulators of a thread of a Team: M x N of a tile, element (i, j) in row0() + down(i), col0() + across(j): what depends on the thread is apart from
// what does not, so that NVRTC need not find out. ROW_MATES: lane bits in which threads with the same rows differ, COLUMN_MATES those with the
// same columns; the rest of them are in other warps, WARPS_M x WARPS_N of them. M / STRIPS rows of each thread make a strip, of BM / STRIPS rows:
// in_strip(i) and row_of(strip, row of it) say which.
template <class Acc> __device__ inline void clear(Acc& acc) {
#pragma unroll
    for (int i = 0; i < Acc::M; i++)
#pragma unroll
        for (int j = 0; j < Acc::N; j++) acc(i, j) = 0;
}

// The lines of a softmax in a tile: its columns for COLUMNS, its rows for ROWS.
template <bool BY_ROWS, class Acc> struct Lines {
    using F = typename Acc::F;
    static constexpr int COUNT = BY_ROWS ? Acc::M : Acc::N, ALONG = BY_ROWS ? Acc::N : Acc::M, LENGTH = BY_ROWS ? Acc::BM : Acc::BN;
    static constexpr int MATES = BY_ROWS ? Acc::ROW_MATES : Acc::COLUMN_MATES, WARPS = BY_ROWS ? Acc::WARPS_N : Acc::WARPS_M;
    static constexpr int LEFT = scattered<MATES, COUNT>();

    static __device__ int line(int l) { return BY_ROWS ? Acc::row0() + Acc::down(l) : Acc::col0() + Acc::across(l); }
    static __device__ F& at(Acc& acc, int l, int k) { return BY_ROWS ? acc(l, k) : acc(k, l); }
    // Is element k of a line in the matrix? left: of this thread's first element, how many there are until its end.
    static __device__ bool inside(int left, int k) { return (BY_ROWS ? Acc::across(k) : Acc::down(k)) < left; }
    static __device__ int left(Tile tile, i64 m, i64 n) {
        const i64 all = BY_ROWS ? n - tile.n : m - tile.m;
        return int(all < Acc::BM + Acc::BN ? all : Acc::BM + Acc::BN) - (BY_ROWS ? Acc::col0() : Acc::row0());
    }

    // From what each thread has of its lines to the whole lines', in scratch[0 .. LENGTH) and, of the first `count` lines, in `to`.
    template <class Join> static __device__ void join_all(F (&own)[COUNT], F* scratch, F* to, i64 count, Join join) {
        const int warp = BY_ROWS ? Acc::warp_n() : Acc::warp_m();
        Acc::Team::meet();
        const int at0 = scatter_over_lanes<MATES, COUNT>(own, join);
        if (leads<MATES, COUNT>())
#pragma unroll
            for (int l = 0; l < LEFT; l++) scratch[warp * LENGTH + line(at0 + l)] = own[l];
        Acc::Team::meet();
#pragma unroll 1
        for (int i = Acc::Team::thread(); i < LENGTH; i += 32 * Acc::WARPS_M * Acc::WARPS_N) {
            F all = scratch[i];
#pragma unroll
            for (int w = 1; w < WARPS; w++) all = join(all, scratch[w * LENGTH + i]);
            scratch[i] = all;
            if (i < count) to[i] = all;
        }
        Acc::Team::meet();
    }
};

// acc = exp(acc - top), top the tile's maximum of each column (RESULT COLUMNS) or row (ROWS), and 0 outside of the matrix; tops, sums: all tops, and all sums of
// acc, of the tile's lines, of which there are `count`. scratch: the team's.
template <int RESULT, class Acc>
__device__ inline void exponentials(Acc& acc, typename Acc::F* tops, typename Acc::F* sums, i64 count, Tile tile, i64 m, i64 n, typename Acc::F* scratch) {
    using F = typename Acc::F;
    using L = Lines<RESULT == ROWS, Acc>;
    const int left = L::left(tile, m, n);
    F own[L::COUNT];
#pragma unroll
    for (int l = 0; l < L::COUNT; l++) {
        own[l] = -infinity<F>();
#pragma unroll
        for (int k = 0; k < L::ALONG; k++) {
            F& x = L::at(acc, l, k);
            if (!L::inside(left, k)) x = -infinity<F>();  // whose exponential is 0
            own[l] = larger(own[l], x);
        }
    }
    L::join_all(own, scratch, tops, count, Max());
#pragma unroll
    for (int l = 0; l < L::COUNT; l++) {
        const F base = no_less_than_all(scratch[L::line(l)]);
        own[l] = 0;
#pragma unroll
        for (int k = 0; k < L::ALONG; k++) {
            F& x = L::at(acc, l, k);
            x = exp_from(x, base);
            own[l] += x;
        }
    }
    L::join_all(own, scratch, sums, count, Sum());
}

// The same with statistics as matmul_softmax.cu joins them to scale c: stats = (all tops, all sums), of (parts, n or m).
template <int RESULT, class Acc>
__device__ inline void exponentials(Acc& acc, typename Acc::F* stats, Tile tile, i64 m, i64 n, unsigned char* shared) {
    const bool by_rows = RESULT == ROWS;
    const i64 lines = by_rows ? m : n, line0 = by_rows ? tile.m : tile.n, part = by_rows ? tile.n / Acc::BN : tile.m / Acc::BM;
    const i64 parts = by_rows ? (n + Acc::BN - 1) / Acc::BN : (m + Acc::BM - 1) / Acc::BM;
    exponentials<RESULT>(acc, stats + part * lines + line0, stats + (parts + part) * lines + line0, lines - line0, tile, m, n,
                         reinterpret_cast<typename Acc::F*>(shared));
}

// PLAIN: c = acc. COLUMNS, ROWS: c = its `exponentials`. The team is the block; `shared`: its memory, not in use any more.
template <int RESULT, class T, class Acc>
__device__ inline void finish(Acc& acc, T* c, typename Acc::F* stats, Tile tile, i64 m, i64 n, unsigned char* shared) {
    if constexpr (RESULT != PLAIN) exponentials<RESULT>(acc, stats, tile, m, n, shared);
    // Through shared memory, so that neighbouring threads write neighbouring elements, 16 bytes each; a strip at a time.
    constexpr int V = Vec<T>::N, PITCH = Acc::BN + V, HEIGHT = Acc::BM / Acc::STRIPS, THREADS = 32 * Acc::WARPS_M * Acc::WARPS_N;
    T* rows = reinterpret_cast<T*>(shared);
    const bool whole = n % V == 0 && aligned(c);
#pragma unroll 1
    for (int strip = 0; strip < Acc::STRIPS; strip++) {
        __syncthreads();
        T* to = rows + Acc::col0();
#pragma unroll
        for (int i = 0; i < Acc::M; i++)
            if (i / (Acc::M / Acc::STRIPS) == strip)
#pragma unroll
                for (int j = 0; j < Acc::N; j += 2)  // columns come in pairs
                    *reinterpret_cast<Two<T>*>(to + Acc::in_strip(i) * PITCH + Acc::across(j)) = narrow_both<T>(acc(i, j), acc(i, j + 1));
        __syncthreads();
        if (whole) {
#pragma unroll 1
            for (int piece = threadIdx.x; piece < HEIGHT * Acc::BN / V; piece += THREADS) {
                const int r = piece / (Acc::BN / V), col = piece % (Acc::BN / V) * V;
                const i64 i = tile.m + Acc::row_of(strip, r), j = tile.n + col;
                if (i < m && j < n) store(c + i * n + j, 0, load<Vec<T>>(rows + r * PITCH + col, 0));
            }
        } else {
#pragma unroll 4
            for (int piece = threadIdx.x; piece < HEIGHT * Acc::BN; piece += THREADS) {
                const int r = piece / Acc::BN, col = piece % Acc::BN;
                const i64 i = tile.m + Acc::row_of(strip, r), j = tile.n + col;
                if (i < m && j < n) c[i * n + j] = rows[r * PITCH + col];
            }
        }
    }
}
