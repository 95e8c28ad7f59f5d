// Tiles of a @ b for 16-bit elements by wgmma from what the Tensor Memory Accelerator fetches; sm_90a.
//
// Blocks stay and walk the tiles. One warp of a block fetches pieces of BK of both operands, as long as slots of shared memory are free; each warp group
// multiplies 64 rows of a tile, hands slots back and stores its rows by itself. The CTAS blocks of a cluster have tiles one below the other: each fetches a
// share of b's piece for all of them, so that the second cache is read that much less. (What CUTLASS calls a persistent, warp-specialized, cooperative
// kernel; barriers as in the PTX ISA, "mbarrier". Operands in shared memory as in product_wgmma.cuh.)
#pragma once
#include "cluster.cuh"
#include "product_wgmma.cuh"

struct alignas(64) TensorMap { unsigned char bytes[128]; };

// A barrier in shared memory, at `at`. None of its operations orders memory beyond the block: what is fetched comes, and is multiplied, by the asynchronous
// proxy, and ordering a cluster's memory would wait for a tile's stores at every piece.
struct Barrier {
    unsigned at;
    __device__ void init(int arrivals) const { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory"); }
    __device__ void expect(int bytes) const { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory"); }
    // In block `rank` of the cluster.
    __device__ void arrive(unsigned rank) const {
        asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(at), "r"(rank)
                     : "memory");
    }
    // Until the phase of that parity has ended.
    __device__ void wait(unsigned parity) const {
        asm volatile("{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; @!done bra again; }" ::"r"(at), "r"(parity) : "memory");
    }
};

// Orders no memory, unlike cluster_arrive().
__device__ inline void all_of_cluster() { asm volatile("barrier.cluster.arrive.relaxed; barrier.cluster.wait;" ::: "memory"); }

// True in one thread of a warp, as far as the compiler sees as well.
__device__ inline bool elected() {
    unsigned one;
    asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(one));
    return one;
}

// A box of the matrix at (x, y) to `to` of CTAS blocks of the cluster, each of which is told by the barrier at the same place of its own memory.
template <int CTAS> __device__ inline void fetch_box(unsigned to, const TensorMap& map, i64 x, i64 y, Barrier barrier) {
    if constexpr (CTAS == 1)
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to), "l"(&map), "r"(int(x)),
                     "r"(int(y)), "r"(barrier.at) : "memory");
    else
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to), "l"(&map),
                     "r"(int(x)), "r"(int(y)), "r"(barrier.at), "h"(static_cast<unsigned short>((1 << CTAS) - 1)) : "memory");
}

// A warp group's 64 x BN, rounded, through PANELS pieces of shared memory, of 64 columns each, to where c's map says; what lies outside of c is not written. Where BN
// is no multiple of 64 the last piece has columns of the one before once more. FLIPPED: c is the transpose. The group goes on while they are written.
template <int PANELS, bool FLIPPED, class T, class Acc> __device__ inline void store_boxes(Acc& acc, const TensorMap& c_map, Tile tile, unsigned char* own) {
    constexpr int EACH = 64, BYTES = 64 * EACH * 2, PIECES = (Acc::BN + EACH - 1) / EACH;
    static_assert(PIECES % PANELS == 0);
    // Where the line of one of four matrices of 8 x 8 goes whose address this lane tells stmatrix: their rows, or columns, are lines.
    const int lane = threadIdx.x % 32, line = lane % 8, which = lane / 8, down = Acc::warp_m() * 2 + which % 2, right = which / 2;
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(own)) + ((FLIPPED ? right : down) * 8 + line) * 128;
#pragma unroll
    for (int g = 0; g < PIECES; g++) {
        const int from = g * EACH < Acc::BN - EACH ? g * EACH : Acc::BN - EACH;
        const unsigned panel = g % PANELS * BYTES;
        if (Acc::Team::thread() == 0) asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PANELS - 1) : "memory");  // what was here is read
        Acc::Team::meet();
#pragma unroll
        for (int chunk = 0; chunk < 8; chunk += 2) {
            unsigned x[4];
#pragma unroll
            for (int q = 0; q < 4; q++) {
                const int j = from / 4 + (chunk + q / 2) * 2;
                x[q] = __builtin_bit_cast(unsigned, narrow_both<T>(acc(q % 2, j), acc(q % 2, j + 1)));
            }
            if constexpr (FLIPPED)
                asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to + panel + chunk * (8 * 128) + (down ^ line) * 16), "r"(x[0]),
                             "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory");
            else
                asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to + panel + ((chunk + right) ^ line) * 16), "r"(x[0]), "r"(x[1]),
                             "r"(x[2]), "r"(x[3]) : "memory");
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        Acc::Team::meet();
        if (Acc::Team::thread() == 0) {
            const int m = int(tile.m), n = int(tile.n) + from;
            asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3]; cp.async.bulk.commit_group;" ::"l"(&c_map), "r"(FLIPPED ? m : n),
                         "r"(FLIPPED ? n : m), "r"(static_cast<unsigned>(__cvta_generic_to_shared(own)) + panel) : "memory");
        }
    }
}

