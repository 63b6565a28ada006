/* A stand-in for libnvidia-ml.so.1, driven by a scenario file that is read again at each call.
 *
 * The file (environment NVML_STUB_SCENARIO) holds words: `gpus N`, `init CODE`, `hang GPU SECONDS`, `lost GPU`,
 * `power GPU MILLIWATTS`, `busy GPU PERCENT`, `process GPU PID`, `mig GPU` (two instances of 1g.10gb on that GPU),
 * `instances GPU N` (that many instead), `recovery GPU ACTION`, `remap GPU FAILURES`, `hidden GPU 1` (its processes may
 * not be seen), `stale GPU CODE` (handles of that GPU answer with this code), `gpm GPU PERCENT` (a card that has GPU
 * performance monitoring, with this SM activity), `energy GPU JOULES` (its counter), `xid GPU CODE` (an event, told once
 * for each line of the file), `reshape GPU 1` (a MIG configuration event), `links GPU N` (NVLink, the last one down),
 * `reasons GPU MASK` (clocks event reasons), `using GPU PERCENT` (SM use of its process),
 * `clock GPU MHZ` (a driver that tells clocks).
 * Only what the real pynvml asks for in our tests is here; everything else is "function not found", as in old drivers.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, TOO_SMALL = 7, LOST = 15 };
#define GPUS 16
#define INSTANCES 7
#define EVENTS 64

struct gpu {
    int index, instance; /* instance -1: the device itself */
};
static struct gpu devices[GPUS], instances[GPUS][INSTANCES];
static int initialised;

struct scenario {
    int gpus, init, lost[GPUS], hang[GPUS], power[GPUS], busy[GPUS], pid[GPUS], mig[GPUS];
    int instances[GPUS], recovery[GPUS], remap[GPUS], hidden[GPUS], stale[GPUS], gpm[GPUS], clock[GPUS];
    int energy[GPUS], links[GPUS], reasons[GPUS], using[GPUS];
    int events, event_gpu[EVENTS], event_kind[EVENTS], event_data[EVENTS];
};
static struct scenario now;

static void look(void) {
    struct scenario fresh; /* read apart and put in place whole: the GPUs are asked by several threads at once */
    memset(&fresh, 0, sizeof fresh);
    const char *path = getenv("NVML_STUB_SCENARIO");
    FILE *file = path ? fopen(path, "r") : NULL;
    char word[32];
    int gpu, value;
    for (int i = 0; i < GPUS; i++) { fresh.power[i] = 70000; fresh.instances[i] = 2; fresh.energy[i] = 123456; }
    if (!file) { now = fresh; return; }
    while (fscanf(file, "%31s", word) == 1) {
        if (!strcmp(word, "gpus")) { if (fscanf(file, "%d", &fresh.gpus) != 1) break; continue; }
        if (!strcmp(word, "init")) { if (fscanf(file, "%d", &fresh.init) != 1) break; continue; }
        if (fscanf(file, "%d", &gpu) != 1 || gpu < 0 || gpu >= GPUS) break;
        if (!strcmp(word, "lost")) { fresh.lost[gpu] = 1; continue; }
        if (!strcmp(word, "mig")) { fresh.mig[gpu] = 1; continue; }
        if (fscanf(file, "%d", &value) != 1) break;
        if (!strcmp(word, "hang")) fresh.hang[gpu] = value;
        if (!strcmp(word, "power")) fresh.power[gpu] = value;
        if (!strcmp(word, "busy")) fresh.busy[gpu] = value;
        if (!strcmp(word, "process")) fresh.pid[gpu] = value;
        if (!strcmp(word, "instances")) fresh.instances[gpu] = value;
        if (!strcmp(word, "recovery")) fresh.recovery[gpu] = value;
        if (!strcmp(word, "remap")) fresh.remap[gpu] = value;
        if (!strcmp(word, "hidden")) fresh.hidden[gpu] = value;
        if (!strcmp(word, "stale")) fresh.stale[gpu] = value;
        if (!strcmp(word, "gpm")) fresh.gpm[gpu] = value;
        if (!strcmp(word, "clock")) fresh.clock[gpu] = value;
        if (!strcmp(word, "energy")) fresh.energy[gpu] = value;
        if (!strcmp(word, "links")) fresh.links[gpu] = value;
        if (!strcmp(word, "reasons")) fresh.reasons[gpu] = value;
        if (!strcmp(word, "using")) fresh.using[gpu] = value;
        if ((!strcmp(word, "xid") || !strcmp(word, "reshape")) && fresh.events < EVENTS) {
            fresh.event_gpu[fresh.events] = gpu;
            fresh.event_kind[fresh.events] = word[0] == 'x' ? 0x8 : 0x100;
            fresh.event_data[fresh.events++] = value;
        }
    }
    fclose(file);
    now = fresh;
}

