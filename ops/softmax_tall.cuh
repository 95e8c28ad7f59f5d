// softmax over columns longer than a cluster keeps, read once: by blocks that are all on the GPU at once (a cooperative launch) and stay.
//
// A group of blocks has LANES pieces side by side of all rows, a slice, and then the next slice that is its own. Of a slice each of its blocks holds `step`
// rows, and tells the others their statistics by memory: a pair of a maximum and a sum for each column, and no flag, since a pair that is there is never all
// zeros. Blocks that share a slice's columns join what all have, and tell the result. That takes some 5 us where memory is busy, so a slice waits DELAY turns
// for its result: until then it lies in shared memory, for the last turn in registers, while the statistics of the next slices are taken.
#pragma once
#include "softmax_columns.cuh"

constexpr int DELAY = 2;
// slices in shared memory: one on its way, one whose statistics are taken, one that waits
constexpr int SLICES = 3;
// of a group's blocks a lane hears so many, and so many blocks may it have, at most
constexpr int HEARD = 9, GROUP = 32 * HEARD;

// A block's barrier of this number, which `count` threads arrive at; those of `sync` wait for all of them.
__device__ inline void barrier_arrive(int number, int count) {
    __syncwarp();
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(count) : "memory");
}
__device__ inline void barrier_sync(int number, int count) {
    __syncwarp();
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(count) : "memory");
}
// What this thread fetches from here on is one more group; all but the last N groups have arrived.
__device__ inline void fetched_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ inline void wait_for_all_but() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

__device__ inline void tell(Pair<float>* to, Pair<float> pair) {
    unsigned long long bits;
    memcpy(&bits, &pair, 8);
    asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(bits) : "memory");
}
// The first `count` of K pairs, `stride` apart, once all of them have been told. The others are those of no numbers.
template <int K> __device__ inline void hear(Pair<float> (&pairs)[K], const Pair<float>* from, int count, int stride) {
    const Pair<float> none = {-infinity<float>(), 0};
    unsigned long long bits[K];
    bool all;
    do {
        all = true;
#pragma unroll
        for (int k = 0; k < K; k++) {
            memcpy(&bits[k], &none, 8);
            if (k < count) asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(bits[k]) : "l"(from + k * stride) : "memory");
        }
#pragma unroll
        for (int k = 0; k < K; k++) all &= bits[k] != 0;
    } while (!all);
    memcpy(&pairs, &bits, sizeof bits);
}

// Nothing has been told yet: before softmax_tall_columns.
extern "C" __global__ void __launch_bounds__(256) softmax_tall_begin(Pair<float>* told, i64 count) {
    for (i64 k = i64(blockIdx.x) * 256 + threadIdx.x; k < count; k += i64(gridDim.x) * 256) told[k] = {0, 0};
}

