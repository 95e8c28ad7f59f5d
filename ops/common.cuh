// What triport's CUDA C++ kernels share: element types, 16-byte pieces, reductions over a warp and a block.
//
// Self-contained: NVRTC needs no folder of CUDA headers for it. Arithmetic is in float (double for double): literals here carry an f.
#pragma once

using i64 = long long;

struct half { unsigned short bits; };
struct bf16 { unsigned short bits; };

__device__ inline float wide(half x) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(x.bits));
    return f;
}
__device__ inline float wide(bf16 x) { return __uint_as_float(unsigned(x.bits) << 16); }
__device__ inline float wide(float x) { return x; }
__device__ inline double wide(double x) { return x; }
__device__ inline int wide(int x) { return x; }
__device__ inline i64 wide(i64 x) { return x; }

template <class T> using Wide = decltype(wide(T()));

// Rounded to nearest, ties to even.
template <class T> __device__ inline T narrow(Wide<T> x) { return x; }
template <> __device__ inline half narrow<half>(float x) {
    half h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.bits) : "f"(x));
    return h;
}
template <> __device__ inline bf16 narrow<bf16>(float x) {
#if __CUDA_ARCH__ >= 800
    bf16 b;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(b.bits) : "f"(x));
    return b;
#else
    unsigned u = __float_as_uint(x);
    return {static_cast<unsigned short>(x != x ? 0x7fff : (u + 0x7fff + ((u >> 16) & 1)) >> 16)};
#endif
}

template <class T> __device__ inline T infinity();
template <> __device__ inline float infinity<float>() { return __uint_as_float(0x7f800000); }
template <> __device__ inline double infinity<double>() { return __longlong_as_double(0x7ff0000000000000); }

// The larger of two numbers; NaN stays, unlike fmaxf's.
__device__ inline float larger(float a, float b) {
#if __CUDA_ARCH__ >= 800
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
#else
    return a > b || a != a ? a : b;
#endif
}
__device__ inline double larger(double a, double b) { return a > b || a != a ? a : b; }

// exp(x - base). In float by the hardware's power of 2 (2 ulp; results below the normal numbers are 0). The difference is taken before the
// multiplication: exp(top - base) exp(x - top) is then exp(x - base), however large the numbers are.
__device__ inline float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ inline float exp_from(float x, float base) { return exp2_of((x - base) * 1.4426950408889634f); }
__device__ inline double exp_from(double x, double base) { return exp(x - base); }

// A maximum of -infinity has met no number: in differences it counts as 0.
template <class F> __device__ inline F no_less_than_all(F top) { return top == -infinity<F>() ? F(0) : top; }

// A maximum and the sum of exp(x - maximum) of some numbers.
template <class F> struct Running {
    F top = -infinity<F>(), sum = 0;
    __device__ void add(F x) {
        Running one;
        one.top = x;
        one.sum = exp_from(x, no_less_than_all(x));
        add(one);
    }
    __device__ void add(Running o) {
        const F new_top = larger(top, o.top), base = no_less_than_all(new_top);
        sum = sum * exp_from(top, base) + o.sum * exp_from(o.top, base);
        top = new_top;
    }
};

// --- pieces of a tensor: 16 bytes, or one element ----------------------------------------------------------------------

template <class T> struct alignas(16) Vec {
    static constexpr int N = 16 / sizeof(T);
    T at[N];
};
template <class T> struct One {
    static constexpr int N = 1;
    T at[1];
};

// Pieces of 16 bytes are stored to global memory only.
template <class P, class T> __device__ inline P load(const T* x, i64 piece) { return reinterpret_cast<const P*>(x)[piece]; }
template <class P, class T> __device__ inline void store(T* x, i64 piece, const P& p) {
    if constexpr (sizeof(P) == 16) {  // by hand: the compiler takes some of these stores apart
        uint4 w;
        memcpy(&w, &p, 16);
        asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(reinterpret_cast<P*>(x) + piece)), "r"(w.x), "r"(w.y),
                     "r"(w.z), "r"(w.w) : "memory");
    } else {
        reinterpret_cast<P*>(x)[piece] = p;
    }
}

template <class... T> __device__ inline bool aligned(const T*... x) { return ((reinterpret_cast<unsigned long long>(x) | ...) & 15) == 0; }

// out[i] = value of what `read` finds at i, for n elements in grid-stride order: 16 bytes at a time where `whole` says that all pointers
// are aligned, the last elements and everything else one by one. read<P>(i): piece i of the operands; value(p, first, y): from them the
// results y.at of elements first, first + 1, ... All reads of a turn come before its writes, so out may be an operand.
template <class T, int UNROLL, class P, class Read, class Value>
__device__ inline void flat_pieces(T* out, i64 from, i64 pieces, Read read, Value value) {
    const i64 step = i64(gridDim.x) * blockDim.x * UNROLL;
    for (i64 i = from + i64(blockIdx.x) * blockDim.x * UNROLL + threadIdx.x; i < pieces; i += step) {
        decltype(read.template operator()<P>(i)) got[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (i + u * blockDim.x < pieces) got[u] = read.template operator()<P>(i + u * blockDim.x);
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (i + u * blockDim.x < pieces) {
                P y;
                value(got[u], (i + u * blockDim.x) * P::N, y);
                store(out, i + u * blockDim.x, y);
            }
    }
}

template <class T, int UNROLL = 2, class Read, class Value>
__device__ inline void flat(T* out, i64 n, bool whole, Read read, Value value) {
    const i64 vectors = whole ? n / Vec<T>::N : 0;
    flat_pieces<T, UNROLL, Vec<T>>(out, 0, vectors, read, value);
    flat_pieces<T, UNROLL, One<T>>(out, vectors * Vec<T>::N, n, read, value);
}

// The column of an element of rows of n; 32-bit division where that is enough.
__device__ inline i64 column(i64 element, i64 n) {
    if ((element | n) >> 32 == 0) return unsigned(element) % unsigned(n);
    return element % n;
}

// --- reductions ----------------------------------------------------------------------------------------------------------

struct Max {
    template <class F> __device__ F operator()(F a, F b) const { return larger(a, b); }
};
struct Sum {
    template <class F> __device__ F operator()(F a, F b) const { return a + b; }
};

// Over the lanes of a warp that differ in the bits of MASK; every one of them gets the result.
template <int MASK, class F, class Join> __device__ inline F over_lanes(F x, Join join) {
#pragma unroll
    for (int bit = 16; bit; bit /= 2)
        if (MASK & bit) x = join(x, __shfl_xor_sync(0xffffffff, x, bit));
    return x;
}

// Over a block whose warps are all here; `scratch` holds 32 values. Safe to call again with the same scratch.
template <class F, class Join> __device__ inline F over_block(F x, F* scratch, Join join) {
    x = over_lanes<31>(x, join);
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
    __syncthreads();
    F all = scratch[0];
    for (int w = 1; w < blockDim.x / 32; w++) all = join(all, scratch[w]);
    return all;
}