/* A driver call cannot be interrupted by a signal: sleep again until the time is over. */
static int ready(struct gpu *gpu) {
    look();
    if (!initialised) return UNINITIALIZED;
    struct timespec left = {now.hang[gpu->index], 0};
    while (left.tv_sec + left.tv_nsec > 0 && nanosleep(&left, &left) == -1 && errno == EINTR) {}
    if (now.stale[gpu->index]) return now.stale[gpu->index];
    if (gpu->instance >= now.instances[gpu->index]) return INVALID;
    return now.lost[gpu->index] ? LOST : OK;
}

#define ASK(gpu) do { int code = ready(gpu); if (code != OK) return code; } while (0)

int nvmlInitWithFlags(unsigned flags) { (void)flags; look(); if (now.init) return now.init; initialised = 1; return OK; }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { initialised = 0; return OK; }
const char *nvmlErrorString(int code) { return code == LOST ? "GPU is lost" : "stub error"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "580.00.stub"); return OK; }

int nvmlDeviceGetCount_v2(unsigned *count) { look(); *count = now.gpus; return initialised ? OK : UNINITIALIZED; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct gpu **handle) {
    look();
    if (!initialised) return UNINITIALIZED;
    if (index >= (unsigned)now.gpus) return INVALID;
    if (now.lost[index]) return LOST;
    devices[index] = (struct gpu){index, -1};
    *handle = &devices[index];
    return OK;
}
int nvmlDeviceGetUUID(struct gpu *gpu, char *text, unsigned size) {
    ASK(gpu);
    if (gpu->instance < 0) snprintf(text, size, "GPU-00000000-0000-0000-0000-%012d", gpu->index);
    else snprintf(text, size, "MIG-00000000-0000-0000-%04d-%012d", gpu->instance, gpu->index);
    return OK;
}
int nvmlDeviceGetName(struct gpu *gpu, char *text, unsigned size) {
    snprintf(text, size, gpu->instance < 0 ? "NVIDIA H100 80GB HBM3" : "NVIDIA H100 80GB HBM3 MIG 1g.10gb");
    return OK;
}

int nvmlDeviceGetPowerUsage(struct gpu *gpu, unsigned *milliwatts) {
    ASK(gpu);
    if (gpu->instance >= 0) return NOT_SUPPORTED;
    *milliwatts = now.power[gpu->index];
    return OK;
}
int nvmlDeviceGetTotalEnergyConsumption(struct gpu *gpu, unsigned long long *millijoules) {
    ASK(gpu);
    if (gpu->instance >= 0) return NOT_SUPPORTED;
    *millijoules = now.energy[gpu->index] * 1000ULL + 789;
    return OK;
}
struct utilization { unsigned gpu, memory; };
int nvmlDeviceGetUtilizationRates(struct gpu *gpu, struct utilization *rates) {
    ASK(gpu);
    if (gpu->instance >= 0 || now.mig[gpu->index]) return NOT_SUPPORTED;
    *rates = (struct utilization){now.busy[gpu->index], now.busy[gpu->index] / 2};
    return OK;
}
int nvmlDeviceGetTemperature(struct gpu *gpu, int sensor, unsigned *celsius) { (void)sensor; ASK(gpu); *celsius = 41; return OK; }
int nvmlDeviceGetClockInfo(struct gpu *gpu, int clock, unsigned *megahertz) {
    ASK(gpu);
    *megahertz = clock == 2 ? 2619 : now.clock[gpu->index]; /* 2: memory */
    return now.clock[gpu->index] ? OK : 13; /* function not found */
}
int nvmlDeviceGetPerformanceState(struct gpu *gpu, unsigned *state) { ASK(gpu); *state = 32; return OK; }
int nvmlDeviceGetFanSpeed(struct gpu *gpu, unsigned *speed) { (void)speed; ASK(gpu); return NOT_SUPPORTED; }

