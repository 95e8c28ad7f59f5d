// softmax over rows of n contiguous elements, and over the middle of (outer, n, inner).
//
// What fits on chip is read once: a row in the registers of a warp or of a block, a block of columns in the shared memory of a cluster of blocks. Longer
// ones are read twice: a pass for the maximum and the sum (kept up to date as in Milakov and Gimelshein, "Online normalizer calculation for
// softmax", 2018), a pass that writes.
#include "common.cuh"

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
    __device__ Vec<T> load(I piece, T fill) const {
        const I at = piece * V;
        if (at >= begin && at + V <= end) return ::load<Vec<T>>(base, piece);
        Vec<T> v;
#pragma unroll
        for (int k = 0; k < V; k++) v.at[k] = at + k >= begin && at + k < end ? base[at + k] : fill;
        return v;
    }
    // To another row, `whole` if its alignment is this one's.
    __device__ void store(T* to, I piece, const Vec<T>& v, bool whole) const {
        const I at = piece * V;
        if (whole && at >= begin && at + V <= end) {
            ::store(to - begin, piece, v);
            return;
        }
#pragma unroll
        for (int k = 0; k < V; k++)
            if (at + k >= begin && at + k < end) to[at + k - begin] = v.at[k];
    }
};

// exp(x - top), x an element of type T. Of half, whose numbers cannot overflow by the factor, by one operation less: what rounding `top` times it
// costs is the same in every term and in their sum.
template <class T, class F> __device__ inline F exp_in_row(T, F x, F top) { return exp_from(x, top); }
__device__ inline float exp_in_row(half, float x, float top) { return exp2_of(fmaf(x, 1.4426950408889634f, -1.4426950408889634f * top)); }

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
        F sum = 0;
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int j = 0; j < row.V; j++) e[k][j] = exp_in_row(v[k].at[j], e[k][j], top), sum += e[k][j];
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

// --- columns -------------------------------------------------------------------------------------------------------------
// A block has THREADS threads: LANES of them stand side by side over a piece P of columns each, and every team of LANES takes every
// TEAMS'th row.

// Joins what the threads of a block have for the same columns; every one of them gets the result.
template <int THREADS, int LANES, int N, class F, class Join>
__device__ inline void join_teams(F (&own)[N], F (&scratch)[THREADS / 32][LANES * N], Join join) {
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / 32;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < N; j++) {
        own[j] = over_lanes<31 & ~(LANES - 1)>(own[j], join);
        if (threadIdx.x % 32 < LANES) scratch[warp][lane * N + j] = own[j];
    }
    __syncthreads();
    for (int c = threadIdx.x; c < LANES * N; c += THREADS) {  // a thread joins a column
        F all = scratch[0][c];
#pragma unroll
        for (int w = 1; w < THREADS / 32; w++) all = join(all, scratch[w][c]);
        scratch[0][c] = all;
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < N; j++) own[j] = scratch[0][lane * N + j];
}

#if __CUDA_ARCH__ >= 900
__device__ inline unsigned cluster_rank() { unsigned r; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
__device__ inline unsigned cluster_size() { unsigned r; asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(r)); return r; }
__device__ inline void cluster_sync() {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
// What stands at `own` in the shared memory of another block of the cluster.
template <class F> __device__ inline F from_block(const F* own, unsigned rank) {
    unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(own)), there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
    F x;
    if constexpr (sizeof(F) == 8) asm volatile("ld.shared::cluster.f64 %0, [%1];" : "=d"(x) : "r"(there) : "memory");
    else asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(there) : "memory");
    return x;
}
#else
__device__ inline unsigned cluster_rank() { return 0; }
__device__ inline unsigned cluster_size() { return 1; }
__device__ inline void cluster_sync() {}
template <class F> __device__ inline F from_block(const F* own, unsigned) { return *own; }
#endif

// Elements on their way from memory to shared memory, where the sizes allow it without a stop in registers.
template <class P> __device__ inline void fetch(P* to, const P* from) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(to));
#if __CUDA_ARCH__ >= 800
    if constexpr (sizeof(P) == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
    else if constexpr (sizeof(P) >= 4) asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(from), "n"(sizeof(P)) : "memory");
    else
