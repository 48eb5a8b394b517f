dnl Policy: every dependency is required, and each is named with its Debian package.  All are looked for before configure
dnl stops, so that one message lists everything that is missing.

dnl TS_MISSING(WHAT, PACKAGE): remember that something is not there.
AC_DEFUN([TS_MISSING], [ts_missing="$ts_missing
  $1 (Debian: $2)"])

dnl TS_NEED_MODULE(VARIABLE, MODULE, PACKAGE): VARIABLE_CFLAGS from pkg-config; the libraries go to TS_LIBS.
AC_DEFUN([TS_NEED_MODULE],
  [PKG_CHECK_MODULES([$1], [$2], [TS_LIBS="$TS_LIBS $$1_LIBS"], [TS_MISSING([pkg-config module $2], [$3])])])

dnl TS_HDF5: Debian's module also names the libraries its MPI was made from, which need not be there; the compiler
dnl wrapper knows MPI already.
AC_DEFUN([TS_HDF5], [
  ts_hdf5=hdf5-mpich
  PKG_CHECK_EXISTS([$ts_hdf5], [], [ts_hdf5=hdf5])
  PKG_CHECK_MODULES([HDF5], [$ts_hdf5],
    [HDF5_LIBS="$($PKG_CONFIG --libs-only-L $ts_hdf5) -lhdf5"
     TS_LIBS="$TS_LIBS $HDF5_LIBS"],
    [TS_MISSING([pkg-config module hdf5-mpich or hdf5], [libhdf5-mpich-dev])])
])

dnl TS_NEED_HEADER(HEADER, PACKAGE)
AC_DEFUN([TS_NEED_HEADER], [AC_CHECK_HEADER([$1], [], [TS_MISSING([header $1], [$2])])])

dnl TS_NEED_LIBRARY(NAME, FUNCTION, PACKAGE): -lNAME is added to TS_LIBS; LIBS stays as it was.
AC_DEFUN([TS_NEED_LIBRARY],
  [AC_CHECK_LIB([$1], [$2], [TS_LIBS="$TS_LIBS -l$1"], [TS_MISSING([library $1], [$3])])])

dnl TS_MPI: MPI-3.1 that links, and its launcher in MPIEXEC.
AC_DEFUN([TS_MPI], [
  AC_CACHE_CHECK([for MPI-3.1], [ts_cv_mpi], [
    AC_LINK_IFELSE([AC_LANG_PROGRAM([[
      #include <mpi.h>
      #if MPI_VERSION < 3 || (MPI_VERSION == 3 && MPI_SUBVERSION < 1)
      #error "too old"
      #endif
      ]], [[MPI_Init (0, 0); return MPI_Finalize ();]])], [ts_cv_mpi=yes], [ts_cv_mpi=no])])
  AS_IF([test $ts_cv_mpi = no], [TS_MISSING([MPI-3.1 through CC=$CC], [libmpich-dev])])
  AC_ARG_VAR([MPIEXEC], [launcher used by make check, called as MPIEXEC -n RANKS PROGRAM])
  AC_CHECK_PROGS([MPIEXEC], [mpiexec mpirun])
  AS_IF([test -z "$MPIEXEC"], [TS_MISSING([mpiexec], [mpich])])
])

dnl TS_OPENMP: gcc has it, clang has it from a package.  OPENMP_CFLAGS.
AC_DEFUN([TS_OPENMP], [
  AC_OPENMP
  AS_IF([test "${ac_cv_prog_c_openmp:-unsupported}" = unsupported],
    [TS_MISSING([OpenMP through CC=$CC], [libomp-dev for clang, libgomp1 for gcc])])
])

dnl TS_LAUNCHER: $MPIEXEC and the library must belong together; where they do not, N ranks are N worlds of one.  A warning,
dnl because a login node may not be allowed to start MPI at all.
AC_DEFUN([TS_LAUNCHER], [
  AC_CACHE_CHECK([whether $MPIEXEC starts one world], [ts_cv_launcher], [
    AC_LINK_IFELSE([AC_LANG_PROGRAM([[
      #include <mpi.h>
      ]], [[int size; MPI_Init (0, 0); MPI_Comm_size (MPI_COMM_WORLD, &size); MPI_Finalize (); return size != 2;]])],
      [AS_IF([(. "$srcdir/regression/setup.sh" && $MPIEXEC -n 2 ./conftest$EXEEXT) > /dev/null 2>&1 < /dev/null],
         [ts_cv_launcher=yes], [ts_cv_launcher=no])])])
  AS_IF([test $ts_cv_launcher = no], [AC_MSG_WARN([$MPIEXEC -n 2 does not start one world of two ranks of $CC:
    tests on several ranks will fail.  Ubuntu 24.04's MPICH is known for this; its Open MPI works.])])
])

dnl TS_MODE: release, --enable-debug or --enable-sanitizers, and --enable-werror.  Sets TS_CFLAGS and TS_LDFLAGS, which
dnl stand before the user's CFLAGS and LDFLAGS, and TS_SANITIZE, for the stand-in of a GPU.
AC_DEFUN([TS_MODE], [
  AC_ARG_ENABLE([debug], [AS_HELP_STRING([--enable-debug], [keep assertions])], [], [enable_debug=no])
  AC_ARG_ENABLE([sanitizers], [AS_HELP_STRING([--enable-sanitizers],
    [address and undefined-behaviour sanitizers; implies --enable-debug])], [], [enable_sanitizers=no])
  AC_ARG_ENABLE([werror], [AS_HELP_STRING([--enable-werror], [warnings are errors])], [], [enable_werror=no])
  TS_CFLAGS="-std=gnu11 -fPIC -fno-semantic-interposition -Wall -Wextra -Werror=implicit-function-declaration -fno-math-errno"
  TS_LDFLAGS=
  TS_SANITIZE=
  TS_LIBS=
  ts_missing=
  AS_IF([test "$enable_sanitizers" != no], [
    enable_debug=yes
    TS_SANITIZE="-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer"
    TS_CFLAGS="$TS_CFLAGS $TS_SANITIZE"
    TS_LDFLAGS="-fsanitize=address,undefined"])
  TS_NVCCFLAGS=
  AS_IF([test "$enable_debug" = no], [TS_CFLAGS="$TS_CFLAGS -DNDEBUG" TS_NVCCFLAGS=-DNDEBUG])
  AC_SUBST([TS_NVCCFLAGS])
  AS_IF([test "$enable_werror" != no], [TS_CFLAGS="$TS_CFLAGS -Werror"])
  AM_CONDITIONAL([SANITIZERS], [test "$enable_sanitizers" != no])
  AC_SUBST([TS_CFLAGS])
  AC_SUBST([TS_LDFLAGS])
  AC_SUBST([TS_SANITIZE])
  AC_SUBST([TS_LIBS])
])

dnl TS_PMIX: used where it is found, and the summary says so; --with-pmix insists, --without-pmix does not look.  The one
dnl dependency that is not required: a machine without Slurm has no use for it.  HAVE_PMIX, PMIX_CFLAGS; libraries to TS_LIBS.
AC_DEFUN([TS_PMIX], [
  AC_ARG_WITH([pmix], [AS_HELP_STRING([--without-pmix], [no srun --mpi=pmix, which is used where libpmix-dev is found])], [],
    [with_pmix=guess])
  ts_have_pmix=no
  AS_IF([test "$with_pmix" != no], [
    PKG_CHECK_MODULES([PMIX], [pmix >= 3], [ts_have_pmix=yes TS_LIBS="$TS_LIBS $PMIX_LIBS"], [
      AS_IF([test "$with_pmix" != guess], [TS_MISSING([pkg-config module pmix], [libpmix-dev])])])])
  AM_CONDITIONAL([HAVE_PMIX], [test $ts_have_pmix = yes])
])

dnl TS_LIBURING: used where it is found, and the summary says so; --with-liburing insists, --without-liburing does not look: files
dnl of offloaded state are then moved by pread and pwrite.  HAVE_LIBURING, LIBURING_CFLAGS; libraries to TS_LIBS.
AC_DEFUN([TS_LIBURING], [
  AC_ARG_WITH([liburing], [AS_HELP_STRING([--without-liburing], [no io_uring, which is used where liburing-dev is found])], [],
    [with_liburing=guess])
  ts_have_liburing=no
  AS_IF([test "$with_liburing" != no], [
    PKG_CHECK_MODULES([LIBURING], [liburing], [ts_have_liburing=yes TS_LIBS="$TS_LIBS $LIBURING_LIBS"], [
      AS_IF([test "$with_liburing" != guess], [TS_MISSING([pkg-config module liburing], [liburing-dev])])])])
  AM_CONDITIONAL([HAVE_LIBURING], [test $ts_have_liburing = yes])
])

dnl TS_DYGRAPHS: the curves of `tessera report`; files are put into the program.  DYGRAPHS_JS, DYGRAPHS_CSS.
AC_DEFUN([TS_DYGRAPHS], [
  AC_ARG_WITH([dygraphs], [AS_HELP_STRING([--with-dygraphs=DIR],
    [where dygraph.min.js and dygraph.min.css are (default: /usr/share/javascript/dygraphs, from libjs-dygraphs, where it
     is there); without it reports have plain curves])], [], [with_dygraphs=guess])
  ts_dygraphs=$with_dygraphs
  AS_CASE([$with_dygraphs], [guess|yes], [ts_dygraphs=/usr/share/javascript/dygraphs])
  DYGRAPHS_JS=- DYGRAPHS_CSS=- ts_have_dygraphs=no
  AS_IF([test "$with_dygraphs" != no], [
    AS_IF([test -f "$ts_dygraphs/dygraph.min.js" && test -f "$ts_dygraphs/dygraph.min.css"],
      [DYGRAPHS_JS=$ts_dygraphs/dygraph.min.js DYGRAPHS_CSS=$ts_dygraphs/dygraph.min.css ts_have_dygraphs=yes],
      [AS_IF([test "$with_dygraphs" != guess],
        [TS_MISSING([dygraph.min.js and dygraph.min.css in $ts_dygraphs], [libjs-dygraphs])])])])
  AC_SUBST([DYGRAPHS_JS])
  AC_SUBST([DYGRAPHS_CSS])
])

dnl TS_ISA: kernels are compiled again for x86-64-v3 and -v4 where the compiler can.  HAVE_X86_64, TS_HAVE_X86_64,
dnl CPU_V3_CFLAGS, CPU_V4_CFLAGS.
AC_DEFUN([TS_ISA], [
  CPU_V3_CFLAGS="-march=x86-64-v3"
  CPU_V4_CFLAGS="-march=x86-64-v4 -mavx512bf16"
  AC_CACHE_CHECK([for x86-64-v3 and x86-64-v4 code], [ts_cv_isa], [
    ts_cv_isa=yes
    ts_save_CFLAGS=$CFLAGS
    for ts_flags in "$CPU_V3_CFLAGS" "$CPU_V4_CFLAGS"; do
      CFLAGS="$ts_save_CFLAGS $ts_flags"
      AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[
        #ifndef __x86_64__
        #error "another machine"
        #endif
        #include <immintrin.h>]])], [], [ts_cv_isa=no])
    done
    CFLAGS=$ts_save_CFLAGS])
  AS_IF([test $ts_cv_isa = yes], [AC_DEFINE([TS_HAVE_X86_64], [1], [Kernels exist for x86-64-v3 and -v4])])
  AM_CONDITIONAL([HAVE_X86_64], [test $ts_cv_isa = yes])
  AC_SUBST([CPU_V3_CFLAGS])
  AC_SUBST([CPU_V4_CFLAGS])
])

dnl TS_CUDA: --with-cuda=DIR must work; without the option a toolkit is used where one is found and the summary says so.  NCCL and
dnl cuDNN are looked for in the toolkit's directory, --with-nccl=DIR and --with-cudnn=DIR.  HAVE_CUDA, HAVE_NCCL, HAVE_CUDNN; NVCC,
dnl NVCC_GENCODE, CUDA_CPPFLAGS, CUDA_LIBS.  The driver's library is never linked: a program must start where there is none;
dnl cuBLASLt is opened by the first call of it (cuda/cublaslt.c).
AC_DEFUN([TS_CUDA], [
  AC_ARG_WITH([cuda], [AS_HELP_STRING([--with-cuda=DIR], [CUDA toolkit (default: where nvcc is, or /usr/local/cuda)])], [], [with_cuda=guess])
  AC_ARG_WITH([nccl], [AS_HELP_STRING([--with-nccl=DIR], [NCCL (default: in the toolkit)])], [], [with_nccl=guess])
  AC_ARG_WITH([cudnn], [AS_HELP_STRING([--with-cudnn=DIR], [cuDNN 9 (default: in the toolkit)])], [], [with_cudnn=guess])
  AC_ARG_VAR([NVCC], [CUDA compiler])
  AC_ARG_VAR([NVCC_GENCODE], [architecture of the kernels])
  AC_ARG_VAR([NVCCFLAGS], [flags for nvcc])
  : ${NVCC_GENCODE="-gencode arch=compute_90a,code=sm_90a"}
  : ${NVCCFLAGS="-O3"}
  CUDA_CPPFLAGS= CUDA_LIBS= ts_have_cuda=no ts_have_nccl=no ts_have_cudnn=no
  ts_cuda_dir=$with_cuda
  AS_IF([test "$with_cuda" = guess || test "$with_cuda" = yes], [
    AC_PATH_PROG([NVCC], [nvcc], [], [$PATH:/usr/local/cuda/bin])
    AS_IF([test -n "$NVCC"], [ts_cuda_dir=$(dirname "$(dirname "$(readlink -f "$NVCC")")")])
  ], [test "$with_cuda" != no], [: ${NVCC="$with_cuda/bin/nvcc"}])
  AS_IF([test "$with_cuda" != no && test -n "$NVCC"], [
    CUDA_CPPFLAGS="-I$ts_cuda_dir/include"
    CUDA_LIBS="-L$ts_cuda_dir/lib64 -Wl,-rpath,$ts_cuda_dir/lib64 -lcudart -lstdc++"
    AC_CACHE_CHECK([whether $NVCC makes kernels for $NVCC_GENCODE], [ts_cv_cuda], [
      ts_cv_cuda=no
      echo '#include <cublasLt.h>
        __global__ void f (int *x) { *x = 1; }
        extern "C" int start () { f<<<1, 1>>> (0); return (int) cublasLtGetVersion (); }' > conftest.cu
      AS_IF([$NVCC -ccbin "$CXX" -std=c++17 $NVCC_GENCODE -c -o conftest_cu.o conftest.cu >&AS_MESSAGE_LOG_FD 2>&1], [
        ts_save_LIBS=$LIBS
        LIBS="conftest_cu.o $CUDA_LIBS -lcublasLt $LIBS"
        AC_LINK_IFELSE([AC_LANG_PROGRAM([[int start (void);]], [[return start ();]])], [ts_cv_cuda=yes])
        LIBS=$ts_save_LIBS])
      rm -f conftest.cu conftest_cu.o])
    ts_have_cuda=$ts_cv_cuda])
  AS_IF([test $ts_have_cuda = yes], [AC_SEARCH_LIBS([dlopen], [dl])])
  AS_IF([test $ts_have_cuda = no && test "$with_cuda" != no && test "$with_cuda" != guess],
    [AC_MSG_ERROR([--with-cuda=$with_cuda: no nvcc there that makes and links kernels with cuBLASLt; see config.log])])
  AS_IF([test $ts_have_cuda = yes], [
    TS_CUDA_LIBRARY([nccl], [nccl.h], [ncclGetVersion], [int v; return ncclGetVersion (&v);])
    TS_CUDA_LIBRARY([cudnn], [cudnn.h], [cudnnGetVersion],
      [int a = CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR; return a + (int) cudnnGetVersion ();])
  ], [CUDA_CPPFLAGS= CUDA_LIBS=])
  CUDA_ARCHITECTURE=$(echo "$NVCC_GENCODE" | sed 's/.*sm_\([[0-9]]*\).*/\1/')
  AS_IF([test $ts_have_cuda = yes && test "$(echo "$NVCC_GENCODE" | tr -c 'a-z0-9_' '\n' | grep -c '^sm_@<:@0-9@:>@*@<:@af@:>@*$')" != 1],
    [AC_MSG_ERROR([NVCC_GENCODE="$NVCC_GENCODE" must name one architecture, such as "-gencode arch=compute_90a,code=sm_90a": kernels are
      built for one, and a program checks at its start that the GPU is of it])])
  AM_CONDITIONAL([HAVE_CUDA], [test $ts_have_cuda = yes])
  AM_CONDITIONAL([HAVE_NCCL], [test $ts_have_nccl = yes])
  AM_CONDITIONAL([HAVE_CUDNN], [test $ts_have_cudnn = yes])
  AC_SUBST([CUDA_CPPFLAGS])
  AC_SUBST([CUDA_LIBS])
  AC_SUBST([CUDA_ARCHITECTURE])
  CUDA_WARPGROUPS=$(case $NVCC_GENCODE in *sm_90a*) echo 1 ;; *) echo 0 ;; esac) # what sm_90a alone has
  AC_SUBST([CUDA_WARPGROUPS])
])

dnl TS_CUDA_LIBRARY(NAME, HEADER, FUNCTION, PROGRAM): a library that is used where it is there: ts_have_NAME, CUDA_CPPFLAGS, CUDA_LIBS.
AC_DEFUN([TS_CUDA_LIBRARY], [
  AS_IF([test "$with_$1" != no], [
    AC_CACHE_CHECK([for $1], [ts_cv_$1], [
      ts_cv_$1=no
      ts_save_LIBS=$LIBS ts_save_CPPFLAGS=$CPPFLAGS
      AS_IF([test "$with_$1" = guess || test "$with_$1" = yes], [ts_dir=], [ts_dir="$with_$1"])
      CPPFLAGS="${ts_dir:+-I$ts_dir/include} $CUDA_CPPFLAGS $CPPFLAGS"
      LIBS="${ts_dir:+-L$ts_dir/lib} -l$1 $CUDA_LIBS $LIBS"
      AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <$2>]], [[$4]])], [ts_cv_$1=yes])
      LIBS=$ts_save_LIBS CPPFLAGS=$ts_save_CPPFLAGS])
    ts_have_$1=$ts_cv_$1
    AS_IF([test $ts_have_$1 = yes], [
      AS_IF([test "$with_$1" != guess && test "$with_$1" != yes], [
        CUDA_CPPFLAGS="-I$with_$1/include $CUDA_CPPFLAGS"
        CUDA_LIBS="-L$with_$1/lib -Wl,-rpath,$with_$1/lib $CUDA_LIBS"])
      CUDA_LIBS="-l$1 $CUDA_LIBS"
    ], [test "$with_$1" != guess], [AC_MSG_ERROR([--with-$1=$with_$1: not found; see config.log])])])
])

