// add_relu(x, bias) = max(x + bias, 0) for rows of n elements, `total` in all. NaN stays NaN.
#include "common.cuh"

template <class T> __global__ void __launch_bounds__(256) add_relu(const T* x, const T* bias, T* out, i64 total, i64 n) {
    flat<T>(out, total, aligned(x, out), [&]<class P>(i64 i) { return load<P>(x, i); },
            [&](const auto& p, i64 first, auto& y) {
                i64 c = column(first, n);
#pragma unroll
                for (int k = 0; k < y.N; k++) {
                    auto z = wide(p.at[k]) + wide(bias[c]);
                    y.at[k] = narrow<T>(z <= 0 ? 0 : z);
                    if (++c == n) c = 0;
                }
            });
}