// x, out: (outer, n, inner), `slices` of them in all, `across` side by side. told: (slices, group + 1, LANES * N) pairs: of each block, and of all together.
// Blocks: any number of groups of `group` blocks, THREADS threads that compute and one for each column of a slice that hears what other blocks tell; TURNS *
// THREADS / LANES rows are as many as `step` may be.
template <class T, int THREADS, int TURNS, int LANES>
__global__ void __launch_bounds__(THREADS + LANES * Vec<T>::N, 1) softmax_tall_columns(const T* x, T* out, Pair<Wide<T>>* told, i64 n, i64 inner, i64 across,
                                                                                      i64 slices, i64 group_, i64 step) {
    using F = Wide<T>;
    using P = Vec<T>;
    constexpr int N = P::N, COUNT = LANES * N, WARPS = THREADS / 32, ALL = THREADS + COUNT, OTHERS = 31 & ~(LANES - 1);
    // numbers of barriers: those who compute among themselves; from RESULT on, with those who hear, one for each result on its way
    constexpr int TAKEN = 1, TOLD = 2, RESULT = 3;
    __shared__ Pair<F> warps[WARPS][COUNT], results[DELAY + 1][COUNT];
    extern __shared__ __align__(16) unsigned char shared[];
    const int group = int(group_), groups = gridDim.x / group, first = blockIdx.x / group, rank = blockIdx.x % group;
    const int count = int((slices - first + groups - 1) / groups);
    auto slice = [&](int turn) { return first + i64(turn) * groups; };
    auto of_blocks = [&](int turn) { return told + slice(turn) * (group + 1) * COUNT; };

    if (threadIdx.x >= THREADS) {
        const int column = threadIdx.x - THREADS, warp = column / 32, lane = column % 32;
        for (int turn = 0; turn < count; turn++) {
            Pair<F>* const blocks = of_blocks(turn);
            Pair<F>* const all = blocks + group * COUNT;
            for (int c = rank + warp * group; c < COUNT; c += group * (COUNT / 32)) {  // columns that this block joins, a warp each
                Pair<F> heard[HEARD];
                hear(heard, blocks + lane * COUNT + c, (group - lane + 31) / 32, 32 * COUNT);
                Pair<F> own = joined<T>(heard, HEARD, 1);
                rescale<T>(own, over_lanes<31>(own.a, Max()));
                own.b = over_lanes<31>(own.b, Sum());
                if (lane == 0) tell(all + c, {pivot<T>(own.a), F(1) / own.b});
            }
            Pair<F> result[1];
            hear(result, all + column, 1, 0);
            results[turn % (DELAY + 1)][column] = result[0];
            barrier_arrive(RESULT + turn % (DELAY + 1), ALL);
        }
        return;
    }

    const int lane = threadIdx.x % LANES;
    const i64 row = rank * step + threadIdx.x / LANES, end = min(n, (rank + 1) * step), stride = THREADS / LANES * inner;
    const int rows = row < end ? int((end - row + THREADS / LANES - 1) / (THREADS / LANES)) : 0;
    P* const kept = reinterpret_cast<P*>(shared) + threadIdx.x;  // a thread reads what it has fetched itself
    auto kept_of = [&](int turn) { return kept + turn % SLICES * TURNS * THREADS; };
    // Where this thread's first piece of a slice is, and how many it has there.
    auto origin = [&](int turn, int& mine) {
        const i64 column = (slice(turn) % across * LANES + lane) * N;
        mine = column < inner ? rows : 0;
        return (slice(turn) / across * n + row) * inner + column;
    };
    auto get = [&](int turn) {
        if (turn < count) {
            int mine;
            const T* const from = x + origin(turn, mine);
#pragma unroll
            for (int k = 0; k < TURNS; k++)
                if (k < mine) fetch(kept_of(turn) + k * THREADS, reinterpret_cast<const P*>(from + k * stride));
        }
        fetched_group();
    };

#pragma unroll
    for (int turn = 0; turn < SLICES; turn++) get(turn);
    P before[TURNS];  // of the slice that ends in this turn
    for (int turn = 0; turn < count + DELAY; turn++) {
        if (turn < count) {
            if (turn == 0) wait_for_all_but<SLICES - 1>();
            else wait_for_all_but<SLICES - 2>();
            int mine;
            origin(turn, mine);
            P now[TURNS];
#pragma unroll
            for (int k = 0; k < TURNS; k++) now[k] = k < mine ? kept_of(turn)[k * THREADS] : lowest<T, P>();
            P most = now[0];
#pragma unroll
            for (int k = 1; k < TURNS; k++) most = larger_of(most, now[k]);
#pragma unroll
            for (int bit = 16; bit >= LANES; bit /= 2) {  // 16 bytes at a time: of 16-bit numbers two a shuffle
                unsigned words[4];
                P other;
                memcpy(words, &most, 16);
#pragma unroll
                for (int j = 0; j < 4; j++) words[j] = __shfl_xor_sync(0xffffffff, words[j], bit);
                memcpy(&other, words, 16);
                most = larger_of(most, other);
            }
#pragma unroll
            for (int j = 0; j < N; j++) {
                Pair<F> own = {wide(most.at[j]), 0};
                const F at = pivot<T>(own.a);
#pragma unroll
                for (int k = 0; k < TURNS; k++) own.b += exp_at<T>(wide(now[k].at[j]), at);
                own.b = over_lanes<OTHERS>(own.b, Sum());
                if (threadIdx.x % 32 < LANES) warps[threadIdx.x / 32][lane * N + j] = own;
            }
            barrier_sync(TAKEN, THREADS);
            if (threadIdx.x < COUNT) tell(of_blocks(turn) + rank * COUNT + threadIdx.x, joined<T>(&warps[0][threadIdx.x], WARPS, COUNT));
            barrier_sync(TOLD, THREADS);  // before the stores below: what is told behind them waits until they are on their way
        }
        const int ends = turn - DELAY;
        if (ends >= 0) {
            int mine;
            T* const to = out + origin(ends, mine);
            barrier_sync(RESULT + ends % (DELAY + 1), ALL);
            Pair<F> own[N];
#pragma unroll
            for (int j = 0; j < N; j++) own[j] = results[ends % (DELAY + 1)][lane * N + j];
#pragma unroll
            for (int k = 0; k < TURNS; k++) {
#pragma unroll
                for (int j = 0; j < N; j++) before[k].at[j] = narrow<T>(exp_at<T>(wide(before[k].at[j]), own[j].a) * own[j].b);
                if (k < mine) store(to + k * stride, 0, before[k]);
            }
        }
        if (ends + 1 >= 0) {  // what ends in the next turn goes to registers, and another slice is fetched to where it was
#pragma unroll
            for (int k = 0; k < TURNS; k++) before[k] = kept_of(ends + 1)[k * THREADS];
            get(ends + 1 + SLICES);
        }
    }
}
