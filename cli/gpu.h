/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs as commands show them, and calls moved there and back. */
#ifndef EJK_CLI_GPU_H
#define EJK_CLI_GPU_H

#include "call.h"
#include "table.h"

/* Adds the rows "gpu", "cuda" and "kernels" to a table of two columns. */
void gpu_rows(text_table *table);

/* {"devices":[…],"driver":…,"nvrtc":…,"cache":{…}}; "devices" is empty where "unavailable" says why. */
json_t *gpu_json(void);

/* Where a call is to run: -1 = on the CPU. */
typedef struct gpu_call {
    int32_t device;
    ejk_owned_tensor *memory; /* by index of the field */
} gpu_call;

/* Reads --device: cpu, cuda or cuda:N; NULL = cpu. Closed by the caller also after a failure. */
bool gpu_open(const char *text, const op_call *call, gpu_call *out);
void gpu_close(gpu_call *gpu, const op_call *call);

/* Copies the inputs that the call owns to the device, and has the call use these. */
bool gpu_send(gpu_call *gpu, op_call *call);

/* Says that the results will lie on the device; then gives them memory there. */
void gpu_place(const gpu_call *gpu, op_call *call);
bool gpu_allocate(gpu_call *gpu, op_call *call);

/* Waits for the device. */
bool gpu_wait(const gpu_call *gpu);

/* Copies the results to the memory that the call owns for them. */
bool gpu_fetch(const gpu_call *gpu, const op_call *call);

#endif
