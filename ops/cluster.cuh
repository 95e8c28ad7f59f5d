// Clusters of blocks (compute capability 9.0 and later; elsewhere a block is one by itself), and what is on its way to shared memory.
#pragma once
#include "common.cuh"

template <class F> struct alignas(2 * sizeof(F)) Pair {
    F a, b;
};

#if __CUDA_ARCH__ >= 900
__device__ inline unsigned cluster_rank() { unsigned r; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
__device__ inline unsigned cluster_size() { unsigned r; asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(r)); return r; }
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.aligned;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }
// Into the shared memory of another block of the cluster, to where `own` is in this one's. That block must have begun, and not ended.
template <class F> __device__ inline void put_in_block(Pair<F>* own, unsigned rank, Pair<F> x) {
    unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(own)), there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
    if constexpr (sizeof(F) == 8) asm volatile("st.shared::cluster.v2.f64 [%0], {%1, %2};" ::"r"(there), "d"(x.a), "d"(x.b) : "memory");
    else asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(there), "f"(x.a), "f"(x.b) : "memory");
}
// What another block of the cluster has where `own` is in this one's.
__device__ inline float of_block(const float* own, unsigned rank) {
    float x;
    asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %1, %2; ld.shared::cluster.f32 %0, [there]; }"
                 : "=f"(x) : "r"(static_cast<unsigned>(__cvta_generic_to_shared(own))), "r"(rank) : "memory");
    return x;
}
#else
__device__ inline unsigned cluster_rank() { return 0; }
__device__ inline unsigned cluster_size() { return 1; }
__device__ inline void cluster_arrive() {}
__device__ inline void cluster_wait() {}
template <class F> __device__ inline void put_in_block(Pair<F>* own, unsigned, Pair<F> x) { *own = x; }
#endif

// blocks of a cluster, at most: what every GPU of compute capability 9.0 can have
constexpr int CLUSTER = 8;

// Elements on their way from memory to shared memory, where the sizes allow it without a stop in registers.
template <class P> __device__ inline void fetch(P* to, const P* from) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(to));
#if __CUDA_ARCH__ >= 800
    if constexpr (sizeof(P) == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
    else if constexpr (sizeof(P) >= 4) asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(from), "n"(sizeof(P)) : "memory");
    else
#endif
        *to = *from;
}
// All that this thread fetched has arrived.
__device__ inline void fetched() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
