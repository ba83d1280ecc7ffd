// A CUDA runtime without a GPU, for LD_PRELOAD under a CUDA build of torch: memory is the host's,
// kernels do nothing, streams, events, captures and graphs keep CUDA's rules, and a call that
// breaks one of them is answered with CUDA's error and told to `hook`.
#include <cuda_runtime_api.h>
#include <cublas_v2.h>
#include <cublasLt.h>
#include <cstdlib>
#include <cstring>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <vector>
#include <set>
#include <functional>
#include <chrono>
#include <thread>
#include <atomic>
#define X extern "C" __attribute__((visibility("default")))
typedef cudaError_t E;
static std::recursive_mutex mu;

// Of Python. Who waits for the runtime gives Python's lock away, since its holder may call `hook`.
extern "C" int PyGILState_Check() __attribute__((weak));
extern "C" void* PyEval_SaveThread() __attribute__((weak));
extern "C" void PyEval_RestoreThread(void*) __attribute__((weak));

struct Lock {
  Lock() {
    if (mu.try_lock()) return;
    void* thread = PyGILState_Check && PyGILState_Check() ? PyEval_SaveThread() : nullptr;
    mu.lock();
    if (thread) PyEval_RestoreThread(thread);
  }
  ~Lock() { mu.unlock(); }
};
#define LOCK Lock lock_
struct Node {
  std::string what;
  std::function<void()> run;
};
struct Graph {
  std::vector<Node> nodes;
};
struct Stream;
struct Capture {
  unsigned long long id;
  int status;
  cudaStreamCaptureMode mode;
  std::thread::id thread;
  Graph* graph;
  std::set<Stream*> streams;
  Stream* origin;
};
struct Stream {
  int id;
  unsigned flags;
  int priority;
  Capture* cap;
  int device;
};
struct Event {
  Capture* cap;
  unsigned long long cap_id;
  double t;
  bool recorded;
  unsigned flags;
};
struct Exec {
  Graph g;
};
static Stream legacy{0, 0, 0, nullptr, -1};
static std::map<char*, std::pair<size_t, int>>
    blocks;  // ptr -> size, kind: 2 device, 1 pinned host
static std::vector<Capture*> captures;
static unsigned long long capture_ids = 1;
static int stream_ids = 1;
static size_t used = 0, total = 80ull << 30;
static thread_local cudaStreamCaptureMode tmode = cudaStreamCaptureModeGlobal;
static int devices() {
  static int n = getenv("FAKE_DEVICES") ? atoi(getenv("FAKE_DEVICES")) : 1;
  return n;
}
static thread_local E last = cudaSuccess;
static thread_local int current = 0;
static std::map<char*, int> owner;  // device of each block
static std::map<std::string, long> counts;
static void (*hook)(const char*) = nullptr;
X void fake_hook(void (*f)(const char*)) { hook = f; }
X long fake_count(const char* k) {
  LOCK;
  auto i = counts.find(k);
  return i == counts.end() ? 0 : i->second;
}
X void fake_each(void (*f)(const char*, long)) {
  LOCK;
  for (auto& c : counts) f(c.first.c_str(), c.second);
}
X void fake_reset() {
  LOCK;
  counts.clear();
}
X void fake_dump() {
  LOCK;
  for (auto& c : counts) fprintf(stderr, "  %-50s %ld\n", c.first.c_str(), c.second);
}
X void fake_register(void* p, size_t n) {
  LOCK;
  blocks[(char*)p] = {n, 2};
  owner[(char*)p] = current;
}
typedef void (*node_fn)(long);
static E work(cudaStream_t st, const char* what, std::function<void()> run);
static Stream* S(cudaStream_t s);
static bool ended = false;  // Python, and so the functions of nodes
X void fake_end() { ended = true; }
// In a capture of the stream: run f(id) at each replay, f(~id) once no graph has the node any more,
// and return 1; else 0.
X int fake_node(void* stream, node_fn f, long id) {
  LOCK;
  Stream* s = S((cudaStream_t)stream);
  if (!s->cap || s->cap->status == 2) return s->cap ? 2 : 0;
  std::shared_ptr<void> owned(nullptr, [=](void*) {
    if (!ended) f(~id);
  });
  s->cap->graph->nodes.push_back({"emulated", [f, id, owned] { f(id); }});
  return 1;
}
X void fake_total(size_t n) { total = n; }
static double now() {
  return std::chrono::duration<double, std::milli>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}
