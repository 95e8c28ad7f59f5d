// gelu(x) over n elements.
#include "gelu.cuh"

template <class T> __global__ void __launch_bounds__(256) gelu(const T* x, T* out, i64 n) {
    flat<T>(out, n, aligned(x, out), [&]<class P>(i64 i) { return load<P>(x, i); },
            [&](const auto& p, i64, auto& y) {
#pragma unroll
                for (int k = 0; k < y.N; k++) y.at[k] = narrow<T>(gelu_value<T>(wide(p.at[k])));
            });
}