struct memory { unsigned long long total, free, used; };
int nvmlDeviceGetMemoryInfo(struct gpu *gpu, struct memory *memory) {
    ASK(gpu);
    unsigned long long total = gpu->instance < 0 ? 80ULL << 30 : 10ULL << 30;
    *memory = (struct memory){total, total - (1ULL << 30), 1ULL << 30};
    return OK;
}
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(struct gpu *gpu, struct memory_v2 *memory) {
    ASK(gpu);
    if (memory->version != (sizeof *memory | 2u << 24)) return 25; /* a wrong struct version must not pass */
    unsigned long long total = gpu->instance < 0 ? 80ULL << 30 : 10ULL << 30;
    memory->total = total;
    memory->reserved = 1ULL << 29;
    memory->used = 1ULL << 30;
    memory->free = total - memory->reserved - memory->used;
    return OK;
}

struct field { unsigned id, scope; long long at, latency; unsigned type, code; union { double d; unsigned ui; unsigned long long ull; } value; };
int nvmlDeviceGetFieldValues(struct gpu *gpu, int count, struct field *fields) {
    ASK(gpu);
    for (int i = 0; i < count; i++) {
        fields[i].value.ull = 0xDEADBEEF; /* what a failed field holds must never be read */
        fields[i].code = NOT_SUPPORTED;
        if (fields[i].id == 82 || fields[i].id == 186) { /* memory temperature; instant power in milliwatts */
            fields[i].code = OK;
            fields[i].type = 1;
            fields[i].value.ui = fields[i].id == 82 ? 55 : 71000;
        }
        if (fields[i].id == 230 || fields[i].id == 145) { /* recovery action; failed row remaps */
            fields[i].code = OK;
            fields[i].type = 1;
            fields[i].value.ui = fields[i].id == 230 ? now.recovery[gpu->index] : now.remap[gpu->index];
        }
    }
    return OK;
}

int nvmlDeviceGetCurrentClocksEventReasons(struct gpu *gpu, unsigned long long *mask) {
    ASK(gpu);
    if (gpu->instance >= 0) return NOT_SUPPORTED;
    *mask = now.reasons[gpu->index];
    return OK;
}
int nvmlDeviceGetNvLinkState(struct gpu *gpu, unsigned link, unsigned *up) {
    ASK(gpu);
    if (link >= (unsigned)now.links[gpu->index]) return INVALID;
    *up = link + 1 < (unsigned)now.links[gpu->index];
    return OK;
}
int nvmlDeviceGetSerial(struct gpu *gpu, char *text, unsigned size) { ASK(gpu); snprintf(text, size, "16500%05d", gpu->index); return OK; }

struct used { unsigned pid; unsigned long long at; unsigned sm, memory, encoder, decoder; };
int nvmlDeviceGetProcessUtilization(struct gpu *gpu, struct used *list, unsigned *count, unsigned long long since) {
    ASK(gpu);
    (void)since;
    if (!now.using[gpu->index]) return NOT_FOUND;
    unsigned room = list ? *count : 0;
    *count = 1;
    if (room < 1) return TOO_SMALL;
    list[0] = (struct used){now.pid[gpu->index], 1700000000000000ULL, now.using[gpu->index], 7, 0, 0};
    return OK;
}

/* Events: those of the scenario, in its order, each told once to the process, and only of GPUs that were registered. */
struct event { struct gpu *device; unsigned long long kind, data; unsigned gpu_instance, compute_instance; };
static int told, registered[GPUS];
static char one_set;
int nvmlEventSetCreate(void **set) { *set = &one_set; look(); told = now.events; return OK; }
int nvmlEventSetFree(void *set) { (void)set; memset(registered, 0, sizeof registered); return OK; }
int nvmlDeviceGetSupportedEventTypes(struct gpu *gpu, unsigned long long *kinds) { ASK(gpu); *kinds = 0x11f; return OK; }
int nvmlDeviceRegisterEvents(struct gpu *gpu, unsigned long long kinds, void *set) {
    (void)set;
    (void)kinds;
    ASK(gpu);
    registered[gpu->index] = 1;
    return OK;
}
int nvmlEventSetWait_v2(void *set, struct event *event, unsigned milliseconds) {
    (void)set;
    const char *given = getenv("NVML_STUB_EVENT_POLL_MS"); /* a driver waits without work; a benchmark asks seldom */
    unsigned step = given ? (unsigned)atoi(given) : 20;
    for (unsigned waited = 0; waited <= milliseconds; waited += step) {
        look();
        if (told < now.events) {
            int at = told++, gpu = now.event_gpu[at];
            if (!registered[gpu]) continue;
            *event = (struct event){&devices[gpu], now.event_kind[at], now.event_data[at], ~0u, ~0u};
            return OK;
        }
        struct timespec pause = {step / 1000, step % 1000 * 1000000L};
        nanosleep(&pause, NULL);
    }
    return 10; /* timeout */
}

