# CUDA kernels through nvcc, where there is one; no card is needed. plimsoll_ptx(result source...): PTX, to be interpreted
# (tests/ptx). plimsoll_assembler_logs(result source...), after it: the assembler's report on each kernel (tools/check_cuda). Both set
# `result` to the files, or without nvcc to nothing. plimsoll_device_images(result source...): a C++ source with the code of all of them
# for each architecture (kernels/cuda/device_images.h), or without PLIMSOLL_CUDA with none.
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
  set(depfile)
  if(source MATCHES "[.]cu$")
    set(depfile DEPFILE ${file}.d)
    list(APPEND ARGN -MD -MF ${file}.d)
  endif()
  list(JOIN ARGN " " options)
  list(JOIN PLIMSOLL_NVCC_FLAGS " " flags)
  add_custom_command(OUTPUT ${file} ${log}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${directory}
    COMMAND sh -c "{ ${PLIMSOLL_NVCC} --version && ${PLIMSOLL_NVCC} ${flags} ${options} ${source} -o ${file}; } > ${log} 2>&1 || { cat ${log}; exit 1; }"
    DEPENDS ${source} ${depfile} COMMENT ${comment} VERBATIM)
endfunction()

function(plimsoll_ptx result)
  set(files)
  foreach(source IN LISTS ARGN)
    if(PLIMSOLL_NVCC)
      cmake_path(ABSOLUTE_PATH source)
      get_filename_component(name ${source} NAME_WE)
      set(file ${CMAKE_BINARY_DIR}/ptx/${name}.ptx)
      plimsoll_nvcc(${source} ${file} "PTX of ${name}.cu" -ptx -arch=compute_90 -lineinfo)
      list(APPEND files ${file})
    endif()
  endforeach()
  set(${result} ${files} PARENT_SCOPE)
endfunction()

# With PLIMSOLL_CUDA of the code that programs carry; without it of the PTX for one architecture, a quarter of the time.
function(plimsoll_assembler_logs result)
  set(logs)
  set(every -fatbin -Xptxas -v)
  foreach(architecture IN LISTS PLIMSOLL_CUDA_ARCHITECTURES)
    list(APPEND every -gencode arch=${architecture})
  endforeach()
  foreach(source IN LISTS ARGN)
    if(PLIMSOLL_NVCC)
      get_filename_component(name ${source} NAME_WE)
      set(stem ${CMAKE_BINARY_DIR}/ptx/${name})
      if(PLIMSOLL_CUDA)
        set(file ${stem}.fatbin)
        plimsoll_nvcc(${source} ${file} "${name}.cu for each architecture" ${every})
      else()
        set(file ${stem}.cubin)
        plimsoll_nvcc(${stem}.ptx ${file} "${name}.cu for sm_90a" -cubin -Xptxas -v -arch=sm_90a)
      endif()
      list(APPEND logs ${file}.log)
    endif()
  endforeach()
  set(${result} ${logs} PARENT_SCOPE)
endfunction()

# SHA-256 of the sources of device code, for which a card's report (docs/results/gpu.json) holds.
function(plimsoll_device_sources_hash result)
  file(GLOB sources CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR}
       ${CMAKE_SOURCE_DIR}/plimsoll/format/*.h ${CMAKE_SOURCE_DIR}/plimsoll/kernels/cuda/*.cuh
       ${CMAKE_SOURCE_DIR}/plimsoll/kernels/*/*.cu ${CMAKE_SOURCE_DIR}/plimsoll/kernels/*/*_element.h
       ${CMAKE_SOURCE_DIR}/plimsoll/kernels/*/*_launch.h)
  list(SORT sources)
  set(all)
  foreach(source IN LISTS sources)
    file(SHA256 ${CMAKE_SOURCE_DIR}/${source} hash)
    string(APPEND all "${hash} ${source}\n")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${source})
  endforeach()
  string(SHA256 hash "${all}")
  set(${result} ${hash} PARENT_SCOPE)
endfunction()

# "CARD at COMMIT" if the report is of these sources and all of it passed, else nothing.
function(plimsoll_verified_on hash result)
  set(report ${CMAKE_SOURCE_DIR}/docs/results/gpu.json)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${report})
  set(text "")
  if(EXISTS ${report})
    file(READ ${report} json)
    string(JSON of GET "${json}" sources)
    string(JSON passed GET "${json}" passed)
    if(of STREQUAL hash AND passed)
      string(JSON card GET "${json}" card)
      string(JSON commit GET "${json}" commit)
      set(text "${card} at ${commit}")
    endif()
  endif()
  set(${result} "${text}" PARENT_SCOPE)
endfunction()

function(plimsoll_device_images result)
  if(PLIMSOLL_CUDA AND NOT PLIMSOLL_NVCC)
    message(FATAL_ERROR "PLIMSOLL_CUDA: expected nvcc on the path or in /usr/local/cuda/bin, found none")
  endif()
  set(images)
  set(symbols)
  set(hash "")
  set(verified_on "")
  set(content "#include \"plimsoll/kernels/cuda/device_images.h\"\n\n")
  if(PLIMSOLL_CUDA)
    plimsoll_device_sources_hash(hash)
    plimsoll_verified_on(${hash} verified_on)
    foreach(source IN LISTS ARGN)
      get_filename_component(name ${source} NAME_WE)
      set(image ${CMAKE_BINARY_DIR}/ptx/${name}.fatbin)
      set(symbol plimsoll_image_${name})
      list(APPEND images ${image})
      list(APPEND symbols ${symbol})
      string(APPEND content
             "__asm__(\".pushsection .rodata\\n.balign 64\\n${symbol}:\\n.incbin \\\"${image}\\\"\\n.popsection\");\n"
             "extern \"C\" __attribute__((visibility(\"hidden\"))) const char ${symbol}[];\n\n")
    endforeach()
  endif()
  list(JOIN symbols ", " list)
  set(body "  return {};\n")
  if(symbols)
    set(body "  static const void* const kImages[] = {${list}};\n  return kImages;\n")
  endif()
  string(APPEND content "namespace plimsoll::kernels::cuda {\n\n"
         "std::span<const void* const> device_images() {\n${body}}\n\n"
         "std::string_view device_sources() { return \"${hash}\"; }\n\n"
         "std::string_view verified_on() { return \"${verified_on}\"; }\n\n"
         "}  // namespace plimsoll::kernels::cuda\n")
  set(file ${CMAKE_CURRENT_BINARY_DIR}/device_images.cpp)
  file(CONFIGURE OUTPUT ${file} CONTENT "${content}" @ONLY)
  set_source_files_properties(${file} PROPERTIES OBJECT_DEPENDS "${images}")
  set(${result} ${file} PARENT_SCOPE)
endfunction()
