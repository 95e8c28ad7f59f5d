// add_mul_act(x, y, bias, m) = act(x + m y + bias) for rows of n elements, `total` in all. ACT: 0 relu, 1 sigmoid, 2 gelu (tanh form),
// 3 silu, 4 tanh. out may be x.
#include "gelu.cuh"

__device__ inline float tangent(float z) { return tanhf(z); }
__device__ inline double tangent(double z) { return tanh(z); }

template <class T, int ACT, class F> __device__ inline F activate(F z) {
    if constexpr (ACT == 0) return z <= 0 ? 0 : z;
    else if constexpr (ACT == 1) return sigmoid<T>(z);
    else if constexpr (ACT == 2) return gelu_value<T>(z);
    else if constexpr (ACT == 3) return over_one_plus(z, exp_minus<T>(z));
    else return tangent(z);
}

template <class T, int ACT>
__global__ void __launch_bounds__(256) add_mul_act(const T* x, const T* y, const T* bias, T* out, double m, i64 total, i64 n) {
    const auto scale = Wide<T>(m);
    flat<T>(out, total, aligned(x, y, out),
            [&]<class P>(i64 i) {
                struct { P x, y; } both = {load<P>(x, i), load<P>(y, i)};
                return both;
            },
            [&](const auto& p, i64 first, auto& to) {
                i64 c = column(first, n);
#pragma unroll
                for (int k = 0; k < to.N; k++) {
                    to.at[k] = narrow<T>(activate<T, ACT>(wide(p.x.at[k]) + scale * wide(p.y.at[k]) + wide(bias[c])));
                    if (++c == n) c = 0;
                }
            });
}
