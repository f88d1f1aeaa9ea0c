/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tuning of a kernel's call: candidates become plans, results are compared with the default's. The engine
 * that runs them is tune.c.
 */
#include <ejkernel/device.h>
#include <ejkernel/executor.h>

#include "base/base.h"
#include "device/cuda.h"
#include "device/cuda_timer.h"
#include "ops/core/context.h"
#include "ops/core/request.h"
#include "ops/execution/backward.h"
#include "ops/execution/gradients.h"
#include "ops/execution/measure.h"
#include "ops/execution/operands.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* What the engine's functions are given. */
typedef struct subject {
    const ejk_kernel *kernel;
    ejk_context *context; /* without a chooser: a candidate is exactly what it says */
    const ejk_autotune_options *options;
    ejki_operands_copy operands;
    ejki_operands_copy *further; /* the same inputs elsewhere, for calls that live from memory */
    int32_t further_count, turn; /* 0 = `operands`, then `further` */
    ejk_owned_tensor *kept;      /* the default's results, one per field */
    char *configs;
    int32_t count;
    ejk_plan **plans;  /* two for each candidate: forward, backward */
    char *description; /* the last */
    ejki_backward backward;
    ejki_cuda_timer timer; /* on a GPU */
} subject;

static void *config_at(const subject *s, int32_t index) {
    return s->configs + (size_t)index * s->kernel->config->size;
}

static const ejk_tensor *tensor_of(const subject *s, int32_t field) {
    return (const ejk_tensor *)(const void *)((const char *)s->operands.args +
                                              s->kernel->args->fields[field].offset);
}

/* ---- What the engine asks ---------------------------------------------------------------------------- */

/* A plan of the call, or of its vjp hook. */
static ejki_plan_request request_of(const subject *s, ejk_context *context, bool backward) {
    return (ejki_plan_request){.context = context,
                               .kernel = s->kernel,
                               .args = s->operands.args,
                               .hook = backward ? "vjp" : NULL,
                               .backward = backward};
}

/* A candidate's plan. */
static ejk_status plan_of(subject *s, int32_t index, bool backward, ejk_plan **out) {
    ejk_plan **place = &s->plans[2 * index + backward];
    ejki_plan_request request = request_of(s, s->context, backward);
    request.override_cfg = config_at(s, index);
    if (!*place) EJKI_TRY(ejki_plan_request_create(&request, place));
    *out = *place;
    return EJK_OK;
}

/* The next of the copies of the inputs. */
static const void *next_args(subject *s) {
    s->turn = s->turn < s->further_count ? s->turn + 1 : 0;
    return s->turn > 0 ? s->further[s->turn - 1].args : s->operands.args;
}

static ejk_status run(void *user, int32_t index) {
    subject *s = user;
    ejk_plan *plan;
    if (s->options->pass != EJK_TUNE_BACKWARD) {
        EJKI_TRY(plan_of(s, index, false, &plan));
        EJKI_TRY(ejk_plan_execute(plan, next_args(s), NULL, 0));
    }
    if (s->options->pass == EJK_TUNE_FORWARD) return EJK_OK;
    EJKI_TRY(plan_of(s, index, true, &plan));
    return ejki_plan_call_hook(plan, s->operands.args, ejki_backward_call(&s->backward));
}

/* On a GPU: the plan is made, and with it the kernel, before anything is timed. */
static ejk_status time_calls(void *user, int32_t index, int64_t calls, double *seconds) {
    subject *s = user;
    ejk_plan *plan;
    EJKI_TRY(plan_of(s, index, false, &plan));
    EJKI_TRY(ejki_cuda_timer_start(&s->timer));
    for (int64_t i = 0; i < calls; i++) EJKI_TRY(ejk_plan_execute(plan, next_args(s), NULL, 0));
    EJKI_TRY(ejki_cuda_timer_stop(&s->timer));
    return ejki_cuda_timer_read(&s->timer, seconds);
}

/* Results of a run: the call's outputs by field, then the gradients. */
static int32_t result_count(const subject *s) {
    return s->kernel->args->count + s->backward.gradient_count;
}