#endif
        *to = *from;
}
__device__ inline void fetched() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Columns in the shared memory of a cluster of blocks: n is at most cluster size * `turns` * TEAMS. A cluster takes LANES * P::N columns of the
// `across` such pieces of each of `outer`. P: Vec<T> where inner is a multiple of its N and pointers are aligned, One<T> elsewhere. A thread reads
// what it has fetched itself, so that only the statistics wait for others; the fewer threads a block has, the less its joins cost. Dynamic shared
// memory: turns * THREADS * sizeof(P) bytes.
template <class T, class P, int THREADS, int LANES>
__global__ void __launch_bounds__(THREADS) softmax_columns(const T* x, T* out, i64 n, i64 inner, i64 across, int turns) {
    using F = Wide<T>;
    constexpr int TEAMS = THREADS / LANES, N = P::N;
    __shared__ F scratch[THREADS / 32][LANES * N], tops[LANES * N], joined[2][LANES * N];
    extern __shared__ __align__(16) unsigned char shared[];
    P* const kept = reinterpret_cast<P*>(shared) + threadIdx.x;
    const unsigned rank = cluster_rank(), size = cluster_size();
    const int lane = threadIdx.x % LANES;
    const i64 tile = blockIdx.x / size, first = (tile % across * LANES + lane) * N;
    const i64 row0 = i64(rank) * TEAMS * turns + threadIdx.x / LANES, step = TEAMS * inner;
    const i64 origin = (tile / across * n + row0) * inner + first;
    const int mine = first < inner && row0 < n ? int(min(i64(turns), (n - row0 + TEAMS - 1) / TEAMS)) : 0;
#pragma unroll 8
    for (int k = 0; k < mine; k++) fetch(kept + k * THREADS, reinterpret_cast<const P*>(x + origin + k * step));
    fetched();
    F top[N], base[N], sum[N];
#pragma unroll
    for (int j = 0; j < N; j++) top[j] = -infinity<F>();
#pragma unroll 4
    for (int k = 0; k < mine; k++) {
        const P p = kept[k * THREADS];
#pragma unroll
        for (int j = 0; j < N; j++) top[j] = larger(top[j], wide(p.at[j]));
    }
    join_teams<THREADS, LANES, N>(top, scratch, Max());
#pragma unroll
    for (int j = 0; j < N; j++) base[j] = no_less_than_all(top[j]), sum[j] = 0;
#pragma unroll 4
    for (int k = 0; k < mine; k++) {
        const P p = kept[k * THREADS];
#pragma unroll
        for (int j = 0; j < N; j++) sum[j] += exp_from(wide(p.at[j]), base[j]);
    }
    if (size > 1 && threadIdx.x < LANES)
#pragma unroll
        for (int j = 0; j < N; j++) tops[lane * N + j] = top[j];
    join_teams<THREADS, LANES, N>(sum, scratch, Sum());
    if (size > 1) {
        // tops and scratch[0] hold this block's maxima and sums, where the others of the cluster read them.
        cluster_sync();
        for (int c = threadIdx.x; c < LANES * N; c += THREADS) {
            Running<F> all;
#pragma unroll 8
            for (unsigned b = 0; b < size; b++) {
                Running<F> o;
                o.top = from_block(&tops[c], b);
                o.sum = from_block(&scratch[0][c], b);
                all.add(o);
            }
            joined[0][c] = all.top;
            joined[1][c] = all.sum;
        }
        cluster_sync();  // nor may a block go while another reads its memory
#pragma unroll
        for (int j = 0; j < N; j++) top[j] = joined[0][lane * N + j], sum[j] = joined[1][lane * N + j];
    }
#pragma unroll
    for (int j = 0; j < N; j++) sum[j] = F(1) / sum[j];
#pragma unroll 4
    for (int k = 0; k < mine; k++) {
        P p = kept[k * THREADS];
#pragma unroll
        for (int j = 0; j < N; j++) p.at[j] = narrow<T>(exp_from(wide(p.at[j]), top[j]) * sum[j]);
        store(out + origin + k * step, 0, p);
    }
}

