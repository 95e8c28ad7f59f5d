// Statistics of softmax: maxima and sums of exp(x - maximum), of parts that are joined.
#pragma once
#include "cluster.cuh"

// exp(x - top) of elements of type T, `top` given as its pivot. Of half, whose numbers cannot overflow by the factor, the pivot is top log2(e) and there is
// one operation less: what rounding the pivot costs is the same in every term and in their sum. A top of -infinity, which has met no number, counts as 0.
template <class T> __device__ inline Wide<T> pivot(Wide<T> top) { return no_less_than_all(top); }
template <> __device__ inline float pivot<half>(float top) { return 1.4426950408889634f * no_less_than_all(top); }
template <class T> __device__ inline Wide<T> exp_at(Wide<T> x, Wide<T> at) { return exp_from(x, at); }
template <> __device__ inline float exp_at<half>(float x, float at) { return exp2_of(fmaf(x, 1.4426950408889634f, -at)); }

// What makes a sum at the pivot of `top` one at the pivot `to`. A sum that has met no number is 0 and stays it, where the quotient could be infinite.
template <class T> __device__ inline Wide<T> weight(Wide<T> top, Wide<T> to) { return top == -infinity<Wide<T>>() ? 0 : exp_from(top, to); }
template <> __device__ inline float weight<half>(float top, float to) { return top == -infinity<float>() ? 0 : exp2_of(pivot<half>(top) - to); }

// Statistics of some lines of numbers: `top`, and `sum` at its pivot.
template <class T, class F> __device__ inline void rescale(Pair<F>& own, F top) {
    own.b *= weight<T>(own.a, pivot<T>(top));
    own.a = top;
}
// Those of `count` parts, `stride` apart.
template <class T, class F> __device__ inline Pair<F> joined(const Pair<F>* parts, int count, int stride) {
    Pair<F> all = parts[0];
    for (int p = 1; p < count; p++) all.a = larger(all.a, parts[p * stride].a);
    const F to = pivot<T>(all.a);
    all.b = 0;
    for (int p = 0; p < count; p++) all.b += parts[p * stride].b * weight<T>(parts[p * stride].a, to);
    return all;
}

template <class T> constexpr bool IS_HALF = false;
template <> constexpr bool IS_HALF<half> = true;

// The larger elements of two pieces, NaN where one is. 16 bits: two at a time.
template <class T> __device__ inline One<T> larger_of(One<T> a, One<T> b) {
    const Wide<T> y = wide(b.at[0]);
    return y > wide(a.at[0]) || y != y ? b : a;
}
template <class T> __device__ inline Vec<T> larger_of(Vec<T> a, Vec<T> b) {
#if __CUDA_ARCH__ >= 800
    if constexpr (sizeof(T) == 2) {
        unsigned u[4], v[4];
        memcpy(u, &a, 16), memcpy(v, &b, 16);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if constexpr (IS_HALF<T>) asm("max.NaN.f16x2 %0, %0, %1;" : "+r"(u[j]) : "r"(v[j]));
            else asm("max.NaN.bf16x2 %0, %0, %1;" : "+r"(u[j]) : "r"(v[j]));
        }
        memcpy(&a, u, 16);
        return a;
    }
#endif
#pragma unroll
    for (int j = 0; j < a.N; j++) {
        if constexpr (sizeof(T) >= 4) a.at[j] = larger(a.at[j], b.at[j]);
        else a.at[j] = larger_of(One<T>{{a.at[j]}}, One<T>{{b.at[j]}}).at[0];
    }
    return a;
}

template <class T, class P> __device__ inline P lowest() {
    P p;
#pragma unroll
    for (int j = 0; j < P::N; j++) p.at[j] = narrow<T>(-infinity<Wide<T>>());
    return p;
}