static const ejk_tensor *result(const subject *s, int32_t index) {
    const int32_t gradient = index - s->kernel->args->count;
    if (gradient >= 0) return &s->backward.gradients[gradient];
    const bool output = ejki_is_output(&s->kernel->args->fields[index], s->operands.args);
    return output && s->options->pass != EJK_TUNE_BACKWARD ? tensor_of(s, index) : NULL;
}

enum { MOST_COPIES = 1024 }; /* of small inputs: what calling costs outweighs where they lie */

/* Bytes that no cache holds, where the call runs. */
static int64_t rotation_bytes(const subject *s) {
    const ejk_gpu_info *gpu;
    if (s->operands.place.device_type == EJK_DEVICE_CPU ||
        ejki_cuda_gpu(s->operands.place.device_index, &gpu) != EJK_OK)
        return ejk_rotation_bytes(ejk_threads_count(ejk_context_threads(s->context)));
    return ejki_min(2 * gpu->l2_bytes, gpu->memory_bytes / 8);
}

/*
 * A call that lives from memory finds its inputs there in use: the keys of one layer are not in a cache after
 * those of all others were read. So its runs take copies in turn that no cache holds together.
 */
static ejk_status rotate_inputs(subject *s, int32_t index) {
    ejk_plan *plan;
    if (s->options->pass != EJK_TUNE_FORWARD) return EJK_OK;
    EJKI_TRY(plan_of(s, index, false, &plan));
    const int64_t bytes = ejki_operands_input_bytes(&s->operands);
    if (!ejk_plan_is_memory_bound(plan) || bytes == 0) return EJK_OK;
    const int64_t allowed = s->options->tuner.memory_bytes;
    const int64_t room = rotation_bytes(s);
    const int64_t fitting = (allowed > 0 ? ejki_min(allowed, room) : room) / bytes;
    const int64_t count = ejki_min(fitting, MOST_COPIES);
    if (count == 0) return EJK_OK;
    s->further = calloc((size_t)count, sizeof *s->further);
    if (!s->further) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for copies of inputs");
    ejk_status status = EJK_OK;
    while (status == EJK_OK && s->further_count < count)
        status = ejki_operands_copy_inputs(&s->operands, &s->further[s->further_count++]);
    if (status != EJK_STATUS_OUT_OF_MEMORY) return status;
    ejki_operands_copy_release(&s->further[--s->further_count]); /* as many as there is room for */
    return EJK_OK;
}

static ejk_status keep(void *user, int32_t index) {
    subject *s = user;
    for (int32_t i = 0; i < result_count(s); i++) {
        const ejk_tensor *tensor = result(s, i);
        if (!tensor || tensor->dtype == EJK_DTYPE_UNSET) continue;
        EJKI_TRY(ejki_tensor_fetch_flat(tensor, &s->kept[i]));
    }
    EJKI_TRY(ejki_operands_restore(&s->operands));
    return rotate_inputs(s, index);
}

/* By how much results of a type may differ: some hundred roundings, since blocks change the order of sums. */
static double tolerance_of(const subject *s, ejk_dtype dtype) {
    if (s->options->tolerance > 0) return s->options->tolerance;
    switch (dtype) {
    case EJK_DTYPE_F64: return 1e-12;
    case EJK_DTYPE_F32: return 2e-5;
    case EJK_DTYPE_F16: return 4e-3;
    case EJK_DTYPE_BF16: return 3e-2;
    case EJK_DTYPE_F8E4M3: return 1e-1;
    case EJK_DTYPE_F8E5M2: return 2e-1;
    default: return 0;
    }
}

/* What is on a GPU is brought to the CPU for that. */
static ejk_status agree(const subject *s, const ejk_tensor *kept, const ejk_tensor *tensor,
                        bool *agrees, double *difference) {
    const double tolerance = tolerance_of(s, tensor->dtype);
    if (tensor->device_type == EJK_DEVICE_CPU)
        return ejk_tensors_agree(kept, tensor, tolerance, agrees, difference);
    ejk_owned_tensor here;
    EJKI_TRY(ejki_tensor_fetch_flat(tensor, &here));
    const ejk_status status = ejki_tensors_agree(ejk_context_threads(s->context), kept,
                                                 &here.tensor, tolerance, agrees, difference);
    ejk_owned_tensor_close(&here);
    return status;
}