static void say(const std::string& what) {
  counts["! " + what]++;
  if (hook) hook(what.c_str());
}
static E fail(E e) {
  last = e;
  return e;
}
static Stream* S(cudaStream_t s) {
  return (s == 0 || s == cudaStreamLegacy || s == cudaStreamPerThread) ? &legacy : (Stream*)s;
}
static Capture* mine() {  // the capture that forbids unsafe calls in this thread
  if (tmode == cudaStreamCaptureModeRelaxed) return nullptr;
  for (auto c : captures) {
    if (c->mode == cudaStreamCaptureModeRelaxed) continue;
    if (c->thread == std::this_thread::get_id() || c->mode == cudaStreamCaptureModeGlobal) return c;
  }
  return nullptr;
}
static bool underway() { return !captures.empty(); }
static E unsafe(const char* what) {
  Capture* c = mine();
  if (!c) {
    if (underway()) counts[std::string("relaxed during capture: ") + what]++;
    return cudaSuccess;
  }
  c->status = 2;
  say(std::string("unsafe call during capture: ") + what);
  return fail(cudaErrorStreamCaptureUnsupported);
}
static int kindof(const void* p, char** base = nullptr) {
  auto i = blocks.upper_bound((char*)p);
  if (i == blocks.begin()) return 0;
  --i;
  if ((char*)p < i->first + i->second.first) {
    if (base) *base = i->first;
    return i->second.second;
  }
  return 0;
}
static E work(cudaStream_t st, const char* what, std::function<void()> run) {
  Stream* s = S(st);
  if (s->device >= 0 && s->device != current && strcmp(what, "event"))
    say(std::string(what) + " on a stream of another device than the current");
  if (devices() > 1) {
    counts[std::string(what) + " on device " + std::to_string(current)]++;
    if (hook && s->id == 0)
      hook((std::string("default stream: ") + what + " on device " + std::to_string(current))
               .c_str());
  }
  if (s->cap) {
    if (s->cap->status == 2) return fail(cudaErrorStreamCaptureInvalidated);
    s->cap->graph->nodes.push_back({what, run});
    counts[std::string("captured ") + what]++;
    return cudaSuccess;
  }
  if (underway()) {
    say(std::string(what) + " on a stream that is not captured, during a capture (stream " +
        std::to_string(s->id) + ")");
  }
  counts[std::string(what) + " on stream " + std::to_string(s->id)]++;
  if (s->id == 0 && hook) hook((std::string("default stream: ") + what).c_str());
  if (run) run();
  return cudaSuccess;
}
// ---- devices
X E cudaGetDeviceCount(int* n) {
  *n = devices();
  return cudaSuccess;
}
X E cudaGetDevice(int* d) {
  *d = current;
  return cudaSuccess;
}
X E cudaSetDevice(int d) {
  if (d < 0 || d >= devices()) return fail(cudaErrorInvalidDevice);
  current = d;
  return cudaSuccess;
}
X E cudaDriverGetVersion(int* v) {
  *v = 13000;
  return cudaSuccess;
}
X E cudaRuntimeGetVersion(int* v) {
  *v = 13000;
  return cudaSuccess;
}
X E cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  memset(p, 0, sizeof *p);
  strcpy(p->name, "NVIDIA H100 (simulated)");
  p->major = 9;
  p->minor = 0;
  p->totalGlobalMem = total;
  p->multiProcessorCount = 132;
  p->maxThreadsPerMultiProcessor = 2048;
  p->warpSize = 32;
  p->sharedMemPerBlock = 49152;
  p->sharedMemPerBlockOptin = 232448;
  p->sharedMemPerMultiprocessor = 233472;
  p->regsPerBlock = 65536;
  p->regsPerMultiprocessor = 65536;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->l2CacheSize = 50 << 20;
  p->memoryBusWidth = 5120;
  p->maxBlocksPerMultiProcessor = 32;
  p->concurrentKernels = 1;
  p->unifiedAddressing = 1;
  p->managedMemory = 1;
  p->asyncEngineCount = 3;
  p->reservedSharedMemPerBlock = 1024;
  p->textureAlignment = 512;
  p->memPitch = 2147483647;
  p->canMapHostMemory = 1;
  p->totalConstMem = 65536;
  return cudaSuccess;
}
X E cudaDeviceGetAttribute(int* v, cudaDeviceAttr a, int) {
  switch (a) {
    case cudaDevAttrComputeCapabilityMajor:
      *v = 9;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *v = 0;
      break;
    case cudaDevAttrMultiProcessorCount:
      *v = 132;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *v = 232448;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *v = 49152;
      break;
    case cudaDevAttrMaxThreadsPerBlock:
      *v = 1024;
      break;
    case cudaDevAttrMaxGridDimX:
      *v = 2147483647;
      break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
      *v = 65535;
      break;
    case cudaDevAttrWarpSize:
      *v = 32;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *v = 2048;
      break;
    default:
      *v = 1;
  }
  return cudaSuccess;
}
X E cudaDeviceCanAccessPeer(int* c, int, int) {
  *c = 0;
  return cudaSuccess;
}
X E cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
X E cudaDeviceGetPCIBusId(char* s, int n, int) {
  snprintf(s, n, "0000:00:00.0");
  return cudaSuccess;
}
X E cudaDeviceGetStreamPriorityRange(int* a, int* b) {
  *a = 0;
  *b = -5;
  return cudaSuccess;
}
X E cudaDeviceSynchronize() {
  LOCK;
  E e = unsafe("cudaDeviceSynchronize");
  counts["synchronise device"]++;
  if (hook) hook("sync: cudaDeviceSynchronize");
  return e;
}
X E cudaMemGetInfo(size_t* f, size_t* t) {
  LOCK;
  *f = total - used;
  *t = total;
  return cudaSuccess;
}
X const char* cudaGetErrorName(E e) {
  static thread_local char b[64];
  snprintf(b, 64, "cudaError%d", e);
  return b;
}
X const char* cudaGetErrorString(E e) {
  static thread_local char b[64];
  snprintf(b, 64, "simulated CUDA error %d", e);
  return b;
}
X E cudaGetLastError() {
  E e = last;
  last = cudaSuccess;
  return e;
}
X E cudaPeekAtLastError() { return last; }
X E cudaGetDriverEntryPointByVersion(const char*, void** p, unsigned, unsigned long long,
                                     cudaDriverEntryPointQueryResult* r) {
  *p = nullptr;
  if (r) *r = cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
// ---- memory
static E give(void** p, size_t n, int kind) {
  LOCK;
  if (kind == 2 && used + n > total) return fail(cudaErrorMemoryAllocation);
  void* q = nullptr;
  if (posix_memalign(&q, 4096, n ? n : 1)) return fail(cudaErrorMemoryAllocation);
  memset(q, 0, n);
  blocks[(char*)q] = {n, kind};
  owner[(char*)q] = current;
  if (kind == 2) {
    used += n;
    if (devices() > 1) {
      counts["malloc on device " + std::to_string(current)]++;
      if (hook) hook(("malloc on device " + std::to_string(current)).c_str());
    }
  }
  *p = q;
  return cudaSuccess;
}
static E take(void* p) {
  LOCK;
  auto i = blocks.find((char*)p);
  if (!p) return cudaSuccess;
  if (i == blocks.end()) return cudaSuccess;
  if (i->second.second == 2) used -= i->second.first;
  blocks.erase(i);
  free(p);
  return cudaSuccess;
}
X E cudaMalloc(void** p, size_t n) {
  {
    LOCK;
    if (E e = unsafe("cudaMalloc")) return e;
    counts["cudaMalloc"]++;
  }
  return give(p, n, 2);
}
X E cudaFree(void* p) {
  {
    LOCK;
    if (E e = unsafe("cudaFree")) return e;
    counts["cudaFree"]++;
  }
  return take(p);
}
X E cudaMallocAsync(void** p, size_t n, cudaStream_t) { return give(p, n, 2); }
X E cudaFreeAsync(void* p, cudaStream_t) { return take(p); }
X E cudaHostAlloc(void** p, size_t n, unsigned) {
  {
    LOCK;
    if (E e = unsafe("cudaHostAlloc")) return e;
    counts["cudaHostAlloc"]++;
    if (hook) hook("sync: cudaHostAlloc");
  }
  return give(p, n, 1);
}
X E cudaFreeHost(void* p) {
  {
    LOCK;
    if (E e = unsafe("cudaFreeHost")) return e;
  }
  return take(p);
}
X E cudaHostRegister(void* p, size_t n, unsigned) {
  LOCK;
  blocks[(char*)p] = {n, 1};
  return cudaSuccess;
}
X E cudaHostUnregister(void* p) {
  LOCK;
  blocks.erase((char*)p);
  return cudaSuccess;
}
X E cudaPointerGetAttributes(cudaPointerAttributes* a, const void* p) {
  LOCK;
  memset(a, 0, sizeof *a);
  char* base = nullptr;
  int k = kindof(p, &base);
  a->type = k == 2   ? cudaMemoryTypeDevice
            : k == 1 ? cudaMemoryTypeHost
                     : cudaMemoryTypeUnregistered;
  a->device = k ? owner[base] : -1;
  a->devicePointer = k ? (void*)p : nullptr;
  a->hostPointer = k == 2 ? nullptr : (void*)p;
  return cudaSuccess;
}
X E cudaMemcpyAsync(void* d, const void* s, size_t n, cudaMemcpyKind, cudaStream_t st) {
  LOCK;
  int a = kindof(d), b = kindof(s);
  const char* w = a == 2 && b == 2   ? "copy DtoD"
                  : a == 2 && b == 1 ? "copy HtoD pinned"
                  : a == 2           ? "copy HtoD pageable"
                  : b == 2 && a == 1 ? "copy DtoH pinned"
                  : b == 2           ? "copy DtoH pageable"
                                     : "copy HtoH";
  if (S(st)->cap && (a != 2 || b != 2)) say(std::string("recorded in a graph: ") + w);
  return work(st, w, [=] { memcpy(d, s, n); });
}
X E cudaMemcpy(void* d, const void* s, size_t n, cudaMemcpyKind) {
  LOCK;
  if (E e = unsafe("cudaMemcpy")) return e;
  counts["cudaMemcpy"]++;
  if (hook) hook("sync: cudaMemcpy");
  memcpy(d, s, n);
  return cudaSuccess;
}
X E cudaMemcpy2DAsync(void* d, size_t dp, const void* s, size_t sp, size_t w, size_t h,
                      cudaMemcpyKind, cudaStream_t st) {
  LOCK;
  return work(st, "copy 2D", [=] {
    for (size_t i = 0; i < h; i++) memcpy((char*)d + i * dp, (char*)s + i * sp, w);
  });
}
X E cudaMemcpyPeerAsync(void* d, int, const void* s, int, size_t n, cudaStream_t st) {
  LOCK;
  return work(st, "copy peer", [=] { memcpy(d, s, n); });
}
X E cudaMemset(void* p, int v, size_t n) {
  LOCK;
  if (E e = unsafe("cudaMemset")) return e;
  memset(p, v, n);
  return cudaSuccess;
}
X E cudaMemsetAsync(void* p, int v, size_t n, cudaStream_t st) {
  LOCK;
  return work(st, "memset", [=] { memset(p, v, n); });
}
X E cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) {
  return cudaSuccess;
}
X E cudaGetSymbolAddress(void** p, const void* s) {
  *p = (void*)s;
  return cudaSuccess;
}
X E cudaDeviceGetDefaultMemPool(cudaMemPool_t* p, int) {
  *p = (cudaMemPool_t)1;
  return cudaSuccess;
}
X E cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void* v) {
  *(uint64_t*)v = 0;
  return cudaSuccess;
}
X E cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
X E cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc*, size_t) { return cudaSuccess; }
X E cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }
X E cudaIpcGetMemHandle(cudaIpcMemHandle_t*, void*) { return fail(cudaErrorNotSupported); }
X E cudaIpcOpenMemHandle(void**, cudaIpcMemHandle_t, unsigned) {
  return fail(cudaErrorNotSupported);
}
X E cudaIpcCloseMemHandle(void*) { return cudaSuccess; }
X E cudaIpcGetEventHandle(cudaIpcEventHandle_t*, cudaEvent_t) {
  return fail(cudaErrorNotSupported);
}
X E cudaIpcOpenEventHandle(cudaEvent_t*, cudaIpcEventHandle_t) {
  return fail(cudaErrorNotSupported);
}
// ---- streams, events
X E cudaStreamCreateWithPriority(cudaStream_t* s, unsigned f, int p) {
  LOCK;
  *s = (cudaStream_t) new Stream{stream_ids++, f, p, nullptr, current};
  return cudaSuccess;
}
X E cudaStreamCreate(cudaStream_t* s) { return cudaStreamCreateWithPriority(s, 0, 0); }
X E cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
X E cudaStreamGetFlags(cudaStream_t s, unsigned* f) {
  *f = S(s)->flags;
  return cudaSuccess;
}
X E cudaStreamGetPriority(cudaStream_t s, int* p) {
  *p = S(s)->priority;
  return cudaSuccess;
}
static E sync(Stream* s, const char* what) {
  if (s->cap) {
    s->cap->status = 2;
    say(std::string(what) + " of the stream that is captured");
    return fail(cudaErrorStreamCaptureUnsupported);
  }
  counts["synchronise"]++;
  if (hook) hook((std::string("sync: ") + what).c_str());
  return cudaSuccess;
}
X E cudaStreamSynchronize(cudaStream_t s) {
  LOCK;
  return sync(S(s), "cudaStreamSynchronize");
}
X E cudaStreamQuery(cudaStream_t s) {
  LOCK;
  if (S(s)->cap) return sync(S(s), "cudaStreamQuery");
  return cudaSuccess;
}
X E cudaEventCreateWithFlags(cudaEvent_t* e, unsigned f) {
  LOCK;
  *e = (cudaEvent_t) new Event{nullptr, 0, 0, false, f};
  counts["event created"]++;
  return cudaSuccess;
}
X E cudaEventCreate(cudaEvent_t* e) { return cudaEventCreateWithFlags(e, 0); }
X E cudaEventDestroy(cudaEvent_t e) {
  LOCK;
  counts["event destroyed"]++;
  delete (Event*)e;
  return cudaSuccess;
}
X E cudaEventRecordWithFlags(cudaEvent_t ev, cudaStream_t st, unsigned) {
  LOCK;
  Event* e = (Event*)ev;
  Stream* s = S(st);
  e->recorded = true;
  e->cap = s->cap;
  e->cap_id = s->cap ? s->cap->id : 0;
  e->t = now();
  if (s->cap && !(e->flags & cudaEventDisableTiming)) say("timing event recorded in a capture");
  return work(st, "event", nullptr);
}
X E cudaEventRecord(cudaEvent_t e, cudaStream_t s) { return cudaEventRecordWithFlags(e, s, 0); }
static bool captured(Event* e) {
  for (auto c : captures)
    if (c == e->cap && c->id == e->cap_id) return true;
  return false;
}
X E cudaEventQuery(cudaEvent_t ev) {
  LOCK;
  Event* e = (Event*)ev;
  if (e->cap_id) {
    if (captured(e)) e->cap->status = 2;
    say("cudaEventQuery of an event last recorded in a capture");
    return fail(cudaErrorCapturedEvent);
  }
  return unsafe("cudaEventQuery");
}
X E cudaEventSynchronize(cudaEvent_t ev) {
  LOCK;
  Event* e = (Event*)ev;
  if (e->cap_id) {
    if (captured(e)) e->cap->status = 2;
    say("cudaEventSynchronize of an event last recorded in a capture");
    return fail(cudaErrorCapturedEvent);
  }
  counts["synchronise event"]++;
  if (hook) hook("sync: cudaEventSynchronize");
  return unsafe("cudaEventSynchronize");
}
X E cudaEventElapsedTime(float* ms, cudaEvent_t a, cudaEvent_t b) {
  LOCK;
  Event *x = (Event*)a, *y = (Event*)b;
  if (!x->recorded || !y->recorded || x->cap || y->cap) {
    say("elapsed time of events that were not recorded, or in a capture");
    return fail(cudaErrorInvalidResourceHandle);
  }
  *ms = float(y->t - x->t);
  return cudaSuccess;
}
X E cudaStreamWaitEvent(cudaStream_t st, cudaEvent_t ev, unsigned) {
  LOCK;
  Stream* s = S(st);
  Event* e = (Event*)ev;
  if (captured(e)) {
    if (!s->cap) {
      s->cap = e->cap;
      e->cap->streams.insert(s);
      counts["stream joined a capture"]++;
    }
    return cudaSuccess;
  }
  if (s->cap && e->recorded) {
    s->cap->status = 2;
    say("captured stream waits for an event recorded outside");
    return fail(cudaErrorStreamCaptureIsolation);
  }
  return cudaSuccess;
}
X E cudaLaunchHostFunc(cudaStream_t st, cudaHostFn_t f, void* d) {
  LOCK;
  return work(st, "host function", [=] { f(d); });
}
X E cudaStreamAddCallback(cudaStream_t st, cudaStreamCallback_t f, void* d, unsigned) {
  LOCK;
  return work(st, "callback", [=] { f(st, cudaSuccess, d); });
}
X E cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* m) {
  std::swap(*m, tmode);
  return cudaSuccess;
}
X E cudaStreamBeginCapture(cudaStream_t st, cudaStreamCaptureMode m) {
  LOCK;
  Stream* s = S(st);
  if (s->id == 0) {
    say("capture of the default stream");
    return fail(cudaErrorStreamCaptureUnsupported);
  }
  if (s->cap) return fail(cudaErrorIllegalState);
  s->cap = new Capture{capture_ids++, 1, m, std::this_thread::get_id(), new Graph, {s}, s};
  captures.push_back(s->cap);
  counts["capture begun"]++;
  return cudaSuccess;
}
X E cudaStreamEndCapture(cudaStream_t st, cudaGraph_t* g) {
  LOCK;
  Stream* s = S(st);
  Capture* c = s->cap;
  if (!c) return fail(cudaErrorIllegalState);
  if (c->mode != cudaStreamCaptureModeRelaxed && c->thread != std::this_thread::get_id()) {
    say("capture ended by another thread");
    return fail(cudaErrorStreamCaptureWrongThread);
  }
  for (auto x : c->streams) x->cap = nullptr;
  for (size_t i = 0; i < captures.size(); i++)
    if (captures[i] == c) captures.erase(captures.begin() + i--);
  counts["capture ended"]++;
  if (c->status == 2) {
    *g = nullptr;
    return fail(cudaErrorStreamCaptureInvalidated);
  }
  *g = (cudaGraph_t)c->graph;
  return cudaSuccess;
}
X E cudaStreamIsCapturing(cudaStream_t st, cudaStreamCaptureStatus* v) {
  LOCK;
  Stream* s = S(st);
  *v = s->cap ? (cudaStreamCaptureStatus)s->cap->status : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
X E cudaStreamGetCaptureInfo(cudaStream_t st, cudaStreamCaptureStatus* v, unsigned long long* id,
                             cudaGraph_t* g, const cudaGraphNode_t** d,
                             const cudaGraphEdgeData** ed, size_t* n) {
  LOCK;
  Stream* s = S(st);
  *v = s->cap ? (cudaStreamCaptureStatus)s->cap->status : cudaStreamCaptureStatusNone;
  if (id) *id = s->cap ? s->cap->id : 0;
  if (g) *g = s->cap ? (cudaGraph_t)s->cap->graph : nullptr;
  if (d) *d = nullptr;
  if (ed) *ed = nullptr;
  if (n) *n = 0;
  return cudaSuccess;
}
// ---- graphs
X E cudaGraphInstantiateWithFlags(cudaGraphExec_t* x, cudaGraph_t g, unsigned long long f) {
  LOCK;
  counts["instantiate flags " + std::to_string(f)]++;
  *x = (cudaGraphExec_t) new Exec{*(Graph*)g};
  counts["graph instantiated"]++;
  return cudaSuccess;
}
X E cudaGraphInstantiate(cudaGraphExec_t* x, cudaGraph_t g, unsigned long long f) {
  return cudaGraphInstantiateWithFlags(x, g, f);
}
X E cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t* a, size_t* n) {
  LOCK;
  if (!a) *n = ((Graph*)g)->nodes.size();
  return cudaSuccess;
}
X E cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t st) {
  LOCK;
  Stream* s = S(st);
  if (s->cap) say("graph launched in a capture");
  counts["graph launch on stream " + std::to_string(s->id)]++;
  for (auto& n : ((Exec*)x)->g.nodes)
    if (n.run) n.run();
  return cudaSuccess;
}
X E cudaGraphDestroy(cudaGraph_t g) {
  LOCK;
  delete (Graph*)g;
  return cudaSuccess;
}
X E cudaGraphExecDestroy(cudaGraphExec_t x) {
  LOCK;
  if (E e = unsafe("cudaGraphExecDestroy")) return e;
  counts["graph destroyed"]++;
  delete (Exec*)x;
  return cudaSuccess;
}
X E cudaGraphDebugDotPrint(cudaGraph_t, const char*, unsigned) { return cudaSuccess; }
X E cudaGraphNodeGetDependencies(cudaGraphNode_t, cudaGraphNode_t*, cudaGraphEdgeData*, size_t* n) {
  *n = 0;
  return cudaSuccess;
}
// ---- kernels
X E cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t st) {
  LOCK;
  return work(st, "kernel", nullptr);
}
X E __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t st) {
  LOCK;
  return work(st, "kernel", nullptr);
}
X E cudaLaunchKernelExC(const cudaLaunchConfig_t* c, const void*, void**) {
  LOCK;
  return work(c->stream, "kernel", nullptr);
}
X E __cudaGetKernel(cudaKernel_t* k, const void* f) {
  *k = (cudaKernel_t)f;
  return cudaSuccess;
}
X char __cudaInitModule(void**) { return 1; }
struct Config {
  dim3 g, b;
  size_t m;
  cudaStream_t s;
};
static thread_local std::vector<Config> configs;
X unsigned __cudaPushCallConfiguration(dim3 g, dim3 b, size_t m, cudaStream_t s) {
  configs.push_back({g, b, m, s});
  return 0;
}
X E __cudaPopCallConfiguration(dim3* g, dim3* b, size_t* m, void* s) {
  auto c = configs.back();
  configs.pop_back();
  *g = c.g;
  *b = c.b;
  *m = c.m;
  *(cudaStream_t*)s = c.s;
  return cudaSuccess;
}
X void** __cudaRegisterFatBinary(void*) {
  static void* h;
  return &h;
}
X void __cudaRegisterFatBinaryEnd(void**) {}
X void __cudaUnregisterFatBinary(void**) {}
X void __cudaRegisterFunction(void**, const char*, char*, const char*, int, void*, void*, void*,
                              void*, int*) {}
