// The contents of GetModelInfo and GetServerInfo as wire messages. Stateless.
#ifndef HYDRANT_SERVER_WIRE_MODEL_INFO_H_
#define HYDRANT_SERVER_WIRE_MODEL_INFO_H_

#include "hydrant/v1/hydrant.pb.h"
#include "scheduler/serving_loop.h"
#include "server/wire/served_model.h"

namespace hydrant {

v1::GetModelInfoResponse DescribeModel(const ServedModel& model);
v1::PoolInfo DescribePool(const ServedModel& model, const ServingStats& snapshot);
v1::LoadInfo DescribeLoad(const ServingStats& snapshot);
void DescribePolicies(google::protobuf::RepeatedPtrField<v1::PolicyInfo>* policies);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_WIRE_MODEL_INFO_H_
