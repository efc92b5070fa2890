# The packages that folders link, found once here: imported targets are visible in the folder that finds them and below.
find_package(CLI11 REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_library(CSV_LIBRARY csv REQUIRED) # linked by its name, as the next three: Debian ships no CMake package
find_library(SENTENCEPIECE_LIBRARY sentencepiece REQUIRED)
find_library(PCRE2_LIBRARY pcre2-8 REQUIRED)
find_library(UTF8PROC_LIBRARY utf8proc REQUIRED)
find_path(GLOO_INCLUDE gloo/transport/device.h REQUIRED) # headers alone: libtorch holds the code
if(PLIMSOLL_TESTS)
  find_package(GTest REQUIRED)
endif()
if(PLIMSOLL_BENCH)
  find_package(benchmark REQUIRED)
endif()