X void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
X E cudaFuncGetAttributes(cudaFuncAttributes* a, const void*) {
  memset(a, 0, sizeof *a);
  a->maxThreadsPerBlock = 1024;
  a->numRegs = 32;
  a->binaryVersion = 90;
  a->ptxVersion = 90;
  a->maxDynamicSharedSizeBytes = 49152;
  return cudaSuccess;
}
X E cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
X E cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* n, const void*, int, size_t,
                                                           unsigned) {
  *n = 2;
  return cudaSuccess;
}
X E cudaProfilerStart() { return cudaSuccess; }
X E cudaProfilerStop() { return cudaSuccess; }
// ---- cuBLAS
struct Handle {
  cudaStream_t s;
  cublasMath_t m;
  cublasPointerMode_t p;
};
typedef cublasStatus_t B;
#undef cublasCreate
X B cublasCreate_v2(cublasHandle_t* h) {
  LOCK;
  if (unsafe("cublasCreate")) return CUBLAS_STATUS_NOT_INITIALIZED;
  counts["cublasCreate"]++;
  *h = (cublasHandle_t) new Handle{0, CUBLAS_DEFAULT_MATH, CUBLAS_POINTER_MODE_HOST};
  return CUBLAS_STATUS_SUCCESS;
}
X B cublasDestroy_v2(cublasHandle_t) { return CUBLAS_STATUS_SUCCESS; }
X B cublasSetStream_v2(cublasHandle_t h, cudaStream_t s) {
  ((Handle*)h)->s = s;
  return CUBLAS_STATUS_SUCCESS;
}
X B cublasSetWorkspace_v2(cublasHandle_t, void*, size_t) { return CUBLAS_STATUS_SUCCESS; }
X B cublasSetMathMode(cublasHandle_t h, cublasMath_t m) {
  ((Handle*)h)->m = m;
  return CUBLAS_STATUS_SUCCESS;
}
X B cublasGetMathMode(cublasHandle_t h, cublasMath_t* m) {
  *m = ((Handle*)h)->m;
  return CUBLAS_STATUS_SUCCESS;
}
X B cublasSetPointerMode_v2(cublasHandle_t h, cublasPointerMode_t p) {
  ((Handle*)h)->p = p;
  return CUBLAS_STATUS_SUCCESS;
}
X B cublasGetPointerMode_v2(cublasHandle_t h, cublasPointerMode_t* p) {
  *p = ((Handle*)h)->p;
  return CUBLAS_STATUS_SUCCESS;
}
static B gemm(cublasHandle_t h) {
  LOCK;
  work(((Handle*)h)->s, "kernel", nullptr);
  return CUBLAS_STATUS_SUCCESS;
}
X B cublasSgemm_v2(cublasHandle_t h, cublasOperation_t, cublasOperation_t, int, int, int,
                   const float*, const float*, int, const float*, int, const float*, float*, int) {
  return gemm(h);
}
X B cublasDgemm_v2(cublasHandle_t h, cublasOperation_t, cublasOperation_t, int, int, int,
                   const double*, const double*, int, const double*, int, const double*, double*,
                   int) {
  return gemm(h);
}
X B cublasSgemv_v2(cublasHandle_t h, cublasOperation_t, int, int, const float*, const float*, int,
                   const float*, int, const float*, float*, int) {
  return gemm(h);
}
X B cublasSgemmStridedBatched(cublasHandle_t h, cublasOperation_t, cublasOperation_t, int, int, int,
                              const float*, const float*, int, long long, const float*, int,
                              long long, const float*, float*, int, long long, int) {
  return gemm(h);
}
X B cublasGemmEx(cublasHandle_t h, cublasOperation_t, cublasOperation_t, int, int, int, const void*,
                 const void*, cudaDataType, int, const void*, cudaDataType, int, const void*, void*,
                 cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t) {
  return gemm(h);
}
X B cublasGemmStridedBatchedEx(cublasHandle_t h, cublasOperation_t, cublasOperation_t, int, int,
                               int, const void*, const void*, cudaDataType, int, long long,
                               const void*, cudaDataType, int, long long, const void*, void*,
                               cudaDataType, int, long long, int, cublasComputeType_t,
                               cublasGemmAlgo_t) {
  return gemm(h);
}
X B cublasSdot_v2(cublasHandle_t h, int, const float*, int, const float*, int, float*) {
  return gemm(h);
}
X size_t cublasLtGetVersion() { return 130000; }
X B cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* d, cublasComputeType_t, cudaDataType_t) {
  *d = (cublasLtMatmulDesc_t)calloc(1, 512);
  return CUBLAS_STATUS_SUCCESS;
}
X B cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) {
  free(d);
  return CUBLAS_STATUS_SUCCESS;
}
X B cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t,
                                   const void*, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}
