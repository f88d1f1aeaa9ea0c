/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels of native_sparse_attention are launched with. */
#ifndef EJKI_NATIVE_SPARSE_ARGUMENTS_CUH
#define EJKI_NATIVE_SPARSE_ARGUMENTS_CUH

#include "operations/attention/native_sparse/problem.cuh"

#define NSA_THREADS 128
#define NSA_ROWS    16 /* rows that a block multiplies a stream with: query heads, or keys */
#define NSA_COLUMNS 32 /* of the stream at a time */

/* What gradients keep of a row's softmax in a branch: the weight of a score z is exp(z - most) part. */
typedef struct nsa_kept {
    float most, part, inner;
} nsa_kept;

typedef struct nsa_arguments {
    nsa_problem p;
    float *mean_key, *mean_value;     /* [B,Hkv,rows][pitch], float32 */
    float *d_mean_key, *d_mean_value; /* likewise */
    nsa_size key_pitch, value_pitch;  /* multiples of 4 */
    float *importance;                /* [blocks of the grid][rows] */
    int *chosen, *count;              /* [B,Hkv,T][slots], [B,Hkv,T] */
    nsa_kept *kept[NSA_BRANCHES];     /* [B,T,Hq] */
    float *total;                     /* [B,T,Hq,Dv]: of forward(), if selected.cu does the rest */
    int rests;                        /* it does */
    int whole_query, whole_key, whole_value, whole_out; /* rows begin at multiples of four elements */
} nsa_arguments;

#endif
