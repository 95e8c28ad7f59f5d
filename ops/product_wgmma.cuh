// A tile of a @ b for 16-bit elements by a warp group's wgmma, accumulated in float; sm_90a.
//
// Shared memory is as in product_mma.cuh, which is what wgmma calls 128-byte swizzling: panels of 128-byte lines, 16-byte chunks permuted by the
// line's number modulo 8. A warp group of 128 threads multiplies 64 rows of the tile.
#pragma once
#include "product_mma.cuh"

// Where an operand stands in shared memory (PTX ISA, "Matrix descriptor"). `panel`: bytes from a panel to the next, for an operand that memory runs
// across; 8 lines are 1024 bytes.
__device__ inline unsigned long long descriptor(unsigned at, unsigned panel) {
    return (at >> 4 & 0x3fff) | static_cast<unsigned long long>(panel >> 4) << 16 | 1024ull >> 4 << 32 | 1ull << 62;
}

#define TRIPORT_4(d, i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define TRIPORT_ACC_64(d) \
    TRIPORT_4(d, 0), TRIPORT_4(d, 1), TRIPORT_4(d, 2), TRIPORT_4(d, 3), TRIPORT_4(d, 4), TRIPORT_4(d, 5), TRIPORT_4(d, 6), TRIPORT_4(d, 7)
#define TRIPORT_ACC_80(d) TRIPORT_ACC_64(d), TRIPORT_4(d, 8), TRIPORT_4(d, 9)
#define TRIPORT_ACC_96(d) TRIPORT_ACC_80(d), TRIPORT_4(d, 10), TRIPORT_4(d, 11)
#define TRIPORT_ACC_112(d) TRIPORT_ACC_96(d), TRIPORT_4(d, 12), TRIPORT_4(d, 13)
#define TRIPORT_ACC_128(d) TRIPORT_ACC_112(d), TRIPORT_4(d, 14), TRIPORT_4(d, 15)
#define TRIPORT_ACC_144(d) TRIPORT_ACC_128(d), TRIPORT_4(d, 16), TRIPORT_4(d, 17)
#define TRIPORT_ACC_160(d) TRIPORT_ACC_144(d), TRIPORT_4(d, 18), TRIPORT_4(d, 19)
#define TRIPORT_ACC_176(d) TRIPORT_ACC_160(d), TRIPORT_4(d, 20), TRIPORT_4(d, 21)
#define TRIPORT_ACC_192(d) TRIPORT_ACC_176(d), TRIPORT_4(d, 22), TRIPORT_4(d, 23)
#define TRIPORT_ACC_208(d) TRIPORT_ACC_192(d), TRIPORT_4(d, 24), TRIPORT_4(d, 25)
#define TRIPORT_ACC_224(d) TRIPORT_ACC_208(d), TRIPORT_4(d, 26), TRIPORT_4(d, 27)
#define TRIPORT_ACC_240(d) TRIPORT_ACC_224(d), TRIPORT_4(d, 28), TRIPORT_4(d, 29)
#define TRIPORT_ACC_256(d) TRIPORT_ACC_240(d), TRIPORT_4(d, 30), TRIPORT_4(d, 31)
#define TRIPORT_REGS_64 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define TRIPORT_REGS_80 TRIPORT_REGS_64 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define TRIPORT_REGS_96 TRIPORT_REGS_80 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define TRIPORT_REGS_112 TRIPORT_REGS_96 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define TRIPORT_REGS_128 TRIPORT_REGS_112 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define TRIPORT_REGS_144 TRIPORT_REGS_128 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define TRIPORT_REGS_160 TRIPORT_REGS_144 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define TRIPORT_REGS_176 TRIPORT_REGS_160 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define TRIPORT_REGS_192 TRIPORT_REGS_176 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define TRIPORT_REGS_208 TRIPORT_REGS_192 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define TRIPORT_REGS_224 TRIPORT_REGS_208 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define TRIPORT_REGS_240 TRIPORT_REGS_224 ",%112,%113,%114,%115,%116,%117,%118,%119"
#define TRIPORT_REGS_256 TRIPORT_REGS_240 ",%120,%121,%122,%123,%124,%125,%126,%127"

