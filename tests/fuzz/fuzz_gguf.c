/* SPDX-License-Identifier: Apache-2.0 */
#define FORMAT gguf
#include "fuzz/file_of_tensors.h"
