/* SPDX-License-Identifier: Apache-2.0 */
/* Keys or values of all tokens: latents times a weight, as project.cu makes them. */
#ifndef EJKI_PAGED_CUDA_PROJECT_CUH
#define EJKI_PAGED_CUDA_PROJECT_CUH

typedef struct project_arguments {
    const void *latents, *weight;
    float *to;                                  /* [tokens, heads, dim] */
    long long to_token, to_head;
    long long batch, token, batch_rows;         /* strides of latents; tokens of a batch entry */
    long long weight_latent, weight_head;       /* strides of [latent, heads, dim] */
    long long tokens, latent, heads, dim;
    int dtype;
} project_arguments;

#endif
