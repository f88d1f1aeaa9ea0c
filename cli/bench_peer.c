/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A peer: a script of Python that computes the same calls by another library. It is started once and told what to do by
 * a line of JSON each on its standard input, and answers each by a line (docs/howto/benchmarking.md). So its libraries
 * are loaded once, and its batches follow ours.
 */
#define _GNU_SOURCE 1
#include "bench.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct bench_peer {
    const char *script;
    pid_t process;
    FILE *to, *from;
    char *name;
    bool files;      /* wants the inputs as files */
    char folder[64]; /* of these; "" = not made yet */
};

/* ---- Talking ----------------------------------------------------------------------------------------- */

/* In the child: its ends of the pipes become standard input and output. */
static void run_script(const char *script, const int given[2], const int answers[2]) {
    dup2(given[0], STDIN_FILENO);
    dup2(answers[1], STDOUT_FILENO);
    close(given[1]);
    close(answers[0]);
    execlp("python3", "python3", script, (char *)NULL);
    _exit(127);
}

static bool start(bench_peer *peer) {
    int given[2], answers[2];
    if (pipe2(given, O_CLOEXEC) != 0) return report_error("no pipe to %s", peer->script);
    if (pipe2(answers, O_CLOEXEC) != 0) {
        close(given[0]);
        close(given[1]);
        return report_error("no pipe from %s", peer->script);
    }
    peer->process = fork();
    if (peer->process == 0) run_script(peer->script, given, answers);
    close(given[0]);
    close(answers[1]);
    peer->to = fdopen(given[1], "w");
    peer->from = fdopen(answers[0], "r");
    return (peer->process > 0 && peer->to && peer->from) ||
           report_error("%s cannot be started", peer->script);
}

static json_t *read_answer(bench_peer *peer) {
    char *line = NULL;
    size_t room = 0;
    json_error_t error;
    if (getline(&line, &room, peer->from) < 0) {
        free(line);
        report_error("%s ended without an answer", peer->script);
        return NULL;
    }
    line[strcspn(line, "\n")] = '\0';
    json_t *answer = json_loads(line, 0, &error);
    if (!json_is_object(answer)) {
        report_error("%s answers '%.80s', expected an object of JSON", peer->script, line);
        json_decref(answer);
        answer = NULL;
    }
    free(line);
    return answer;
}

/* Sends a request, which is handed over, and waits for its answer; NULL after a sentence. */
static json_t *ask(bench_peer *peer, json_t *request) {
    char *line = request ? json_dumps(request, JSON_COMPACT) : NULL;
    json_decref(request);
    if (!line) {
        report_error("no memory for a request to %s", peer->script);
        return NULL;
    }
    const bool sent = fprintf(peer->to, "%s\n", line) > 0 && fflush(peer->to) == 0;
    free(line);
    if (sent) return read_answer(peer);
    report_error("%s does not take requests any more", peer->script);
    return NULL;
}

/* The script begins: who it is, and whether it wants files. */
static bool greet(bench_peer *peer) {
    json_t *answer = read_answer(peer);
    const char *name = json_string_value(json_object_get(answer, "peer"));
    peer->files = json_is_true(json_object_get(answer, "files"));
    peer->name = name ? strdup(name) : NULL;
    if (answer && !name) report_error("%s does not say its name as \"peer\"", peer->script);
    json_decref(answer);
    return peer->name != NULL;
}

bool bench_peer_open(const char *script, bench_peer **out) {
    bench_peer *peer = calloc(1, sizeof *peer);
    *out = peer;
    if (!peer) return report_error("no memory for a peer");
    peer->script = script;
    signal(SIGPIPE, SIG_IGN); /* a script that has ended is told by a sentence */
    return start(peer) && greet(peer);
}

void bench_peer_close(bench_peer *peer) {
    if (!peer) return;
    if (peer->to) fclose(peer->to);
    if (peer->from) fclose(peer->from);
    if (peer->process > 0) waitpid(peer->process, NULL, 0);
    if (*peer->folder) rmdir(peer->folder);
    free(peer->name);
    free(peer);
}

int bench_peer_process(const bench_peer *peer) {
    return (int)peer->process;
}

/* ---- Calls ------------------------------------------------------------------------------------------- */

static bool make_folder(bench_peer *peer) {
    const char *where = getenv("TMPDIR");
    if (*peer->folder) return true;
    const int length = snprintf(peer->folder, sizeof peer->folder, "%s/ejk-peer-XXXXXX",
                                where && strlen(where) < 40 ? where : P_tmpdir);
    if (length < (int)sizeof peer->folder && mkdtemp(peer->folder)) return true;
    *peer->folder = '\0';
    return report_error("no folder for the inputs of %s", peer->script);
}

