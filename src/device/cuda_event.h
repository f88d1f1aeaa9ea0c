/* SPDX-License-Identifier: Apache-2.0 */
/* How the files of this room tell what happens to kernels. */
#ifndef EJKI_DEVICE_CUDA_EVENT_H
#define EJKI_DEVICE_CUDA_EVENT_H

#include "device/cuda.h"

/* Tells this thread's listener; `format` and what follows are those of json_pack(). */
void ejki_cuda_emit(const char *event, const char *format, ...);

/* Unloads what a trial loaded. */
void ejki_cuda_unload(ejki_cuda_trial *trial);

#endif
