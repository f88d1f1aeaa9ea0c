/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled kernels on disk. Nothing here fails a call: what cannot be read or written is told as an event. */
#ifndef EJKI_DEVICE_CUDA_CACHE_H
#define EJKI_DEVICE_CUDA_CACHE_H

#include "device/cuda.h"

/* SHA-256 of all that a kernel is made from but the compiler. */
typedef struct ejki_cuda_key {
    unsigned char bytes[32];
} ejki_cuda_key;
ejk_status ejki_cuda_key_make(const char *architecture, const ejki_cuda_source *source,
                              const ejki_cuda_constant *constants, int32_t count,
                              ejki_cuda_key *out);

/*
 * Reads the kernel that a version of NVRTC compiled; with 0, that of the newest version there is. False: there is
 * none that is sound. `name` is the kernel's, for events.
 */
bool ejki_cuda_cache_read(const ejki_cuda_key *key, int version, const char *name,
                          ejki_cuda_image *out);

/* Keeps one, and removes the oldest files if there is too much. */
void ejki_cuda_cache_write(const ejki_cuda_key *key, int version, const char *name,
                           const ejki_cuda_image *image);

/*
 * Version of NVRTC that this process would load, without loading it: as noted when it was last loaded; 0 =
 * not known.
 */
int ejki_cuda_cache_noted(void);
void ejki_cuda_cache_note(int version, const char *path);

/* Fills what ejk_cuda_info says of the cache. */
void ejki_cuda_cache_look(ejk_cuda_info *out);

#endif
