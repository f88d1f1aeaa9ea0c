/* SPDX-License-Identifier: Apache-2.0 */
/* NVRTC as it is found at run time. */
#ifndef EJKI_DEVICE_CUDA_NVRTC_H
#define EJKI_DEVICE_CUDA_NVRTC_H

#include "device/cuda.h"

/* Loads it if that was not done yet. *version as 13000. UNAVAILABLE: where it was looked for, or too old. */
ejk_status ejki_nvrtc_load(int *version);

/* The file it was loaded from; "" if it is not loaded. */
const char *ejki_nvrtc_path(void);

/* The texts that a source includes, itself first, each once, in the order met. INTERNAL: one is not there. */
enum { EJKI_CUDA_MOST_TEXTS = 32 };
typedef struct ejki_cuda_texts_used {
    const ejki_cuda_source *texts[EJKI_CUDA_MOST_TEXTS];
    int32_t count;
} ejki_cuda_texts_used;
ejk_status ejki_cuda_collect(const ejki_cuda_source *source, ejki_cuda_texts_used *out);

#endif