/* Puts back the states of all copies. */
static ejk_status restore(void *user, int32_t index) {
    const subject *s = user;
    (void)index;
    for (int32_t i = 0; i < s->further_count; i++) EJKI_TRY(ejki_operands_restore(&s->further[i]));
    return ejki_operands_restore(&s->operands);
}

/* True of a call that updates what it reads. */
static bool has_states(const subject *s) {
    for (int32_t i = 0; i < s->kernel->args->count; i++) {
        const ejk_field *field = &s->kernel->args->fields[i];
        if (ejk_field_is_input(field) && ejki_is_output(field, s->operands.args)) return true;
    }
    return false;
}

/* Runs once more over poisoned results: what was not written then stands out. States are those of the first run. */
static ejk_status check(void *user, int32_t index, bool *agrees, double *difference) {
    subject *s = user;
    ejki_backward_poison(&s->backward);
    EJKI_TRY(ejki_operands_restore(&s->operands));
    EJKI_TRY(ejki_operands_poison(&s->operands));
    s->turn = s->further_count; /* the copy whose states these are */
    EJKI_TRY(run(s, index));
    *agrees = true;
    *difference = 0;
    for (int32_t i = 0; i < result_count(s) && *agrees; i++) {
        const ejk_tensor *tensor = result(s, i);
        if (!tensor || tensor->dtype == EJK_DTYPE_UNSET) continue;
        double own;
        EJKI_TRY(agree(s, &s->kept[i].tensor, tensor, agrees, &own));
        if (!(own <= *difference)) *difference = own;
    }
    return EJK_OK;
}

static int64_t memory_bytes(void *user, int32_t index) {
    const subject *s = user;
    ejk_plan *plan;
    if (s->options->pass == EJK_TUNE_BACKWARD) return 0; /* hooks have no workspace */
    return plan_of(user, index, false, &plan) == EJK_OK ? (int64_t)ejk_plan_workspace(plan) : 0;
}

static const char *describe(void *user, int32_t index) {
    subject *s = user;
    ejk_free(s->description);
    s->description = NULL;
    if (ejk_record_to_json(s->kernel->config, config_at(s, index), EJK_JSON_SET_ONLY,
                           &s->description) != EJK_OK)
        return NULL;
    return s->description;
}

/* ---- Putting it together ----------------------------------------------------------------------------- */

/* A chooser that only notes the candidates of the call it is asked about. */
static ejk_status list_candidates(void *self, const ejk_invocation *invocation, void *config,
                                  ejk_choice_step *step) {
    subject *s = self;
    *step = EJK_CHOICE_HEURISTICS;
    EJKI_TRY(ejk_invocation_heuristics(invocation, config));
    if (!s->options->configs)
        return ejk_invocation_candidates(invocation, s->configs, EJK_MOST_CANDIDATES, &s->count);
    /* The kernel's own choice first: it is what the given ones have to beat. */
    memcpy(s->configs, config, s->kernel->config->size);
    memcpy(s->configs + s->kernel->config->size, s->options->configs,
           (size_t)s->options->config_count * s->kernel->config->size);
    s->count = s->options->config_count + 1;
    return EJK_OK;
}

static ejk_status find_candidates(subject *s, ejk_context *base) {
    const int32_t room = s->options->configs ? s->options->config_count + 1 : EJK_MOST_CANDIDATES;
    s->configs = calloc((size_t)room, s->kernel->config->size);
    s->plans = calloc(2 * (size_t)room, sizeof *s->plans);
    if (!s->configs || !s->plans)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for candidates");
    const ejk_config_chooser lister = {s, list_candidates, NULL};
    const bool backward = s->options->pass == EJK_TUNE_BACKWARD;
    const ejki_plan_request request = request_of(s, base, backward);
    return ejki_plan_request_ask(&request, &lister);
}

static bool on_gpu(const subject *s) {
    return s->operands.place.device_type == EJK_DEVICE_CUDA;
}

