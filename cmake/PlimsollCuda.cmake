# CUDA kernels through nvcc, where there is one; no card is needed. plimsoll_ptx(result source...): PTX, to be interpreted
# (tests/ptx). plimsoll_assembler_logs(result source...): the assembler's report on each kernel and architecture
# (tools/check_cuda). Both set `result` to the files, or without nvcc to nothing.
find_program(PLIMSOLL_NVCC nvcc HINTS /usr/local/cuda/bin DOC "CUDA's compiler, for tests of its kernels without a card")
mark_as_advanced(PLIMSOLL_NVCC)

# No contraction, as on hosts: what is fused is an explicit fma. Warnings are errors.
set(PLIMSOLL_NVCC_FLAGS -std=c++20 -fmad=false -Werror all-warnings -Xptxas -Werror -I${CMAKE_SOURCE_DIR})
# From one intermediate code for those that convert FP8 and one for those that do not: no kernel asks for more.
set(PLIMSOLL_CUDA_ARCHITECTURES compute_80,code=sm_80 compute_90,code=sm_90a compute_90,code=sm_100a compute_90,code=sm_120)

# ARGN: nvcc's options beside the flags. What it prints goes to a log beside `file`.
function(plimsoll_nvcc source file comment)
  get_filename_component(directory ${file} DIRECTORY)
  set(log ${file}.log)
  list(JOIN ARGN " " options)
  list(JOIN PLIMSOLL_NVCC_FLAGS " " flags)
  add_custom_command(OUTPUT ${file} ${log}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${directory}
    COMMAND sh -c "{ ${PLIMSOLL_NVCC} --version && ${PLIMSOLL_NVCC} ${flags} ${options} -MD -MF ${file}.d ${source} -o ${file}; } > ${log} 2>&1 || { cat ${log}; exit 1; }"
    DEPENDS ${source} DEPFILE ${file}.d COMMENT ${comment} VERBATIM)
endfunction()

function(plimsoll_ptx result)
  set(files)
  foreach(source IN LISTS ARGN)
    if(PLIMSOLL_NVCC)
      cmake_path(ABSOLUTE_PATH source)
      get_filename_component(name ${source} NAME_WE)
      set(file ${CMAKE_BINARY_DIR}/ptx/${name}.ptx)
      plimsoll_nvcc(${source} ${file} "PTX of ${name}.cu" -ptx -arch=compute_90a -lineinfo)
      list(APPEND files ${file})
    endif()
  endforeach()
  set(${result} ${files} PARENT_SCOPE)
endfunction()

function(plimsoll_assembler_logs result)
  set(logs)
  set(options -fatbin -Xptxas -v)
  foreach(architecture IN LISTS PLIMSOLL_CUDA_ARCHITECTURES)
    list(APPEND options -gencode arch=${architecture})
  endforeach()
  foreach(source IN LISTS ARGN)
    if(PLIMSOLL_NVCC)
      get_filename_component(name ${source} NAME_WE)
      set(file ${CMAKE_BINARY_DIR}/ptx/${name}.fatbin)
      plimsoll_nvcc(${source} ${file} "${name}.cu for each architecture" ${options})
      list(APPEND logs ${file}.log)
    endif()
  endforeach()
  set(${result} ${logs} PARENT_SCOPE)
endfunction()
