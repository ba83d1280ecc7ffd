int cuInit(unsigned f) { return 0; }
int cuDevicePrimaryCtxGetState(int d, unsigned* f, int* a) {
  *f = 0;
  *a = 1;
  return 0;
}
int cuCtxGetCurrent(void** c) {
  *c = (void*)1;
  return 0;
}
int cuCtxSetCurrent(void* c) { return 0; }
int cuDriverGetVersion(int* v) {
  *v = 13000;
  return 0;
}
int cuGetErrorString(int e, const char** s) {
  *s = "simulated";
  return 0;
}
int cuDeviceGetCount(int* n) {
  *n = 1;
  return 0;
}
