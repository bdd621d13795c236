# SPDX-License-Identifier: Apache-2.0
# lynx_proto: the messages and services of proto/lynx.proto.
set(LYNX_PROTO_DIR ${PROJECT_BINARY_DIR}/proto)
file(MAKE_DIRECTORY ${LYNX_PROTO_DIR})
set(LYNX_PROTO_OUT ${LYNX_PROTO_DIR}/lynx.pb.cc ${LYNX_PROTO_DIR}/lynx.pb.h
                   ${LYNX_PROTO_DIR}/lynx.grpc.pb.cc ${LYNX_PROTO_DIR}/lynx.grpc.pb.h)
add_custom_command(
  OUTPUT ${LYNX_PROTO_OUT}
  COMMAND protobuf::protoc --proto_path=${PROJECT_SOURCE_DIR}/proto --cpp_out=${LYNX_PROTO_DIR}
          --grpc_out=${LYNX_PROTO_DIR} --plugin=protoc-gen-grpc=$<TARGET_FILE:gRPC::grpc_cpp_plugin>
          lynx.proto
  DEPENDS ${PROJECT_SOURCE_DIR}/proto/lynx.proto
  VERBATIM)
add_library(lynx_proto STATIC ${LYNX_PROTO_OUT})
target_include_directories(lynx_proto SYSTEM PUBLIC ${LYNX_PROTO_DIR})
target_link_libraries(lynx_proto PUBLIC protobuf::libprotobuf gRPC::grpc++)
