// Stands in for NVIDIA's libcuda.so.1 of a driver that is too old for CUDA 13.
extern "C" int cuDriverGetVersion(int* version);
extern "C" int cuDriverGetVersion(int* version) {
  *version = 12040;
  return 0;
}
