// softmax over rows of n contiguous elements.
#pragma once
#include "softmax.cuh"

// A row seen as 16-byte pieces of memory: the first and the last may stick out, and are read and written by element. I counts elements.
template <class T, class I = i64> struct Row {
    static constexpr int V = Vec<T>::N;
    T* base;  // 16-byte aligned, at or before the row's first element
    I begin, end;  // of the row, in elements from base

    __device__ Row(const T* row, i64 n) {
        begin = I((reinterpret_cast<unsigned long long>(row) & 15) / sizeof(T));
        base = const_cast<T*>(row) - begin;
        end = begin + I(n);
    }
    __device__ I pieces() const { return (end + V - 1) / V; }
    __device__ bool inside(I piece) const { return piece * V >= begin && (piece + 1) * V <= end; }
    __device__ Vec<T> load(I piece, T fill) const {
        const I at = piece * V;
        if (inside(piece)) return ::load<Vec<T>>(base, piece);
        Vec<T> v;
#pragma unroll
        for (int k = 0; k < V; k++) v.at[k] = at + k >= begin && at + k < end ? base[at + k] : fill;
        return v;
    }
    // To another row, `whole` if its alignment is this one's.
    __device__ void store(T* to, I piece, const Vec<T>& v, bool whole) const {
        const I at = piece * V;
        if (whole && inside(piece)) {
            ::store(to - begin, piece, v);
            return;
        }
#pragma unroll
        for (int k = 0; k < V; k++)
            if (at + k >= begin && at + k < end) to[at + k - begin] = v.at[k];
    }
};

// A row in a warp (WARP) or in a block of THREADS, K pieces in each thread. Bandwidth wants many pieces on their way in a multiprocessor: of its
// 2048 threads at least RESIDENT are to fit.
template <class T, int K> constexpr int RESIDENT = sizeof(T) == 8 || K > 4 ? 512 : sizeof(T) == 4 || K <= 2 ? 1536 : 1024;

template <class T, int K, int THREADS, bool WARP>
__global__ void __launch_bounds__(THREADS, WARP || RESIDENT<T, K> < THREADS ? 1 : RESIDENT<T, K> / THREADS) softmax_rows(const T* x, T* out, i64 rows, i64 n) {
    using F = Wide<T>;
    __shared__ F scratch[32];
    constexpr int lanes = WARP ? 32 : THREADS, teams = THREADS / lanes;
    const int lane = threadIdx.x % lanes;
    const T low = narrow<T>(-infinity<F>());
    for (i64 r = i64(blockIdx.x) * teams + threadIdx.x / lanes; r < rows; r += i64(gridDim.x) * teams) {
        const Row<T, int> row(x + r * n, n);
        Vec<T> v[K];
#pragma unroll
        for (int k = 0; k < K; k++) v[k] = row.load(lane + k * lanes, low);
        F e[K][row.V], top = -infinity<F>();
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int j = 0; j < row.V; j++) e[k][j] = wide(v[k].at[j]), top = larger(top, e[k][j]);
        top = WARP ? over_lanes<31>(top, Max()) : over_block(top, scratch, Max());
        const F at = pivot<T>(top);
        F sum = 0;
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int j = 0; j < row.V; j++) e[k][j] = exp_at<T>(e[k][j], at), sum += e[k][j];
        sum = WARP ? over_lanes<31>(sum, Sum()) : over_block(sum, scratch, Sum());
        const F scale = F(1) / sum;
        const bool whole = aligned(out + r * n - row.begin);
#pragma unroll
        for (int k = 0; k < K; k++) {
#pragma unroll
            for (int j = 0; j < row.V; j++) v[k].at[j] = narrow<T>(e[k][j] * scale);
            row.store(out + r * n, lane + k * lanes, v[k], whole);
        }
    }
}