struct fabric { unsigned version; unsigned char cluster[16]; int status; unsigned clique; unsigned char state; unsigned health; };
int nvmlDeviceGetGpuFabricInfoV(struct gpu *gpu, struct fabric *fabric) {
    ASK(gpu);
    if (fabric->version != 0x02000024) return 25;
    fabric->state = 3;
    fabric->health = 0x2a;
    return OK;
}

struct process { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; };
int nvmlDeviceGetComputeRunningProcesses_v3(struct gpu *gpu, unsigned *count, struct process *list) {
    ASK(gpu);
    if (now.hidden[gpu->index]) return NO_PERMISSION;
    unsigned have = now.pid[gpu->index] ? 1 : 0, room = *count;
    *count = have;
    if (room < have) return TOO_SMALL;
    if (have) list[0] = (struct process){now.pid[gpu->index], 3ULL << 30, 0xFFFFFFFFu, 0xFFFFFFFFu};
    return OK;
}

int nvmlDeviceGetMigMode(struct gpu *gpu, unsigned *current, unsigned *pending) { ASK(gpu); *current = *pending = now.mig[gpu->index]; return OK; }
int nvmlDeviceGetMaxMigDeviceCount(struct gpu *gpu, unsigned *count) { ASK(gpu); *count = 7; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(struct gpu *gpu, unsigned index, struct gpu **handle) {
    ASK(gpu);
    if (index >= (unsigned)now.instances[gpu->index]) return NOT_FOUND;
    instances[gpu->index][index] = (struct gpu){gpu->index, index};
    *handle = &instances[gpu->index][index];
    return OK;
}
int nvmlDeviceGetGpuInstanceId(struct gpu *gpu, unsigned *id) { *id = 7 + gpu->instance; return OK; }
struct attributes { unsigned multiprocessors, copy, decoder, encoder, jpeg, ofa, gpu_slices, compute_slices; unsigned long long memory_mb; };
int nvmlDeviceGetAttributes_v2(struct gpu *gpu, struct attributes *attributes) {
    if (gpu->instance < 0) return NOT_SUPPORTED;
    memset(attributes, 0, sizeof *attributes);
    attributes->gpu_slices = attributes->compute_slices = 1;
    attributes->memory_mb = 10ULL << 10;
    return OK;
}

/* GPU performance monitoring: a sample keeps when it was taken; a metric needs two samples, the older one first. */
struct sample { unsigned long taken; int percent; };
struct gpm_metric { unsigned id; int code; double value; const char *names[3]; };
struct gpm_request { unsigned version, count; struct sample *first, *second; struct gpm_metric metrics[477]; };
static unsigned long taken, allocated;

int nvmlGpmQueryDeviceSupport(struct gpu *gpu, unsigned *support) { ASK(gpu); support[1] = now.gpm[gpu->index] > 0; return OK; }
int nvmlGpmSampleAlloc(struct sample **sample) { *sample = calloc(1, sizeof **sample); allocated++; return OK; }
int nvmlGpmSampleFree(struct sample *sample) { free(sample); allocated--; return OK; }
unsigned long nvml_stub_allocated(void) { return allocated; }
int nvmlGpmSampleGet(struct gpu *gpu, struct sample *sample) {
    ASK(gpu);
    *sample = (struct sample){++taken, now.gpm[gpu->index]};
    return OK;
}
int nvmlGpmMigSampleGet(struct gpu *gpu, unsigned gpu_instance, struct sample *sample) {
    ASK(gpu);
    *sample = (struct sample){++taken, now.gpm[gpu->index] / (int)gpu_instance};
    return OK;
}
int nvmlGpmMetricsGet(struct gpm_request *request) {
    if (request->version != 1) return 25;
    if (!request->first->taken || request->first->taken >= request->second->taken) return INVALID;
    for (unsigned i = 0; i < request->count; i++) {
        struct gpm_metric *metric = &request->metrics[i];
        metric->value = 3735928559.0; /* what a failed metric holds must never be read */
        metric->code = metric->id == 2 || metric->id == 5 || metric->id == 20 || metric->id == 30 || metric->id == 31 ? OK : NOT_SUPPORTED;
        if (metric->id == 2) metric->value = request->second->percent; /* SM activity, percent */
        if (metric->id == 5) metric->value = request->second->percent / 2.0; /* tensor cores */
        if (metric->id == 20) metric->value = 3.0;                     /* PCIe transmit, MiB/s */
        if (metric->id == 30) metric->value = 25.0;                    /* the first two video decoders */
        if (metric->id == 31) metric->value = 50.0;
    }
    return OK;
}