// The softmax of a warp group's exponentials, whose rows SPAN blocks of the cluster have together. tops, sums: of the group's rows, at the same place of each.
template <int SPAN, class Acc> __device__ inline void join_blocks(Acc& acc, const float* tops, const float* sums, float* scratch) {
    using L = Lines<true, Acc>;
    for (int i = Acc::Team::thread(); i < L::LENGTH; i += 128) {
        float top = tops[i], sum = sums[i];
        if constexpr (SPAN > 1) {
            float theirs[SPAN];
            top = -infinity<float>();
            sum = 0;
#pragma unroll
            for (int b = 0; b < SPAN; b++) top = larger(top, theirs[b] = of_block(tops + i, b));
            const float base = no_less_than_all(top);
#pragma unroll
            for (int b = 0; b < SPAN; b++) sum += of_block(sums + i, b) * exp_from(theirs[b], base);
        }
        scratch[i] = exp_from(tops[i], no_less_than_all(top)) / sum;
    }
    Acc::Team::meet();
#pragma unroll
    for (int l = 0; l < L::COUNT; l++) {
        const float factor = scratch[L::line(l)];
#pragma unroll
        for (int k = 0; k < L::ALONG; k++) L::at(acc, l, k) *= factor;
    }
}

// a_map, b_map, c_map: of the matrices as they lie in memory, in boxes of 64 elements by BM lines (64 where A_TURNED), by BN / CTAS (64 / CTAS where not B_TURNED)
// and by 64. BN: a multiple of 64, or B_TURNED and a multiple of 16. RESULT: PLAIN or ROWS; FLIPPED: c is the transpose of the product. SPAN: blocks of a cluster that have
// a softmax's rows together, so that c is the softmax; 0: without, and clusters are of CTAS.
// Dynamic shared memory: 1024 + STAGES * ((BM + BN) * 128 + 16) + BM * PANELS * 128 bytes, and with a SPAN BM * 16. Threads: 2 * BM + 128.
template <class T, int BM, int BN, int STAGES, int PANELS, int CTAS, int SPAN, bool A_TURNED, bool B_TURNED, bool FLIPPED, int RESULT>
__device__ inline void product_tma(const TensorMap& a_map, const TensorMap& b_map, const TensorMap& c_map, float* stats, i64 m, i64 n, i64 k) {
    static_assert(CTAS == 1 || SPAN == 0);
    static_assert(BN % 64 == 0 || B_TURNED);
    constexpr int BK = 64, GROUPS = BM / 64, A_BYTES = BM * BK * 2, SLOT = A_BYTES + BN * BK * 2, STORED = 64 * PANELS * 128, CLUSTER = SPAN > 0 ? SPAN : CTAS;
    extern __shared__ __align__(128) unsigned char all_shared[];
    const unsigned start = static_cast<unsigned>(__cvta_generic_to_shared(all_shared)), base = (start + 1023) / 1024 * 1024;
    const unsigned stored = base - start + STAGES * SLOT, barriers = start + stored + GROUPS * STORED;
    const auto full = [=](int slot) { return Barrier{barriers + slot * 8}; };
    const auto empty = [=](int slot) { return Barrier{barriers + (STAGES + slot) * 8}; };
    const unsigned rank = cluster_rank();
    if (threadIdx.x == 0) {
        asm volatile("prefetch.tensormap [%0]; prefetch.tensormap [%1]; prefetch.tensormap [%2];" ::"l"(&a_map), "l"(&b_map), "l"(&c_map) : "memory");
        for (int s = 0; s < STAGES; s++) {
            full(s).init(1);
            empty(s).init(CTAS * GROUPS * 4);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    all_of_cluster();

    const unsigned rows = (m + BM * CTAS - 1) / (BM * CTAS), tiles = SPAN > 0 ? rows : rows * unsigned((n + BN - 1) / BN);
    const int pieces = int((k + BK - 1) / BK), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const auto tile_at = [=](unsigned index) {
        if constexpr (SPAN > 0) return Tile{i64(index) * BM, i64(rank) * BN};
        Tile tile = tile_of<BM * CTAS, BN>(index, m, n);
        if constexpr (CTAS > 1) tile.m += rank * BM;
        return tile;
    };
    const unsigned first = blockIdx.x / CLUSTER, after = gridDim.x / CLUSTER;
    int slot = 0;
    unsigned turn = 0;  // of the slots, of which the lowest bit counts
    const auto step = [&] {
        if (++slot == STAGES) {
            slot = 0;
            turn ^= 1;
        }
    };
    // Registers go round where a block was launched with 168 a thread, or 128: the warp group that fetches gives up what the two others, or three, take. More would be waited for forever.
    if (warp >= GROUPS * 4) {
        if constexpr (GROUPS == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if constexpr (GROUPS == 3) asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
#pragma unroll 1
        for (unsigned index = first; index < tiles; index += after) {
            if (warp == GROUPS * 4 && elected()) {
                const Tile tile = tile_at(index);
#pragma unroll 1
                for (int p = 0; p < pieces; p++, step()) {
                    const unsigned to_a = base + slot * SLOT, to_b = to_a + A_BYTES, share = CTAS > 1 ? rank : 0;
                    const i64 at = i64(p) * BK;
                    empty(slot).wait(turn ^ 1);
                    full(slot).expect(SLOT);
                    if constexpr (A_TURNED)
#pragma unroll
                        for (int g = 0; g < GROUPS; g++) fetch_box<1>(to_a + g * (BK * 128), a_map, tile.m + g * 64, at, full(slot));
                    else fetch_box<1>(to_a, a_map, at, tile.m, full(slot));
                    if constexpr (B_TURNED) fetch_box<CTAS>(to_b + share * (BN / CTAS * 128), b_map, at, tile.n + share * (BN / CTAS), full(slot));
                    else
#pragma unroll
                        for (int g = 0; g < BN / 64; g++)
                            fetch_box<CTAS>(to_b + g * (BK * 128) + share * (BK / CTAS * 128), b_map, tile.n + g * 64, at + share * (BK / CTAS), full(slot));
                }
            }
            __syncwarp();
            if constexpr (SPAN > 1) all_of_cluster();  // it counts all threads: the cluster's statistics of this tile are there
        }
        // What the last slots are told comes from the other block, too: not after this one has ended.
        if (CTAS > 1 && warp == GROUPS * 4 && elected())
#pragma unroll 1
            for (int s = 0; s < STAGES; s++, step()) empty(slot).wait(turn ^ 1);
        __syncwarp();
    } else {
        if constexpr (GROUPS == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        if constexpr (GROUPS == 3) asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
        using Acc = WgmmaAcc<64, BN, WarpGroup>;
        const int group = warp / 4;
        const unsigned long long from_a = descriptor(base + group * (64 * 128), BK * 128), from_b = descriptor(base + A_BYTES, BK * 128);  // in the first slot
        unsigned char* own = all_shared + stored + group * STORED;
        const unsigned whom = CTAS > 1 ? lane : rank;  // this lane tells that a slot is free
        int parity = 0;
#pragma unroll 1
        for (unsigned index = first; index < tiles; index += after) {
            Tile tile = tile_at(index);
            tile.m += group * 64;
            Acc acc;
            clear(acc);
            int before = 0;
#pragma unroll 1
            for (int p = 0; p < pieces; p++) {
                full(slot).wait(turn);
                const unsigned long long in_a = from_a + slot * (SLOT >> 4), in_b = from_b + slot * (SLOT >> 4);
                asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
                for (int kk = 0; kk < BK / 16; kk++)
                    Wgmma<T>::template run<A_TURNED, !B_TURNED>(acc.at, in_a + kk * ((A_TURNED ? 2048 : 32) >> 4), in_b + kk * ((B_TURNED ? 32 : 2048) >> 4));
                asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 1;" ::: "memory");
                if (p > 0 && lane < CTAS) empty(before).arrive(whom);  // the piece before is multiplied
                before = slot;
                step();
            }
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
            if (lane < CTAS) empty(before).arrive(whom);
            if constexpr (RESULT != PLAIN) {
                if (Acc::Team::thread() == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");  // `own` is free
                if constexpr (SPAN > 0) {
                    // Statistics of this tile and of the one before, which others may be reading still.
                    float* const tops = reinterpret_cast<float*>(all_shared + stored + GROUPS * STORED + STAGES * 16) + (parity * GROUPS + group) * 128;
                    exponentials<RESULT>(acc, tops, tops + 64, i64(64), tile, m, n, reinterpret_cast<float*>(own));
                    if constexpr (SPAN > 1) cluster_arrive(), cluster_wait();
                    join_blocks<SPAN>(acc, tops, tops + 64, reinterpret_cast<float*>(own));
                    parity ^= 1;
                } else if (tile.m < m) {
                    exponentials<RESULT>(acc, stats, tile, m, n, own);
                }
            }
            if (tile.m < m) store_boxes<PANELS, FLIPPED, T>(acc, c_map, tile, own);
        }
        if (Acc::Team::thread() == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    }
    // What another block fetches for this one, reads of it or tells it needs its memory until all are done.
    all_of_cluster();
}