// A row in the shared memory of a cluster of blocks, `turns` 16-byte pieces a thread at most; blocks have turns * THREADS * 16 bytes of dynamic shared memory.
// A thread reads what it has fetched itself, so that only the statistics wait for others. Few threads a block and many blocks a multiprocessor keep the memory
// busy while a cluster waits. WHOLE: 16 bytes divide rows, and pointers are aligned.
template <class T, int THREADS, bool WHOLE>
__global__ void __launch_bounds__(THREADS) softmax_kept_rows(const T* x, T* out, i64 n, int turns) {
    using F = Wide<T>;
    __shared__ F scratch[32];
    __shared__ Pair<F> parts[CLUSTER];
    extern __shared__ __align__(16) unsigned char shared[];
    Vec<T>* const kept = reinterpret_cast<Vec<T>*>(shared) + threadIdx.x;
    const unsigned rank = cluster_rank(), size = cluster_size();
    if (size > 1) cluster_arrive();
    const T *const from = x + blockIdx.x / size * n, low = narrow<T>(-infinity<F>());
    T* const to = out + blockIdx.x / size * n;
    const Row<T> row(from, n);
    const int pieces = row.pieces(), own = (pieces + size - 1) / size, first = rank * own + threadIdx.x, end = min(pieces, int(rank + 1) * own);
    const int mine = first < end ? (end - first + THREADS - 1) / THREADS : 0;
#pragma unroll 8
    for (int k = 0; k < mine; k++) {
        const int p = first + k * THREADS;
        if (WHOLE || row.inside(p)) fetch(kept + k * THREADS, reinterpret_cast<const Vec<T>*>(WHOLE ? from : row.base) + p);
        else kept[k * THREADS] = row.load(p, low);
    }
    fetched();
    Vec<T> most = lowest<T, Vec<T>>();
#pragma unroll 4
    for (int k = 0; k < mine; k++) most = larger_of(most, kept[k * THREADS]);
    Pair<F> all = {wide(most.at[0]), 0};
#pragma unroll
    for (int j = 1; j < row.V; j++) all.a = larger(all.a, wide(most.at[j]));
    all.a = over_block(all.a, scratch, Max());
    F at = pivot<T>(all.a);
#pragma unroll 4
    for (int k = 0; k < mine; k++) {
        const Vec<T> v = kept[k * THREADS];
#pragma unroll
        for (int j = 0; j < row.V; j++) all.b += exp_at<T>(wide(v.at[j]), at);
    }
    all.b = over_block(all.b, scratch, Sum());
    if (size > 1) {
        cluster_wait();  // all of its blocks have begun
        if (threadIdx.x < size) put_in_block(&parts[rank], threadIdx.x, all);
        cluster_arrive(), cluster_wait();
        all = joined<T>(parts, size, 1);
    }
    at = pivot<T>(all.a);
    const F scale = F(1) / all.b;
    const bool alike = aligned(to - row.begin);
#pragma unroll 4
    for (int k = 0; k < mine; k++) {
        Vec<T> v = kept[k * THREADS];
#pragma unroll
        for (int j = 0; j < row.V; j++) v.at[j] = narrow<T>(exp_at<T>(wide(v.at[j]), at) * scale);
        if constexpr (WHOLE) store(to, first + k * THREADS, v);
        else row.store(to, first + k * THREADS, v, alike);
    }
}

// Rows of any length, a block each.
template <class T> __global__ void softmax_long_rows(const T* x, T* out, i64 rows, i64 n) {
    using F = Wide<T>;
    __shared__ F scratch[32];
    const T low = narrow<T>(-infinity<F>());
    for (i64 r = blockIdx.x; r < rows; r += gridDim.x) {
        const Row<T> row(x + r * n, n);
        Running<F> own;
        for (i64 i = threadIdx.x; i < row.pieces(); i += blockDim.x) {
            const Vec<T> v = row.load(i, low);
            F top = own.top;
#pragma unroll
            for (int j = 0; j < row.V; j++) top = larger(top, wide(v.at[j]));
            const F base = no_less_than_all(top);
            own.sum *= exp_from(own.top, base);
#pragma unroll
            for (int j = 0; j < row.V; j++) own.sum += exp_from(wide(v.at[j]), base);
            own.top = top;
        }
        const F top = over_block(own.top, scratch, Max());
        const F base = no_less_than_all(top);
        const F sum = over_block(own.sum * exp_from(own.top, base), scratch, Sum());
        const F scale = F(1) / sum;
        const bool whole = aligned(out + r * n - row.begin);
        for (i64 i = threadIdx.x; i < row.pieces(); i += blockDim.x) {
            Vec<T> v = row.load(i, low);
#pragma unroll
            for (int j = 0; j < row.V; j++) v.at[j] = narrow<T>(exp_from(wide(v.at[j]), top) * scale);
            row.store(out + r * n, i, v, whole);
        }
    }
}
