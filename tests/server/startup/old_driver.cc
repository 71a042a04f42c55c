// Replaces NVIDIA's libcuda.so.1 by one of a driver too old for CUDA 13.
extern "C" int cuDriverGetVersion(int* version);
extern "C" int cuDriverGetVersion(int* version) {
  *version = 12040;
  return 0;
}
