// A tile of a @ b for 16-bit elements by the tensor cores' mma.sync, accumulated in float; sm_80 and later.
//
// Pieces of BK of both operands come by cp.async, STAGES of them on the way at once, into shared memory whose 16-byte chunks are permuted
// (chunk ^ line % 8), so that ldmatrix meets no bank twice (as in NVIDIA's "Developing CUDA kernels to push tensor cores to the absolute limit
// on A100", GTC 2020). A line of shared memory is a line of the operand in memory: a row of a, or a column where a is transposed.
#pragma once
#include "product.cuh"

template <class T> struct Mma;
#define TRIPORT_MMA(TYPE, NAME)                                                                                                          \
    template <> struct Mma<TYPE> {                                                                                                       \
        static __device__ inline void run(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {                             \
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                         : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                               \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                                                \
        }                                                                                                                                \
    };
TRIPORT_MMA(half, "f16")
TRIPORT_MMA(bf16, "bf16")
#undef TRIPORT_MMA

template <bool TURNED> __device__ inline void ldmatrix(unsigned (&r)[4], unsigned at) {
    if constexpr (TURNED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}

// The first `count` of the 8 elements of 16 bits at `from`, and 0 for the others, which are not read. One statement for all of them: of a branch
// for each NVRTC's optimiser makes hundreds of blocks, which is most of the time that it takes.
__device__ inline uint4 first_of_eight(const void* from, int count) {
    uint4 v;
    asm("{ .reg .pred p<8>; .reg .b16 x<8>;"
        "setp.gt.s32 p0, %5, 0; setp.gt.s32 p1, %5, 1; setp.gt.s32 p2, %5, 2; setp.gt.s32 p3, %5, 3;"
        "setp.gt.s32 p4, %5, 4; setp.gt.s32 p5, %5, 5; setp.gt.s32 p6, %5, 6; setp.gt.s32 p7, %5, 7;"
        "mov.b16 x0, 0; mov.b16 x1, 0; mov.b16 x2, 0; mov.b16 x3, 0; mov.b16 x4, 0; mov.b16 x5, 0; mov.b16 x6, 0; mov.b16 x7, 0;"
        "@p0 ld.global.b16 x0, [%4]; @p1 ld.global.b16 x1, [%4+2]; @p2 ld.global.b16 x2, [%4+4]; @p3 ld.global.b16 x3, [%4+6];"
        "@p4 ld.global.b16 x4, [%4+8]; @p5 ld.global.b16 x5, [%4+10]; @p6 ld.global.b16 x6, [%4+12]; @p7 ld.global.b16 x7, [%4+14];"
        "mov.b32 %0, {x0, x1}; mov.b32 %1, {x2, x3}; mov.b32 %2, {x4, x5}; mov.b32 %3, {x6, x7}; }"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(__cvta_generic_to_global(from)), "r"(count));
    return v;
}

// LINES lines of WIDTH elements in shared memory, by chunks of 8 elements; 8 chunks of all lines make a panel.
template <int LINES, int WIDTH, int THREADS, bool WHOLE, class T> struct Operand {
    static constexpr int CHUNKS = WIDTH / 8, BYTES = LINES * WIDTH * 2, TURNS = LINES * CHUNKS / THREADS, APART = THREADS / CHUNKS;
    static_assert(LINES * CHUNKS % THREADS == 0 && THREADS % CHUNKS == 0 && CHUNKS % 8 == 0 && APART % 8 == 0);

    static __device__ unsigned offset(int line, int chunk) {
        return chunk / 8 * (LINES * 128) + line * 128 + ((chunk ^ line) & 7) * 16;
    }

    // Fetch the block of the matrix at (line0, at0), which has `lines` lines of `width` elements; what lies outside is 0. A thread fetches the same
    // chunk of lines APART from each other. WHOLE: lines are 16-byte aligned, so cp.async can fetch them.
    static __device__ void fetch(unsigned to, unsigned char* generic, Matrix<T> x, i64 line0, i64 at0, i64 lines, i64 width) {
        const int line = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
        const i64 left = width - at0 - chunk * 8, down = lines - line0 - line;
        const int have = left >= 8 ? 8 : left > 0 ? int(left) : 0, most = down > LINES ? LINES : int(down);
        const T* from = x.at + (line0 + line) * x.stride + at0 + chunk * 8;
        const i64 step = APART * x.stride;
        const unsigned at = offset(line, chunk);
#pragma unroll
        for (int t = 0; t < TURNS; t++) {
            const int count = t * APART < most ? have : 0;  // with 0 nothing is read
            if constexpr (WHOLE) {
                asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to + at + t * APART * 128), "l"(from), "r"(count * 2) : "memory");
            } else {
                *reinterpret_cast<uint4*>(generic + at + t * APART * 128) = first_of_eight(from, count);
            }
            from += step;
        }
    }
};

