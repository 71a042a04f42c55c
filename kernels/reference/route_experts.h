// The two halves of RouteExperts: the cpu backend runs the first for many rows at once.
// Stateless: any thread may call.
#ifndef HYDRANT_KERNELS_REFERENCE_ROUTE_EXPERTS_H_
#define HYDRANT_KERNELS_REFERENCE_ROUTE_EXPERTS_H_

#include "kernels/ops/experts.h"

namespace hydrant::reference {

// Writes `chosen` and `weights` of one row.
void ChooseExperts(const RouteExpertsArgs& args, int row);

// Writes `offsets`, `sources` and `places` from the experts chosen for all rows.
void GroupByExpert(const RouteExpertsArgs& args);

}  // namespace hydrant::reference

#endif  // HYDRANT_KERNELS_REFERENCE_ROUTE_EXPERTS_H_
