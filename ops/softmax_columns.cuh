// softmax over the middle of (outer, n, inner).
//
// A block has THREADS threads: LANES of them stand side by side over a piece P of columns each, and every team of LANES takes every TEAMS'th row. P: Vec<T>
// where inner is a multiple of its N and pointers are aligned, One<T> elsewhere. A cluster of blocks takes LANES * P::N columns of the `across` such groups of
// each of `outer`, its blocks one after the other the rows.
#pragma once
#include "softmax.cuh"

// A thread's place.
template <class T, class P, int THREADS, int LANES> struct Columns {
    static constexpr int TEAMS = THREADS / LANES, N = P::N, COUNT = LANES * N, WARPS = THREADS / 32;
    unsigned rank = cluster_rank(), size = cluster_size();
    int lane = threadIdx.x % LANES;
    i64 origin, step;  // of its first element; from one to the next
    int mine;  // pieces that it has
    __device__ Columns(i64 n, i64 inner, i64 across, int turns) {
        const i64 tile = blockIdx.x / size, first = (tile % across * LANES + lane) * N, row = i64(rank) * TEAMS * turns + threadIdx.x / LANES;
        step = TEAMS * inner;
        origin = (tile / across * n + row) * inner + first;
        mine = first < inner && row < n ? int(min(i64(turns), (n - row + TEAMS - 1) / TEAMS)) : 0;
    }
};

// Statistics of columns among the threads of a cluster.
template <class T, class Place> struct Meeting {
    using F = Wide<T>;
    Pair<F> warps[Place::WARPS][Place::COUNT], blocks[CLUSTER][Place::COUNT], all[Place::COUNT];

    // Joins what the threads have for their columns, whose lanes of a warp have one maximum already. `own` becomes (pivot, 1 / sum) of the whole
    // column. The cluster has arrived once before.
    template <int LANES> __device__ void join(Pair<F> (&own)[Place::N], const Place& at) {
        constexpr int N = Place::N, THREADS = Place::WARPS * 32, OTHERS = 31 & ~(LANES - 1);
#pragma unroll
        for (int j = 0; j < N; j++) own[j].b = over_lanes<OTHERS>(own[j].b, Sum());
        if (threadIdx.x % 32 < LANES)
#pragma unroll
            for (int j = 0; j < N; j++) warps[threadIdx.x / 32][at.lane * N + j] = own[j];
        __syncthreads();
        if (at.size > 1) cluster_wait();  // all of its blocks have begun
        for (int c = threadIdx.x; c < Place::COUNT; c += THREADS) {  // a thread joins a column
            const Pair<F> o = joined<T>(&warps[0][c], Place::WARPS, Place::COUNT);
            if (at.size > 1)
                for (unsigned b = 0; b < at.size; b++) put_in_block(&blocks[at.rank][c], b, o);
            else all[c] = {pivot<T>(o.a), F(1) / o.b};
        }
        if (at.size > 1) {
            cluster_arrive(), cluster_wait();
            for (int c = threadIdx.x; c < Place::COUNT; c += THREADS) {
                const Pair<F> o = joined<T>(&blocks[0][c], at.size, Place::COUNT);
                all[c] = {pivot<T>(o.a), F(1) / o.b};
            }
        }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < N; j++) own[j] = all[at.lane * N + j];
    }
};

// Columns in the registers of a cluster: K pieces a thread, all on their way at once. For few rows, or such as 16 bytes do not divide.
template <class T, class P, int K, int THREADS, int LANES>
__global__ void __launch_bounds__(THREADS, 1024 / THREADS) softmax_held_columns(const T* x, T* out, i64 n, i64 inner, i64 across) {
    using F = Wide<T>;
    using Place = Columns<T, P, THREADS, LANES>;
    constexpr int N = P::N;
    __shared__ Meeting<T, Place> meeting;
    const Place at(n, inner, across, K);
    if (at.size > 1) cluster_arrive();
    P v[K];
#pragma unroll
    for (int k = 0; k < K; k++) v[k] = k < at.mine ? load<P>(x + at.origin + k * at.step, 0) : lowest<T, P>();
    P most = v[0];
#pragma unroll
    for (int k = 1; k < K; k++) most = larger_of(most, v[k]);
    Pair<F> own[N];
#pragma unroll
    for (int j = 0; j < N; j++) {
        own[j] = {over_lanes<31 & ~(LANES - 1)>(wide(most.at[j]), Max()), 0};
        const F pivot_ = pivot<T>(own[j].a);
#pragma unroll
        for (int k = 0; k < K; k++) own[j].b += exp_at<T>(wide(v[k].at[j]), pivot_);
    }
    meeting.template join<LANES>(own, at);
#pragma unroll
    for (int k = 0; k < K; k++) {
#pragma unroll
        for (int j = 0; j < N; j++) v[k].at[j] = narrow<T>(exp_at<T>(wide(v[k].at[j]), own[j].a) * own[j].b);
        if (k < at.mine) store(out + at.origin + k * at.step, 0, v[k]);
    }
}

