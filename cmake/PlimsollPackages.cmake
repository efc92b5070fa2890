# The packages that folders link, found once here: imported targets are visible in the folder that finds them and below.
find_package(CLI11 REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
include(PlimsollLibraries)
find_path(GLOO_INCLUDE gloo/transport/device.h REQUIRED) # headers alone: libtorch holds the code
if(PLIMSOLL_TESTS)
  find_package(GTest REQUIRED)
endif()
if(PLIMSOLL_BENCH)
  find_package(benchmark REQUIRED)
endif()
