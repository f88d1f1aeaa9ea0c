/* SPDX-License-Identifier: Apache-2.0 */
/* What ceiling.cu is launched with; the library's C visible this too. */
#ifndef EJKI_CUDA_CEILING_ARGUMENTS_CUH
#define EJKI_CUDA_CEILING_ARGUMENTS_CUH

typedef struct ceiling_arguments {
    const void *data; /* to be read, in pieces of 16 bytes */
    float *sink;      /* never written, as nothing adds up to what would be */
    long long pieces;
    int steps; /* of multiply-adds */
} ceiling_arguments;

/* What KIND may be, and FLOP of a step of a block of `multiply`. */
#define CEILING_FMA           0
#define CEILING_MMA           1
#define CEILING_WGMMA         2
#define CEILING_THREADS       256
#define CEILING_FLOP_OF_FMA   (2 * 64 * CEILING_THREADS)
#define CEILING_FLOP_OF_MMA   (2 * 16 * 8 * 16 * 16 * CEILING_THREADS / 32)
#define CEILING_FLOP_OF_WGMMA (2 * 64 * 256 * 16 * 8 * CEILING_THREADS / 128)

#endif