static void path_of(const bench_peer *peer, const char *name, char out[256]) {
    snprintf(out, 256, "%s/%s.npy", peer->folder, name);
}

/* Writes the inputs; adds their paths. */
static bool write_inputs(const bench_peer *peer, const bench_case *bench, json_t *paths) {
    const ejk_kernel *kernel = bench->call.kernel;
    for (int32_t i = 0; i < call_count(kernel); i++) {
        const ejk_tensor *tensor = call_tensor(kernel, bench->args[0], i);
        ejk_tensor here;
        void *memory;
        char path[256];
        if (!tensor || !ejk_tensor_present(tensor) || !ejk_field_is_input(call_field(kernel, i)))
            continue;
        char name[64]; /* of member 1 of the list parts "parts.1" */
        const ejk_field *field = call_field(kernel, i);
        if (i < kernel->args->count)
            snprintf(name, sizeof name, "%s", field->name);
        else
            snprintf(name, sizeof name, "%s.%d", field->name,
                     (int)(i - call_member(kernel, field)));
        path_of(peer, name, path);
        const bool written =
            bench_fetch(bench, tensor, &here, &memory) && succeeded(ejk_npy_write(path, &here));
        free(memory);
        if (!written) return false;
        json_object_set_new(paths, name, json_string(path));
    }
    return true;
}

static void remove_files(const json_t *paths, const char *result) {
    const char *name;
    json_t *path;
    json_object_foreach((json_t *)(uintptr_t)paths, name, path) remove(json_string_value(path));
    remove(result);
}

/* Compares the peer's result with our first one, if it wrote any. */
static bool look_at_result(const bench_case *bench, const char *path, bench_result *out) {
    ejk_owned_tensor theirs;
    ejk_tensor own;
    void *memory;
    difference d;
    const int32_t first = call_first_output(bench->call.kernel);
    if (access(path, F_OK) != 0) return true;
    if (!succeeded(ejk_tensor_load(path, &theirs))) return false;
    const bool compared =
        bench_fetch(bench, call_tensor(bench->call.kernel, bench->call.args, first), &own,
                    &memory) &&
        compare(&own, &theirs.tensor, &d);
    if (compared) out->peer_error = d.relative;
    free(memory);
    ejk_owned_tensor_close(&theirs);
    return compared;
}

static json_t *request_of(const bench_case *bench, const bench_result *row, json_t *paths,
                          const char *result) {
    char device[32] = "cpu";
    if (bench->device >= 0) snprintf(device, sizeof device, "cuda:%d", (int)bench->device);
    return json_pack("{s:s, s:s, s:s, s:O, s:s, s:i, s:s, s:O, s:s}", "call", row->problem, "op",
                     row->kernel->op_id, "shape", row->shape, "arguments", row->arguments, "dtype",
                     ejk_dtype_name(row->dtype), "threads", (int)row->threads, "device", device,
                     "inputs", paths, "result", result);
}

static bool take_answer(const bench_peer *peer, const json_t *answer, bench_result *out) {
    const char *skips = json_string_value(json_object_get(answer, "skip"));
    if (skips)
        out->peer_skips = strdup(skips);
    else if (!json_is_true(json_object_get(answer, "ready")))
        return report_error("%s answers a call neither by \"ready\" nor by \"skip\"", peer->script);
    return true;
}

bool bench_peer_begin(bench_peer *peer, const bench_case *bench, bench_result *out) {
    char result[256];
    json_t *paths = json_object();
    out->peer = strdup(peer->name);
    out->peer_error = -1;
    bool begun = paths && out->peer && make_folder(peer) &&
                 (!peer->files || write_inputs(peer, bench, paths));
    path_of(peer, "result", result);
    if (begun) {
        json_t *answer = ask(peer, request_of(bench, out, paths, result));
        begun = answer && take_answer(peer, answer, out) && look_at_result(bench, result, out);
        json_decref(answer);
    }
    remove_files(paths, result);
    json_decref(paths);
    return begun;
}

bool bench_peer_run(bench_peer *peer, int64_t runs, bool alone, double *seconds) {
    json_t *answer = ask(peer, json_pack("{s:I, s:b}", "run", (json_int_t)runs, "alone", alone));
    *seconds = json_number_value(json_object_get(answer, "seconds"));
    const bool timed = *seconds > 0;
    if (answer && !timed) report_error("%s answers a run without \"seconds\"", peer->script);
    json_decref(answer);
    return timed;
}
