// Values of the 4-bit quants of the codebook formats. Tables of the ggml project
// (kvalues_iq4nl, kvalues_mxfp4).
#ifndef HYDRANT_KERNELS_CODEBOOKS_H_
#define HYDRANT_KERNELS_CODEBOOKS_H_

namespace hydrant {

// iq4_nl and iq4_xs: non-linear steps, finer around zero.
inline constexpr int kIq4NlValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                         1,    13,   25,  38,  53,  69,  89,  113};

// mxfp4: twice the values of e2m1 (OCP Microscaling Formats 1.0, 5.3.3); a block's scale is half of
// the power of two that its exponent encodes.
inline constexpr int kMxfp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_CODEBOOKS_H_