X B cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* d, cudaDataType, uint64_t, uint64_t,
                               int64_t) {
  *d = (cublasLtMatrixLayout_t)calloc(1, 512);
  return CUBLAS_STATUS_SUCCESS;
}
X B cublasLtMatrixLayoutDestroy(const cublasLtMatrixLayout_t d) {
  free((void*)d);
  return CUBLAS_STATUS_SUCCESS;
}
X B cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t,
                                     const void*, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}
X B cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* d) {
  *d = (cublasLtMatmulPreference_t)calloc(1, 512);
  return CUBLAS_STATUS_SUCCESS;
}
X B cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t d) {
  free(d);
  return CUBLAS_STATUS_SUCCESS;
}
X B cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                         cublasLtMatmulPreferenceAttributes_t, const void*,
                                         size_t) {
  return CUBLAS_STATUS_SUCCESS;
}
X B cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                   cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                   cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int,
                                   cublasLtMatmulHeuristicResult_t* r, int* n) {
  memset(r, 0, sizeof *r);
  *n = 1;
  return CUBLAS_STATUS_SUCCESS;
}
X B cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t, const void*, const void*,
                   cublasLtMatrixLayout_t, const void*, cublasLtMatrixLayout_t, const void*,
                   const void*, cublasLtMatrixLayout_t, void*, cublasLtMatrixLayout_t,
                   const cublasLtMatmulAlgo_t*, void*, size_t, cudaStream_t s) {
  LOCK;
  work(s, "kernel", nullptr);
  return CUBLAS_STATUS_SUCCESS;
}
