// c = a @ b: m x k times k x n. A_TURNED, B_TURNED: the operand is the transpose of what its memory holds; strides go from line to line of memory.
// WHOLE: lines are 16-byte aligned.
#include "product_fma.cuh"
#include "product_tma.cuh"

template <class T, int BM, int BN, int WARPS_M, int WARPS_N, int BK, int STAGES, bool A_TURNED, bool B_TURNED, bool WHOLE>
__global__ void __launch_bounds__(32 * WARPS_M * WARPS_N)
matmul_mma(const T* a, i64 a_stride, const T* b, i64 b_stride, T* c, i64 m, i64 n, i64 k) {
    product_mma<T, BM, BN, WARPS_M, WARPS_N, BK, STAGES, A_TURNED, B_TURNED, WHOLE, PLAIN>(a, a_stride, b, b_stride, c, nullptr, m, n, k);
}

#if __CUDA_ARCH_FEAT_SM90_ALL
template <class T, int BM, int BN, int STAGES, int PANELS, int CTAS, bool A_TURNED, bool B_TURNED, bool FLIPPED>
__global__ void __launch_bounds__(2 * BM + 128, 1)
matmul_tma(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap c, i64 m, i64 n, i64 k) {
    product_tma<T, BM, BN, STAGES, PANELS, CTAS, 0, A_TURNED, B_TURNED, FLIPPED, PLAIN>(a, b, c, nullptr, m, n, k);
}

template <class T, int BM, int BN, int STAGES, bool A_TURNED, bool B_TURNED, bool WHOLE>
__global__ void __launch_bounds__(2 * BM, 1)
matmul_wgmma(const T* a, i64 a_stride, const T* b, i64 b_stride, T* c, i64 m, i64 n, i64 k) {
    product_wgmma<T, BM, BN, STAGES, A_TURNED, B_TURNED, WHOLE, PLAIN>(a, a_stride, b, b_stride, c, nullptr, m, n, k);
}
#endif

template <class T, int G, bool A_TURNED, bool B_TURNED, bool WHOLE>
__global__ void __launch_bounds__(256) matmul_fma(const T* a, i64 a_stride, const T* b, i64 b_stride, T* c, i64 m, i64 n, i64 k) {
    product_fma<T, G, A_TURNED, B_TURNED, WHOLE, PLAIN>(a, a_stride, b, b_stride, c, nullptr, m, n, k);
}

// Of batches: the grid's y and z count the matrices, `inner` of them for each index of the outer dimension; steps, in elements, lead to the next matrix of a factor. c: contiguous.
template <class T> __device__ inline bool begins(const T*& a, const T*& b, T*& c, i64 size, i64 count, i64 inner, i64 a_outer, i64 a_inner, i64 b_outer, i64 b_inner) {
    const i64 i = blockIdx.y + i64(blockIdx.z) * gridDim.y;
    a += i / inner * a_outer + i % inner * a_inner;
    b += i / inner * b_outer + i % inner * b_inner;
    c += i * size;
    return i < count;
}

template <class T, int BM, int BN, int WARPS_M, int WARPS_N, int BK, int STAGES, bool A_TURNED, bool B_TURNED, bool WHOLE>
__global__ void __launch_bounds__(32 * WARPS_M * WARPS_N)
matmul_batch_mma(const T* a, i64 a_stride, const T* b, i64 b_stride, T* c, i64 m, i64 n, i64 k, i64 count, i64 inner, i64 a_outer, i64 a_inner, i64 b_outer, i64 b_inner) {
    if (begins(a, b, c, m * n, count, inner, a_outer, a_inner, b_outer, b_inner))
        product_mma<T, BM, BN, WARPS_M, WARPS_N, BK, STAGES, A_TURNED, B_TURNED, WHOLE, PLAIN>(a, a_stride, b, b_stride, c, nullptr, m, n, k);
}

#if __CUDA_ARCH_FEAT_SM90_ALL
template <class T, int BM, int BN, int STAGES, bool A_TURNED, bool B_TURNED, bool WHOLE>
__global__ void __launch_bounds__(2 * BM, 1)
matmul_batch_wgmma(const T* a, i64 a_stride, const T* b, i64 b_stride, T* c, i64 m, i64 n, i64 k, i64 count, i64 inner, i64 a_outer, i64 a_inner, i64 b_outer, i64 b_inner) {
    if (begins(a, b, c, m * n, count, inner, a_outer, a_inner, b_outer, b_inner))
        product_wgmma<T, BM, BN, STAGES, A_TURNED, B_TURNED, WHOLE, PLAIN>(a, a_stride, b, b_stride, c, nullptr, m, n, k);
}
#endif

template <class T, int G, bool A_TURNED, bool B_TURNED, bool WHOLE>
__global__ void __launch_bounds__(256)
matmul_batch_fma(const T* a, i64 a_stride, const T* b, i64 b_stride, T* c, i64 m, i64 n, i64 k, i64 count, i64 inner, i64 a_outer, i64 a_inner, i64 b_outer, i64 b_inner) {
    if (begins(a, b, c, m * n, count, inner, a_outer, a_inner, b_outer, b_inner))
        product_fma<T, G, A_TURNED, B_TURNED, WHOLE, PLAIN>(a, a_stride, b, b_stride, c, nullptr, m, n, k);
}