dnl TS_CXX: a C++17 compiler, for the kernels and for the stand-in that tests them where there is no GPU.  HAVE_CXX.
AC_DEFUN([TS_CXX], [
  AC_CACHE_CHECK([whether $CXX compiles C++17], [ts_cv_cxx], [
    AC_LANG_PUSH([C++])
    ts_save_CXXFLAGS=$CXXFLAGS
    CXXFLAGS="$CXXFLAGS -std=c++17"
    AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[#include <memory>]], [[auto x = std::make_unique<int>(0); return *x;]])],
      [ts_cv_cxx=yes], [ts_cv_cxx=no])
    CXXFLAGS=$ts_save_CXXFLAGS
    AC_LANG_POP([C++])])
  AM_CONDITIONAL([HAVE_CXX], [test $ts_cv_cxx = yes])
])

dnl TS_REPORT_MISSING: stop with the whole list, or when what was found does not link together.
AC_DEFUN([TS_REPORT_MISSING], [
  AS_IF([test -n "$ts_missing"], [AC_MSG_ERROR([missing:$ts_missing])])
  AC_MSG_CHECKING([that all libraries link])
  ts_save_LIBS=$LIBS
  LIBS="$TS_LIBS $LIBS"
  AC_LINK_IFELSE([AC_LANG_CALL([], [H5open])], [AC_MSG_RESULT([yes])],
    [AC_MSG_RESULT([no])
     AC_MSG_ERROR([a program does not link with $TS_LIBS; see config.log])])
  LIBS=$ts_save_LIBS
])

