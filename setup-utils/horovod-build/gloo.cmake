# allreduce.cc and allreduce_local.cc give different things the name ReductionFunction.
cmake_language(
  DEFER CALL set_source_files_properties "${CMAKE_CURRENT_SOURCE_DIR}/gloo/allreduce_local.cc"
  TARGET_DIRECTORY gloo PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
