// square(x) = x * x over n elements; integers wrap.
#include "common.cuh"

template <class T> __device__ inline T squared(T x) {
    if constexpr (T(0.5f) == T(0)) {  // an overflow of signed integers is undefined in C++
        using U = unsigned long long;
        return T(U(x) * U(x));
    } else {
        return x * x;
    }
}

template <class T> __global__ void __launch_bounds__(256) square(const T* x, T* out, i64 n) {
    flat<T>(out, n, aligned(x, out), [&]<class P>(i64 i) { return load<P>(x, i); },
            [&](const auto& p, i64, auto& y) {
#pragma unroll
                for (int k = 0; k < y.N; k++) y.at[k] = narrow<T>(squared(wide(p.at[k])));
            });
}
