// SPDX-License-Identifier: Apache-2.0
// Values <-> messages. Nothing here decides anything; a message that cannot be a value is
// kInvalidArgument and names the field.
#pragma once

#include "engine/remote_prefill.h"
#include "lynx.pb.h"
#include "lynx/engine_stats.h"
#include "lynx/request.h"

namespace lynx {

v1::GenerateRequest ToProto(const Request& request);
absl::StatusOr<Request> FromProto(const v1::GenerateRequest& message, int vocab_size);

// Times become relative to the timeline's arrival, since clocks differ between machines.
v1::GenerateReply ToProto(const EngineOutput& output);
EngineOutput FromProto(const v1::GenerateReply& message);

v1::PrefillStart ToProto(const RemotePrefillRequest& request);
absl::StatusOr<RemotePrefillRequest> FromProto(const v1::PrefillStart& message, int vocab_size);

v1::Verify ToProto(const VerifyRequest& request);
absl::StatusOr<VerifyRequest> FromProto(const v1::Verify& message, AttemptId attempt,
                                        int vocab_size);

v1::PrefillReply ToProto(const RemotePrefillEvent& event);
RemotePrefillEvent FromProto(const v1::PrefillReply& message, AttemptId attempt);

v1::StatsReply ToProto(const EngineStats& stats);
EngineStats FromProto(const v1::StatsReply& message);

}  // namespace lynx
