# Finds the libtorch inside the chosen Python (PLIMSOLL_PYTHON) and the OpenMP runtime that it loads.
# Sets: targets `plimsoll_torch` and `plimsoll_openmp`, both imported, so that an installed Plimsoll makes them anew for its own machine.
if(SKBUILD) # pip builds for its own interpreter
  set(PLIMSOLL_PYTHON "${Python_EXECUTABLE}" CACHE FILEPATH "Python interpreter that has torch >= 2.11")
endif()
set(PLIMSOLL_PYTHON "${CMAKE_SOURCE_DIR}/.venv/bin/python" CACHE FILEPATH "Python interpreter that has torch >= 2.11")
if(NOT EXISTS "${PLIMSOLL_PYTHON}")
  message(FATAL_ERROR "PLIMSOLL_PYTHON: expected a Python interpreter with torch, got '${PLIMSOLL_PYTHON}' (run `make setup`)")
endif()

# Asked once per interpreter: importing torch takes seconds.
if(NOT PLIMSOLL_TORCH_OF STREQUAL PLIMSOLL_PYTHON)
  execute_process(
    COMMAND "${PLIMSOLL_PYTHON}" -c "import torch; print(torch.__path__[0])"
    OUTPUT_VARIABLE package OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE status ERROR_VARIABLE error)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "PLIMSOLL_PYTHON: '${PLIMSOLL_PYTHON}' cannot import torch:\n${error}")
  endif()
  set(PLIMSOLL_TORCH_PACKAGE "${package}" CACHE INTERNAL "Directory of the torch package")
  set(PLIMSOLL_TORCH_OF "${PLIMSOLL_PYTHON}" CACHE INTERNAL "Interpreter that the package belongs to")
endif()
# Files that are configured with the version, as lib/plimsoll_torch_version, follow when pip installs another torch in its place.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${PLIMSOLL_TORCH_PACKAGE}/version.py")
file(STRINGS "${PLIMSOLL_TORCH_PACKAGE}/version.py" PLIMSOLL_TORCH_VERSION REGEX "^__version__ = ")
string(REGEX MATCH "[0-9]+[.][0-9]+[.][0-9]+" PLIMSOLL_TORCH_VERSION "${PLIMSOLL_TORCH_VERSION}")
if(PLIMSOLL_TORCH_VERSION VERSION_LESS 2.11)
  message(FATAL_ERROR "torch: expected version >= 2.11, got ${PLIMSOLL_TORCH_VERSION}")
endif()

# torch's own CMake package, of a wheel with CUDA, ends where there is no CUDA toolkit. Nothing of CUDA is called, so its CPU
# libraries and headers do, and what its CPU wheels define for them.
add_library(plimsoll_torch INTERFACE IMPORTED GLOBAL)
target_include_directories(plimsoll_torch SYSTEM INTERFACE
                           "${PLIMSOLL_TORCH_PACKAGE}/include" "${PLIMSOLL_TORCH_PACKAGE}/include/torch/csrc/api/include")
target_compile_definitions(plimsoll_torch INTERFACE USE_C10D_GLOO USE_DISTRIBUTED USE_RPC USE_TENSORPIPE)
# A program that names no symbol of libtorch_cpu itself still needs its operators.
target_link_libraries(plimsoll_torch INTERFACE "-Wl,--no-as-needed,${PLIMSOLL_TORCH_PACKAGE}/lib/libtorch_cpu.so,--as-needed"
                                               "${PLIMSOLL_TORCH_PACKAGE}/lib/libc10.so")

# One OpenMP runtime per process: the file that libtorch itself loads (its wheel bundles one, sometimes renamed).
add_library(plimsoll_openmp INTERFACE IMPORTED GLOBAL)
target_compile_options(plimsoll_openmp INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fopenmp>)
file(GLOB bundled "${PLIMSOLL_TORCH_PACKAGE}/lib/libgomp*.so*" "${PLIMSOLL_TORCH_PACKAGE}/../torch.libs/libgomp*.so*")
if(bundled)
  list(GET bundled 0 gomp)
else()
  set(gomp gomp)
endif()
target_link_libraries(plimsoll_openmp INTERFACE "${gomp}")