static ejk_status open_subject(subject *s, ejk_context *base, const void *args) {
    EJKI_TRY(ejki_context_derive(base, NULL, &s->context));
    EJKI_TRY(ejki_operands_copy_create(s->kernel, args, &s->operands));
    EJKI_TRY(ejki_gradients_fill_results(s->context, s->kernel, args, &s->operands));
    if (on_gpu(s)) {
        if (s->options->pass != EJK_TUNE_FORWARD)
            return ejki_fail(EJK_STATUS_UNAVAILABLE,
                             "gradients by hooks of %.64s are measured on the CPU only",
                             s->kernel->op_id);
        EJKI_TRY(ejki_cuda_timer_open(s->operands.place.device_index,
                                      ejki_context_stream(s->context), &s->timer));
    }
    if (s->options->pass != EJK_TUNE_FORWARD)
        EJKI_TRY(ejki_backward_open(&s->backward, s->context, s->kernel, s->operands.args));
    s->kept = calloc((size_t)result_count(s) + 1, sizeof *s->kept);
    if (!s->kept) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for results");
    return find_candidates(s, base);
}

static void close_subject(subject *s) {
    for (int32_t i = 0; s->plans && i < 2 * s->count; i++) ejk_plan_destroy(s->plans[i]);
    for (int32_t i = 0; s->kept && i < result_count(s); i++) ejk_owned_tensor_close(&s->kept[i]);
    ejk_free(s->description);
    for (int32_t i = 0; i < s->further_count; i++) ejki_operands_copy_release(&s->further[i]);
    free(s->further);
    ejki_operands_copy_release(&s->operands);
    ejk_context_destroy(s->context);
    free(s->configs);
    free(s->plans);
    free(s->kept);
    ejki_backward_close(&s->backward);
    ejki_cuda_timer_close(&s->timer);
}

static double known(double seconds) {
    return seconds > 0 ? seconds : 0; /* NaN = was not measured */
}

/* What the chosen candidate's choice rests on. */
static ejk_config_measurement measurement_of(const ejk_tune_report *report) {
    const ejk_tune_candidate *chosen = &report->candidates[report->chosen];
    const ejk_tune_candidate *reference = &report->candidates[report->default_index];
    return (ejk_config_measurement){.median_s = known(chosen->median_s),
                                    .spread_s = known(chosen->spread_s),
                                    .reference_s = known(reference->median_s),
                                    .unix_time = (int64_t)time(NULL),
                                    .repetitions = chosen->samples};
}

/* ---- Kernels of a GPU --------------------------------------------------------------------------------- */

typedef struct preparation {
    subject *subject;
    double end; /* until when another one may be begun */
} preparation;

/* A failure is met again, and told, when the candidate is to run. */
static void prepare_one(void *argument, int64_t index) {
    const preparation *p = argument;
    const ejk_tuner_options *options = &p->subject->options->tuner;
    ejk_plan *unused;
    if (ejk_now() > p->end) return;
    if (options->cancel && __atomic_load_n(options->cancel, __ATOMIC_RELAXED)) return;
    const ejk_status status = plan_of(p->subject, (int32_t)index, false, &unused);
    (void)status;
}

/* Compiling takes seconds, of which one thread after the other would use up the time for measuring. */
static void prepare_kernels(subject *s) {
    const double allowed = s->options->tuner.time_s;
    preparation p = {s, ejk_now() + (allowed > 0 ? allowed : 10)};
    ejk_parallel_for(ejk_context_threads(s->context), s->count, prepare_one, &p);
    (void)ejki_fail(EJK_OK, "%s", "");
}

static ejk_status tune(subject *s, ejk_context *context, const void *args, void *best,
                       ejk_tune_report **report, ejk_config_measurement *measurement) {
    EJKI_TRY(open_subject(s, context, args));
    if (on_gpu(s)) prepare_kernels(s);
    const ejk_tune_problem problem = {.count = s->count,
                                      .run = run,
                                      .keep = keep,
                                      .check = check,
                                      .memory_bytes = memory_bytes,
                                      .describe = describe,
                                      .user = s,
                                      .time = on_gpu(s) ? time_calls : NULL,
                                      .restore = has_states(s) ? restore : NULL};
    ejk_tune_report *found;
    EJKI_TRY(ejk_tune(&problem, &s->options->tuner, &found));
    memcpy(best, config_at(s, found->chosen), s->kernel->config->size);
    if (measurement) *measurement = measurement_of(found);
    if (report)
        *report = found;
    else
        ejk_tune_report_destroy(found);
    return EJK_OK;
}