// Columns in the shared memory of a cluster, `turns` pieces a thread at most; blocks have turns * THREADS * sizeof(P) bytes of dynamic shared memory. A thread
// reads what it has fetched itself, so that only the statistics wait for others.
template <class T, class P, int THREADS, int LANES>
__global__ void __launch_bounds__(THREADS, 768 / THREADS) softmax_columns(const T* x, T* out, i64 n, i64 inner, i64 across, int turns) {
    using F = Wide<T>;
    using Place = Columns<T, P, THREADS, LANES>;
    constexpr int N = P::N;
    __shared__ Meeting<T, Place> meeting;
    extern __shared__ __align__(16) unsigned char shared[];
    P* const kept = reinterpret_cast<P*>(shared) + threadIdx.x;
    const Place at(n, inner, across, turns);
    if (at.size > 1) cluster_arrive();
#pragma unroll 8
    for (int k = 0; k < at.mine; k++) fetch(kept + k * THREADS, reinterpret_cast<const P*>(x + at.origin + k * at.step));
    fetched();
    P most = lowest<T, P>();
#pragma unroll 8
    for (int k = 0; k < at.mine; k++) most = larger_of(most, kept[k * THREADS]);
    Pair<F> own[N];
    F pivots[N];
#pragma unroll
    for (int j = 0; j < N; j++) own[j] = {over_lanes<31 & ~(LANES - 1)>(wide(most.at[j]), Max()), 0}, pivots[j] = pivot<T>(own[j].a);
#pragma unroll 4
    for (int k = 0; k < at.mine; k++) {
        const P p = kept[k * THREADS];
#pragma unroll
        for (int j = 0; j < N; j++) own[j].b += exp_at<T>(wide(p.at[j]), pivots[j]);
    }
    meeting.template join<LANES>(own, at);
#pragma unroll 4
    for (int k = 0; k < at.mine; k++) {
        P p = kept[k * THREADS];
#pragma unroll
        for (int j = 0; j < N; j++) p.at[j] = narrow<T>(exp_at<T>(wide(p.at[j]), own[j].a) * own[j].b);
        store(out + at.origin + k * at.step, 0, p);
    }
}

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

// Maximum and sum of `step` rows of columns, K rows at a time: stats = (all maxima, all sums) of (outer, parts, inner). blockIdx: columns, outer, part.
template <class T, class P, int THREADS, int LANES, int K>
__global__ void __launch_bounds__(THREADS) column_stats(const T* x, Wide<T>* stats, i64 outer, i64 n, i64 inner, i64 step) {
    using F = Wide<T>;
    constexpr int TEAMS = THREADS / LANES, N = P::N;
    __shared__ F scratch[THREADS / 32][LANES * N];
    const i64 parts = gridDim.z, part = blockIdx.z;
    const i64 first = (i64(blockIdx.x) * LANES + threadIdx.x % LANES) * N;
    const i64 origin = i64(blockIdx.y) * n * inner + first;
    const bool inside = first < inner;
    const i64 end = n < (part + 1) * step ? n : (part + 1) * step;
    Pair<F> own[N];
#pragma unroll
    for (int j = 0; j < N; j++) own[j] = {-infinity<F>(), 0};
    if (inside)
        for (i64 row = part * step + threadIdx.x / LANES; row < end; row += TEAMS * K) {
            P v[K];
#pragma unroll
            for (int k = 0; k < K; k++) v[k] = row + k * TEAMS < end ? load<P>(x + origin + (row + k * TEAMS) * inner, 0) : lowest<T, P>();
            P most = v[0];
#pragma unroll
            for (int k = 1; k < K; k++) most = larger_of(most, v[k]);
#pragma unroll
            for (int j = 0; j < N; j++) {
                rescale<T>(own[j], larger(own[j].a, wide(most.at[j])));
                const F at = pivot<T>(own[j].a);
#pragma unroll
                for (int k = 0; k < K; k++) own[j].b += exp_at<T>(wide(v[k].at[j]), at);
            }
        }
    F top[N], sum[N];
#pragma unroll
    for (int j = 0; j < N; j++) top[j] = own[j].a;
    join_teams<THREADS, LANES, N>(top, scratch, Max());
#pragma unroll
    for (int j = 0; j < N; j++) rescale<T>(own[j], top[j]), sum[j] = own[j].b;
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
            for (int j = 0; j < N; j++) sum[j] += sums[p * inner + j] * weight<T>(tops[p * inner + j], pivot<T>(top[j]));
    join_teams<THREADS, LANES, N>(sum, scratch, Sum());
    if (!inside) return;
#pragma unroll
    for (int j = 0; j < N; j++) sum[j] = F(1) / sum[j], top[j] = pivot<T>(top[j]);
    const i64 origin = i64(blockIdx.y) * n * inner + first;
    const i64 end = n < (part + 1) * step ? n : (part + 1) * step;
#pragma unroll 4
    for (i64 row = part * step + team; row < end; row += TEAMS) {
        P p = load<P>(x + origin + row * inner, 0);
#pragma unroll
        for (int j = 0; j < N; j++) p.at[j] = narrow<T>(exp_at<T>(wide(p.at[j]), top[j]) * sum[j]);
        store(out + origin + row * inner, 0, p);
    }
}