// Maximum and sum of `step` rows of columns: stats = (all maxima, all sums) of (outer, parts, inner). blockIdx: columns, outer, part.
template <class T, class P, int THREADS, int LANES>
__global__ void __launch_bounds__(THREADS) column_stats(const T* x, Wide<T>* stats, i64 outer, i64 n, i64 inner, i64 step) {
    using F = Wide<T>;
    constexpr int TEAMS = THREADS / LANES, N = P::N;
    __shared__ F scratch[THREADS / 32][LANES * N];
    const i64 parts = gridDim.z, part = blockIdx.z;
    const i64 first = (i64(blockIdx.x) * LANES + threadIdx.x % LANES) * N;
    const i64 origin = i64(blockIdx.y) * n * inner + first;
    const bool inside = first < inner;
    const i64 end = n < (part + 1) * step ? n : (part + 1) * step;
    Running<F> own[N];
    if (inside)
        for (i64 row = part * step + threadIdx.x / LANES; row < end; row += TEAMS) {
            const P p = load<P>(x + origin + row * inner, 0);
#pragma unroll
            for (int j = 0; j < N; j++) own[j].add(wide(p.at[j]));
        }
    F top[N], sum[N];
#pragma unroll
    for (int j = 0; j < N; j++) top[j] = own[j].top;
    join_teams<THREADS, LANES, N>(top, scratch, Max());
#pragma unroll
    for (int j = 0; j < N; j++) sum[j] = own[j].sum * exp_from(own[j].top, no_less_than_all(top[j]));
    join_teams<THREADS, LANES, N>(sum, scratch, Sum());
    if (inside && threadIdx.x < LANES)
#pragma unroll
        for (int j = 0; j < N; j++) {
            const i64 at = (i64(blockIdx.y) * parts + part) * inner + first + j;
            stats[at] = top[j];
            stats[outer * parts * inner + at] = sum[j];
        }
}

// Joins the statistics of all parts, its teams taking turns, and writes this part's rows.
template <class T, class P, int THREADS, int LANES>
__global__ void __launch_bounds__(THREADS) column_scale(const T* x, T* out, const Wide<T>* stats, i64 outer, i64 n, i64 inner, i64 step) {
    using F = Wide<T>;
    constexpr int TEAMS = THREADS / LANES, N = P::N;
    __shared__ F scratch[THREADS / 32][LANES * N];
    const i64 parts = gridDim.z, part = blockIdx.z, team = threadIdx.x / LANES;
    const i64 first = (i64(blockIdx.x) * LANES + threadIdx.x % LANES) * N;
    const bool inside = first < inner;
    const F* const tops = stats + i64(blockIdx.y) * parts * inner + first;
    const F* const sums = tops + outer * parts * inner;
    F top[N], sum[N];
#pragma unroll
    for (int j = 0; j < N; j++) top[j] = -infinity<F>(), sum[j] = 0;
    if (inside)
        for (i64 p = team; p < parts; p += TEAMS)
#pragma unroll
            for (int j = 0; j < N; j++) top[j] = larger(top[j], tops[p * inner + j]);
    join_teams<THREADS, LANES, N>(top, scratch, Max());
    if (inside)
        for (i64 p = team; p < parts; p += TEAMS)
#pragma unroll
            for (int j = 0; j < N; j++) sum[j] += sums[p * inner + j] * exp_from(tops[p * inner + j], no_less_than_all(top[j]));
    join_teams<THREADS, LANES, N>(sum, scratch, Sum());
    if (!inside) return;
#pragma unroll
    for (int j = 0; j < N; j++) sum[j] = F(1) / sum[j];
    const i64 origin = i64(blockIdx.y) * n * inner + first;
    const i64 end = n < (part + 1) * step ? n : (part + 1) * step;
#pragma unroll 4
    for (i64 row = part * step + team; row < end; row += TEAMS) {
        P p = load<P>(x + origin + row * inner, 0);
#pragma unroll
        for (int j = 0; j < N; j++) p.at[j] = narrow<T>(exp_from(wide(p.at[j]), top[j]) * sum[j]);
        store(out + origin + row * inner, 0, p);
    }
}
