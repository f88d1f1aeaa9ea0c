/* SPDX-License-Identifier: Apache-2.0 */
#define FORMAT safetensors
#include "fuzz/file_of_tensors.h"