// Both operands of a tile BM x BN, BK of the inner dimension in each of several slots of shared memory.
template <class T, int BM, int BN, int BK, int THREADS, bool A_TURNED, bool B_TURNED, bool WHOLE> struct Operands {
    using A = Operand<A_TURNED ? BK : BM, A_TURNED ? BM : BK, THREADS, WHOLE, T>;
    using B = Operand<B_TURNED ? BN : BK, B_TURNED ? BK : BN, THREADS, WHOLE, T>;
    static constexpr int SLOT = A::BYTES + B::BYTES;
    Matrix<T> a, b;
    i64 m, n, k;
    Tile tile;
    unsigned base;  // of the slots, and the same as a pointer
    unsigned char* shared;

    __device__ void fetch(int slot, i64 at) const {
        const unsigned to = base + slot * SLOT;
        unsigned char* generic = shared + slot * SLOT;
        if constexpr (A_TURNED) A::fetch(to, generic, a, at, tile.m, k, m);
        else A::fetch(to, generic, a, tile.m, at, m, k);
        if constexpr (B_TURNED) B::fetch(to + A::BYTES, generic + A::BYTES, b, tile.n, at, n, k);
        else B::fetch(to + A::BYTES, generic + A::BYTES, b, at, tile.n, k, n);
    }

    // Begin with the first COUNT pieces of BK, a commit for each whether it is there or not.
    template <int COUNT> __device__ void begin(i64 pieces) const {
#pragma unroll 1
        for (int s = 0; s < COUNT; s++) {
            if (s < pieces) fetch(s, i64(s) * BK);
            asm volatile("cp.async.commit_group;" ::: "memory");
        }
    }
};

// BM x BN by WARPS_M x WARPS_N warps.
template <int BM_, int BN_, int WARPS_M_, int WARPS_N_> struct MmaAcc {
    using F = float;
    using Team = Block;
    static constexpr int BM = BM_, BN = BN_, WARPS_M = WARPS_M_, WARPS_N = WARPS_N_, WM = BM / WARPS_M, WN = BN / WARPS_N;
    static constexpr int M = WM / 8, N = WN / 4, ROW_MATES = 3, COLUMN_MATES = 28, STRIPS = 1;
    float at[WM / 16][WN / 8][4];

    static __device__ int warp_m() { return threadIdx.x / 32 % WARPS_M; }
    static __device__ int warp_n() { return threadIdx.x / 32 / WARPS_M; }
    static __device__ int row0() { return warp_m() * WM + threadIdx.x % 32 / 4; }
    static __device__ int col0() { return warp_n() * WN + threadIdx.x % 4 * 2; }
    static __device__ constexpr int down(int i) { return i * 8; }
    static __device__ constexpr int across(int j) { return j / 2 * 8 + j % 2; }
    static __device__ int in_strip(int i) { return row0() + down(i); }
    static __device__ int row_of(int, int r) { return r; }
    __device__ float& operator()(int i, int j) { return at[i / 2][j / 2][i % 2 * 2 + j % 2]; }
};

// a is m x k, or k x m in memory where A_TURNED; b is k x n, or n x k where B_TURNED. Dynamic shared memory: STAGES * (BM + BN) * BK * 2 bytes, and at
// least what `finish` needs.
template <class T, int BM, int BN, int WARPS_M, int WARPS_N, int BK, int STAGES, bool A_TURNED, bool B_TURNED, bool WHOLE, int RESULT>
__device__ inline void product_mma(const T* a, i64 a_stride, const T* b, i64 b_stride, T* c, float* stats, i64 m, i64 n, i64 k) {
    constexpr int THREADS = 32 * WARPS_M * WARPS_N;
    using Acc = MmaAcc<BM, BN, WARPS_M, WARPS_N>;
    using Both = Operands<T, BM, BN, BK, THREADS, A_TURNED, B_TURNED, WHOLE>;
    using A = typename Both::A;
    using B = typename Both::B;
    extern __shared__ __align__(128) unsigned char shared[];
    const unsigned base = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    const Tile tile = tile_of<BM, BN>(blockIdx.x, m, n);
    const Both both{{a, a_stride}, {b, b_stride}, m, n, k, tile, base, shared};
    const int lane = threadIdx.x % 32, sub = lane / 8, r = lane % 8;
    Acc acc;
    clear(acc);
    const i64 pieces = (k + BK - 1) / BK;
    both.template begin<STAGES - 1>(pieces);
    int slot = 0, next = STAGES - 1;
    for (i64 p = 0; p < pieces; p++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();  // this piece is here for all, and all are done with the one before
        if (p + STAGES - 1 < pieces) both.fetch(next, (p + STAGES - 1) * BK);
        asm volatile("cp.async.commit_group;" ::: "memory");
        const unsigned at_a = base + slot * Both::SLOT, at_b = at_a + A::BYTES;
#pragma unroll
        for (int kk = 0; kk < BK; kk += 16) {
            unsigned fa[Acc::WM / 16][4], fb[Acc::WN / 16][4];
#pragma unroll
            for (int i = 0; i < Acc::WM / 16; i++) {
                const int m0 = acc.warp_m() * Acc::WM + i * 16;
                if constexpr (A_TURNED) ldmatrix<true>(fa[i], at_a + A::offset(kk + sub / 2 * 8 + r, m0 / 8 + sub % 2));
                else ldmatrix<false>(fa[i], at_a + A::offset(m0 + sub % 2 * 8 + r, kk / 8 + sub / 2));
            }
#pragma unroll
            for (int j = 0; j < Acc::WN / 16; j++) {
                const int n0 = acc.warp_n() * Acc::WN + j * 16;
                if constexpr (B_TURNED) ldmatrix<false>(fb[j], at_b + B::offset(n0 + sub / 2 * 8 + r, kk / 8 + sub % 2));
                else ldmatrix<true>(fb[j], at_b + B::offset(kk + sub % 2 * 8 + r, n0 / 8 + sub / 2));
            }
#pragma unroll
            for (int i = 0; i < Acc::WM / 16; i++)
#pragma unroll
                for (int j = 0; j < Acc::WN / 8; j++) Mma<T>::run(acc.at[i][j], fa[i], fb[j / 2][j % 2 * 2], fb[j / 2][j % 2 * 2 + 1]);
        }
        slot = slot + 1 == STAGES ? 0 : slot + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    finish<RESULT>(acc, c, stats, tile, m, n, shared);
}
