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

/* ---- Calls moved there and back --------------------------------------------------------------------- */

/* Reads --device: cpu, cuda or cuda:N, which has to be there; NULL = cpu, which is -1. */
bool gpu_device(const char *text, int32_t *out);

/* Says that all tensors of a call lie on a device; -1 changes nothing. */
void gpu_place_tensors(int32_t device, const ejk_kernel *kernel, void *args);

/* Puts the tensors that the call owns, which have their contents, on a device; -1 changes nothing. */
bool gpu_move_owned(int32_t device, op_call *call);

/* Puts all tensors of a call there: those with data in memory that the call owns then. */
bool gpu_copy_tensors(int32_t device, op_call *call);

/* Copies bytes on a device, to it, or from it. */
bool gpu_copy_bytes(int32_t device, void *to, const void *from, int64_t bytes);
bool gpu_send_bytes(int32_t device, void *there, const void *here, int64_t bytes);
bool gpu_fetch_bytes(int32_t device, const void *there, void *here, int64_t bytes);

/* Where a call is to run: -1 = on the CPU. */
typedef struct gpu_call {
    int32_t device;
    ejk_owned_tensor *memory; /* by index of the field */
} gpu_call;

/* As gpu_device() reads it. Closed by the caller also after a failure. */
bool gpu_open(const char *text, const op_call *call, gpu_call *out);
void gpu_close(gpu_call *gpu, const op_call *call);

/* Copies the inputs that the call owns to the device, and has the call use these. */
bool gpu_send(gpu_call *gpu, op_call *call);

/* Gives what has no memory yet, the results, some on the device. */
bool gpu_allocate(gpu_call *gpu, op_call *call);

/* Waits for the device. */
bool gpu_wait(const gpu_call *gpu);

/* Copies the results to the memory that the call owns for them. */
bool gpu_fetch(const gpu_call *gpu, const op_call *call);

#endif
