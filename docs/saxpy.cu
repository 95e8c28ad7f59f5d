// a x + y, element by element, in any element type: an example of a kernel for `cuda_op` (docs/my_cuda_op.py).
#include "common.cuh"

template <class T> __global__ void saxpy(const T* x, const T* y, double a, T* out, long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) out[i] = narrow<T>(Wide<T>(a) * wide(x[i]) + wide(y[i]));
}