// d += a @ b of 64 x 16 and 16 x N, N from 64 to 256 by 16.
template <class T> struct Wgmma;
#define TRIPORT_WGMMA_BY(NAME, COUNT, N, REGISTERS, ACCUMULATORS, A, B, TURNS_A, TURNS_B)                                                         \
    template <int TURN_A, int TURN_B> static __device__ inline void run(float (&d)[COUNT][4], unsigned long long a, unsigned long long b) {      \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" N "k16.f32." NAME "." NAME " {" REGISTERS "}, " A ", " B ", 1, 1, 1, " TURNS_A ", " TURNS_B ";" \
                     : ACCUMULATORS : "l"(a), "l"(b), "n"(TURN_A), "n"(TURN_B));                                                                  \
    }
#define TRIPORT_WGMMA(TYPE, NAME)                                                                                                                 \
    template <> struct Wgmma<TYPE> {                                                                                                              \
        TRIPORT_WGMMA_BY(NAME, 8, "64", TRIPORT_REGS_64, TRIPORT_ACC_64(d), "%32", "%33", "%34", "%35")                                           \
        TRIPORT_WGMMA_BY(NAME, 10, "80", TRIPORT_REGS_80, TRIPORT_ACC_80(d), "%40", "%41", "%42", "%43")                                          \
        TRIPORT_WGMMA_BY(NAME, 12, "96", TRIPORT_REGS_96, TRIPORT_ACC_96(d), "%48", "%49", "%50", "%51")                                          \
        TRIPORT_WGMMA_BY(NAME, 14, "112", TRIPORT_REGS_112, TRIPORT_ACC_112(d), "%56", "%57", "%58", "%59")                                       \
        TRIPORT_WGMMA_BY(NAME, 16, "128", TRIPORT_REGS_128, TRIPORT_ACC_128(d), "%64", "%65", "%66", "%67")                                       \
        TRIPORT_WGMMA_BY(NAME, 18, "144", TRIPORT_REGS_144, TRIPORT_ACC_144(d), "%72", "%73", "%74", "%75")                                       \
        TRIPORT_WGMMA_BY(NAME, 20, "160", TRIPORT_REGS_160, TRIPORT_ACC_160(d), "%80", "%81", "%82", "%83")                                       \
        TRIPORT_WGMMA_BY(NAME, 22, "176", TRIPORT_REGS_176, TRIPORT_ACC_176(d), "%88", "%89", "%90", "%91")                                       \
        TRIPORT_WGMMA_BY(NAME, 24, "192", TRIPORT_REGS_192, TRIPORT_ACC_192(d), "%96", "%97", "%98", "%99")                                       \
        TRIPORT_WGMMA_BY(NAME, 26, "208", TRIPORT_REGS_208, TRIPORT_ACC_208(d), "%104", "%105", "%106", "%107")                                   \
        TRIPORT_WGMMA_BY(NAME, 28, "224", TRIPORT_REGS_224, TRIPORT_ACC_224(d), "%112", "%113", "%114", "%115")                                   \
        TRIPORT_WGMMA_BY(NAME, 30, "240", TRIPORT_REGS_240, TRIPORT_ACC_240(d), "%120", "%121", "%122", "%123")                                   \
        TRIPORT_WGMMA_BY(NAME, 32, "256", TRIPORT_REGS_256, TRIPORT_ACC_256(d), "%128", "%129", "%130", "%131")                                   \
    };
TRIPORT_WGMMA(half, "f16")
TRIPORT_WGMMA(bf16, "bf16")
#undef TRIPORT_WGMMA

// BM x BN of BM / 64 warp groups.
template <int BM_, int BN_, class Team_ = Block> struct WgmmaAcc {
    using F = float;
    using Team = Team_;
    static constexpr int BM = BM_, BN = BN_, WARPS_M = BM / 16, WARPS_N = 1, M = 2, N = BN / 4, ROW_MATES = 3, COLUMN_MATES = 28, STRIPS = 1;
    float at[BN / 8][4];

    static __device__ int warp_m() { return Team::thread() / 32; }
    static __device__ int warp_n() { return 0; }
    static __device__ int row0() { return warp_m() * 16 + threadIdx.x % 32 / 4; }
    static __device__ int col0() { return threadIdx.x % 4 * 2; }
    static __device__ constexpr int down(int i) { return i * 8; }
    static __device__ constexpr int across(int j) { return j / 2 * 8 + j % 2; }
    static __device__ int in_strip(int i) { return row0() + down(i); }
    static __device__ int row_of(int, int r) { return r; }
    __device__ float& operator()(int i, int j) { return at[j / 2][i * 2 + j % 2]; }
};

// Operands as in product_mma.cuh. Dynamic shared memory: 1024 + STAGES * (BM + BN) * 128 bytes. STAGES: at least 4.
template <class T, int BM, int BN, int STAGES, bool A_TURNED, bool B_TURNED, bool WHOLE, int RESULT>
__device__ inline void product_wgmma(const T* a, i64 a_stride, const T* b, i64 b_stride, T* c, float* stats, i64 m, i64 n, i64 k) {
    constexpr int THREADS = 2 * BM, BK = 64;
    using Acc = WgmmaAcc<BM, BN>;
    using Both = Operands<T, BM, BN, BK, THREADS, A_TURNED, B_TURNED, WHOLE>;
    extern __shared__ __align__(128) unsigned char all_shared[];
    const unsigned start = static_cast<unsigned>(__cvta_generic_to_shared(all_shared)), base = (start + 1023) / 1024 * 1024;
    unsigned char* shared = all_shared + (base - start);
    const Tile tile = tile_of<BM, BN>(blockIdx.x, m, n);
    const Both both{{a, a_stride}, {b, b_stride}, m, n, k, tile, base, shared};
    Acc acc;
    clear(acc);
    // A slot is filled again two turns after it was multiplied: then every warp group has waited for that product and met the others since.
    const i64 pieces = (k + BK - 1) / BK;
    both.template begin<STAGES - 2>(pieces);
    int slot = 0, next = STAGES - 2;
    for (i64 p = 0; p < pieces; p++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 3) : "memory");
        // wgmma reads shared memory through another proxy than stores write it. (Not so what cp.async wrote: a fence there would wait for the
        // pieces still on their way, too; CUTLASS's cp.async main loops for sm_90 have none.)
        if (!WHOLE) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        // Rows of this warp group: 64 lines, or the panel of 64 columns.
        const unsigned at_a = base + slot * Both::SLOT + threadIdx.x / 128 * (64 * 128), at_b = base + slot * Both::SLOT + Both::A::BYTES;
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int kk = 0; kk < BK / 16; kk++)
            Wgmma<T>::template run<A_TURNED, !B_TURNED>(acc.at, descriptor(at_a + kk * (A_TURNED ? 2048 : 32), BK * 128),
                                                        descriptor(at_b + kk * (B_TURNED ? 32 : 2048), BK * 128));
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        if (p + STAGES - 2 < pieces) both.fetch(next, (p + STAGES - 2) * BK);
        asm volatile("cp.async.commit_group;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        slot = slot + 1 == STAGES ? 0 : slot + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    finish<RESULT>(acc, c, stats, tile, m, n, shared);
}
