/* SPDX-License-Identifier: Apache-2.0 */
/* What calls on a GPU cost besides the work of the GPU: the host's part of each, and the first one's. */
#include "ops/core/core.h"

#include <ejkernel/cuda.h>
#include <ejkernel/device.h>

#include "device/cuda.h"

/* ---- Executions -------------------------------------------------------------------------------------- */

/* Few enough executions that the driver's queue never fills. */
enum { EXECUTIONS = 100, BATCHES = 15 };

typedef struct samples {
    double plan[BATCHES], driver[BATCHES], beyond[BATCHES];
    int64_t launches;
} samples;

static ejk_status run_batch(const ejk_plan *plan, const void *args, samples *all, int index) {
    ejki_cuda_meter meter = {0};
    ejk_status status = EJK_OK;
    ejki_cuda_meter_set(&meter);
    const double start = ejk_now();
    for (int i = 0; i < EXECUTIONS && status == EJK_OK; i++)
        status = ejk_plan_execute(plan, args, NULL, 0);
    const double seconds = ejk_now() - start;
    ejki_cuda_meter_set(NULL);
    all->plan[index] = seconds / EXECUTIONS;
    all->driver[index] = meter.seconds / EXECUTIONS;
    all->beyond[index] = (seconds - meter.seconds) / EXECUTIONS;
    all->launches = meter.launches;
    if (status != EJK_OK) return status;
    return ejk_device_synchronise(plan->place.device_index, plan->context->stream);
}

ejk_status ejk_plan_measure_host(const ejk_plan *plan, const void *args, ejk_host_cost *out) {
    samples all = {.launches = 0};
    if (!plan || !args || !out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         !plan   ? "plan"
                         : !args ? "args"
                                 : "out");
    if (plan->place.device_type != EJK_DEVICE_CUDA)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "the plan is for the CPU, expected a GPU");
    for (int i = -1; i < BATCHES; i++) /* the first one warms up */
        EJKI_TRY(run_batch(plan, args, &all, i < 0 ? 0 : i));
    *out = (ejk_host_cost){.plan_s = ejki_quantile(all.plan, BATCHES, 0.5),
                           .driver_s = ejki_quantile(all.driver, BATCHES, 0.5),
                           .beyond_s = ejki_quantile(all.beyond, BATCHES, 0.5),
                           .launches = (double)all.launches / EXECUTIONS};
    return EJK_OK;
}

/* ---- First use --------------------------------------------------------------------------------------- */

enum { LOADS = 5 };

/* A plan of kernels that are made anew. */
static ejk_status make_anew(const ejki_plan_request *request, ejki_cuda_trial *trial,
                            double *seconds) {
    ejk_plan *plan = NULL;
    ejki_cuda_trial_begin(trial);
    const double start = ejk_now();
    const ejk_status status = ejki_plan_make(request, &plan);
    *seconds = ejk_now() - start;
    ejk_plan_destroy(plan);
    ejki_cuda_trial_end();
    return status;
}

ejk_status ejk_plan_measure_first_use(ejk_context *context, const ejk_kernel *kernel,
                                      const void *args, ejk_first_use *out) {
    if (!context || !kernel || !args || !out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         !context  ? "context"
                         : !kernel ? "kernel"
                         : !args   ? "args"
                                   : "out");
    EJKI_TRY(ejki_kernel_check(kernel));
    if (ejki_device_of(kernel->args, args).device_type != EJK_DEVICE_CUDA)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "the tensors lie on the CPU, expected a GPU");
    const ejki_plan_request request = {.context = context, .kernel = kernel, .args = args};
    ejk_cuda_info loaded; /* and with it driver and NVRTC */
    ejk_first_use found;
    double times[LOADS];
    bool kept = true;
    EJKI_TRY(ejk_cuda_look(&loaded));
    ejki_cuda_trial trial = {.compile = true};
    EJKI_TRY(make_anew(&request, &trial, &found.compile_s));
    found.kernels = trial.kernels;
    for (int i = 0; i < LOADS; i++) {
        trial = (ejki_cuda_trial){.compile = false};
        EJKI_TRY(make_anew(&request, &trial, &times[i]));
        kept &= trial.compiled == 0;
    }
    found.load_s = kept ? ejki_quantile(times, LOADS, 0.5) : 0;
    *out = found;
    return EJK_OK;
}