dnl TS_PACKAGING: what was chosen, for the module file and the pkg-config file.
AC_DEFUN([TS_PACKAGING], [
  module_features=
  pc_cuda_arch=
  AS_IF([test $ts_have_cuda = yes], [
    module_features=", CUDA for sm_$CUDA_ARCHITECTURE"
    pc_cuda_arch=$CUDA_ARCHITECTURE
    AS_IF([test $ts_have_nccl = yes], [module_features="$module_features, NCCL"])
    AS_IF([test $ts_have_cudnn = yes], [module_features="$module_features, cuDNN"])])
  AS_IF([test $ts_have_pmix = yes], [module_features="$module_features, PMIx"])
  AC_SUBST([module_features])
  AC_SUBST([pc_cuda_arch])
  AC_SUBST([ts_have_cuda])
  AC_SUBST([ts_have_nccl])
  AC_SUBST([ts_have_cudnn])
  AC_SUBST([ts_have_pmix])
  AC_SUBST([ts_have_liburing])
])

dnl TS_SUMMARY: what was chosen.
AC_DEFUN([TS_SUMMARY], [
  cat <<SUMMARY

  tessera $PACKAGE_VERSION
    host          $host
    compiler      $CC $TS_CFLAGS $CFLAGS
    assertions    $enable_debug
    sanitizers    $enable_sanitizers
    kernels       generic$(test $ts_cv_isa = yes && echo " x86-64-v3 x86-64-v4")
    CUDA          $(test $ts_have_cuda = yes && echo "$NVCC ($NVCC_GENCODE)" || echo "no: trains on processors only (--with-cuda=DIR)")
    NCCL          $(test $ts_have_cuda = yes && test $ts_have_nccl = no && echo "no: one GPU a run only (--with-nccl=DIR)" || echo $ts_have_nccl)
    cuDNN         $ts_have_cudnn
    HDF5          $HDF5_LIBS
    PMIx          $(test $ts_have_pmix = yes && echo yes || echo "no: no srun --mpi=pmix with MPICH, only --mpi=pmi2 and mpiexec (Debian: libpmix-dev)")
    io_uring      $ts_have_liburing (liburing-dev)
    dygraphs      $ts_have_dygraphs (libjs-dygraphs: curves of reports that can be zoomed)
    launcher      $MPIEXEC
    install to    $prefix

SUMMARY
])
