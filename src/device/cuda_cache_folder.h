/* SPDX-License-Identifier: Apache-2.0 */
/* The folder of compiled kernels: its files by name, and how many there may be. */
#ifndef EJKI_DEVICE_CUDA_CACHE_FOLDER_H
#define EJKI_DEVICE_CUDA_CACHE_FOLDER_H

#include "base/base.h"

/*
 * Path of a kernel's file, to be freed; NULL without memory. With version 0 that of the newest version that
 * there is a file of, which may be none.
 */
char *ejki_cuda_cache_file(const unsigned char key[32], int version);

/* Removes the oldest files, but not this one, until all together are as small as they may be. */
void ejki_cuda_cache_trim(const char *kept);

#endif