/* The backward pass of a kernel whose gradients are an operation of the same configuration is a call of that. */
static ejk_status tune_pass(ejk_context *context, const ejk_kernel *kernel, const void *args,
                            const ejk_autotune_options *options, void *best,
                            ejk_tune_report **report, ejk_config_measurement *measurement) {
    const ejk_autotune_options forward = ejki_gradient_options(options);
    const ejk_kernel *gradient =
        options->pass == EJK_TUNE_BACKWARD ? ejki_gradient_kernel(context, kernel) : NULL;
    subject s = {.kernel = kernel, .options = options};
    ejki_gradients g = {.args = NULL};
    ejk_status status = EJK_OK;
    if (gradient && gradient->config == kernel->config) {
        status = ejki_gradients_open(&g, context, gradient, kernel, args);
        s = (subject){.kernel = gradient, .options = &forward};
        args = g.args;
    }
    if (status == EJK_OK) status = tune(&s, context, args, best, report, measurement);
    close_subject(&s);
    ejki_gradients_close(&g);
    return status;
}

/* The parameters that only the gradients look at, into what was chosen for the call. */
static void take_parameters(const ejk_kernel *kernel, const ejk_kernel *gradient, const void *from,
                            void *to) {
    const char *name = gradient->parameters_field, *own = kernel->parameters_field;
    if (!name || (own && strcmp(name, own) == 0)) return;
    const ejk_field *field = ejk_record_find(kernel->config, name, NULL);
    if (field && field->kind == EJK_FIELD_RECORD)
        memcpy((char *)to + field->offset, (const char *)from + field->offset, field->record->size);
}

/* A call, and then its gradients, which are an operation. */
static ejk_status tune_both(ejk_context *context, const ejk_kernel *kernel,
                            const ejk_kernel *gradient, const void *args,
                            const ejk_autotune_options *options, void *best,
                            ejk_tune_report **report, ejk_config_measurement *measurement) {
    const size_t size = kernel->config->size;
    ejk_autotune_options pass = ejki_gradient_options(options);
    ejk_tune_report *forward = NULL, *backward = NULL;
    ejk_config_measurement measured;
    char *chosen = calloc(2, size);
    if (!chosen) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for configurations");
    ejk_status status = tune_pass(context, kernel, args, &pass, chosen, &forward, &measured);
    pass.pass = EJK_TUNE_BACKWARD;
    if (status == EJK_OK)
        status = tune_pass(context, kernel, args, &pass, chosen + size, &backward, NULL);
    if (status == EJK_OK) {
        take_parameters(kernel, gradient, chosen + size, chosen);
        memcpy(best, chosen, size);
        if (measurement) *measurement = measured;
        forward->backward = backward;
    }
    free(chosen);
    if (status == EJK_OK && report)
        *report = forward;
    else
        ejk_tune_report_destroy(forward);
    return status;
}

ejk_status ejk_autotune(ejk_context *context, const ejk_kernel *kernel, const void *args,
                        const ejk_autotune_options *options, void *best, ejk_tune_report **report,
                        ejk_config_measurement *measurement) {
    static const ejk_autotune_options defaults;
    if (!context || !kernel || !args || !best)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         !context  ? "context"
                         : !kernel ? "kernel"
                         : !args   ? "args"
                                   : "best");
    if (!kernel->config)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "kernel '%.64s' has no configuration to be tuned", kernel->op_id);
    if (options && options->configs && options->config_count < 1)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "config_count is %d, expected 1 or more",
                         (int)options->config_count);
    if (!options) options = &defaults;
    const ejk_kernel *gradient =
        options->pass == EJK_TUNE_BOTH ? ejki_gradient_kernel(context, kernel) : NULL;
    if (gradient && gradient->config == kernel->config)
        return tune_both(context, kernel, gradient, args, options, best, report, measurement);
    return tune_pass(context, kernel, args, options, best, report, measurement);
}
