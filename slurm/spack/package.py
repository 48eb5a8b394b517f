"""Spack recipe of Tessera (Spack 1.0 and later).

Tessera is in no public repository of recipes: put this file into one of your own, and say below where your sources are.

    spack repo create my-repo            # then copy this file to packages/tessera/package.py in the directory that it names
    spack repo add my-repo/spack_repo/my_repo
    spack install tessera                          # for processors
    spack install tessera +cuda cuda_arch=90a      # for GPUs

From a working copy, without a git server: `spack install tessera@main dev_path=/path/to/tessera`.
"""

from spack_repo.builtin.build_systems.autotools import AutotoolsPackage
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class Tessera(AutotoolsPackage, CudaPackage):
    """Trains transformer language models on Slurm clusters from one C program and one input deck."""

    # ---- for your site: where the sources are ----
    homepage = "https://example.org/tessera"
    git = "https://example.org/tessera.git"
    # ---- and no further ----

    version("main", branch="main")
    version("0.1.0", tag="v0.1.0")

    variant("pmix", default=True, description="Start by srun --mpi=pmix, and ask the PMIx server who is where")
    variant("liburing", default=True, description="Files of offloaded state are moved by io_uring")
    variant("nccl", default=True, when="+cuda", description="Several GPUs in a run")
    variant("cudnn", default=True, when="+cuda", description="cuDNN's attention, where it is faster")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("autoconf@2.69:", type="build")
    depends_on("automake@1.15:", type="build")
    depends_on("libtool", type="build")  # Spack runs autoreconf only where it is there; Tessera has no use for it
    depends_on("pkgconfig", type="build")

    # Any MPI-3.1; MPICH is the one that is tested.
    depends_on("mpi@3.1:")
    depends_on("hdf5@1.10:")  # every file has one writer: parallel HDF5 does no harm and is not needed
    depends_on("libconfig@1.5:")
    depends_on("jansson")
    depends_on("pcre2")
    depends_on("utf8proc")
    depends_on("hwloc@2:")
    depends_on("onednn@2.6: cpu_runtime=omp")
    depends_on("xxhash@0.8:")
    depends_on("pmix@3:", when="+pmix")
    depends_on("liburing", when="+liburing")
    depends_on("cuda@12.8:", when="+cuda")
    depends_on("nccl", when="+nccl")
    depends_on("cudnn@9:", when="+cudnn")

    conflicts("cuda_arch=none", when="+cuda", msg="say which GPUs: cuda_arch=90a for H100 and H200")

    def gencode(self):
        """The kernels' machine code.  A program holds kernels for one architecture, and refuses any other GPU."""
        architectures = self.spec.variants["cuda_arch"].value
        if len(architectures) != 1:
            raise InstallError("tessera is built for one cuda_arch: install it once for each kind of GPU")
        return f"-gencode arch=compute_{architectures[0]},code=sm_{architectures[0]}"

    def configure_args(self):
        spec = self.spec
        args = [f"CC={spec['mpi'].mpicc}"]
        args += self.with_or_without("pmix")
        args += self.with_or_without("liburing")
        if spec.satisfies("~cuda"):
            return args + ["--without-cuda"]
        args += [f"--with-cuda={spec['cuda'].prefix}", f"NVCC_GENCODE={self.gencode()}"]
        args += self.with_or_without("nccl", activation_value="prefix")
        args += self.with_or_without("cudnn", activation_value="prefix")
        return args
