// Sigmoid, and GELU's tanh form as x * sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3); see gelu.py.
#pragma once
#include "common.cuh"

// exp(-z) for elements of type T: the fast instruction's error, |z| units in the last place of a float, does not show in 16 bits.
template <class T> __device__ inline float exp_minus(float z) { return sizeof(T) == 2 ? __expf(-z) : expf(-z); }
template <class T> __device__ inline double exp_minus(double z) { return exp(-z); }

// x / (1 + e). The fast division gives 0 for e from 2^126 on, where a sigmoid is below every normal number.
__device__ inline float over_one_plus(float x, float e) { return __fdividef(x, 1.0f + e); }
__device__ inline double over_one_plus(double x, double e) { return x / (1.0 + e); }

template <class T, class F> __device__ inline F sigmoid(F z) { return over_one_plus(F(1), exp_minus<T>(z)); }

// exp overflows to infinity only where the result is 0.
template <class T, class F> __device__ inline F gelu_value(F x) {
    return over_one_plus(x, exp_minus<T>(F(1.5957691216057308) * x * (F(1) + F(0.044715) * x * x)));
}
