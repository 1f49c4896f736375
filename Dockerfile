# An image in which this toolkit is installed; docs/many-hosts.md says how to use it on one host and on several.
#
#   docker build -t toolkit .
#   docker build -t toolkit:cu112 --build-arg BASE=nvidia/cuda:11.2.2-cudnn8-devel-ubuntu20.04 \
#       --build-arg PYTHON=python3.9 --build-arg MXNET_PACKAGE=mxnet-cu112 .
#
# BASE             Debian or Ubuntu; for GPUs with the CUDA toolkit of the package's version, cuDNN and NCCL (docs/gpu.md)
# PYTHON           its package of a Python from 3.9 to 3.12
# MXNET_PACKAGE    as for `make env`
ARG BASE=debian:bookworm-slim
FROM ${BASE}
ARG PYTHON=python3
ARG MXNET_PACKAGE=mxnet

# A compiler and make for Horovod and for Numba's cache; ssh, by which launchers start ranks on other hosts.
RUN apt-get update && \
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        build-essential ca-certificates openssh-client openssh-server ${PYTHON} ${PYTHON}-venv && \
    rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_*

# mpirun refuses to run as root. The group and user numbers are those that most systems give their first user, so that
# folders of that user can be mounted.
RUN groupadd --gid 1000 trainer && \
    useradd --uid 1000 --gid trainer --create-home --shell /bin/bash trainer && \
    install --directory --owner trainer --group trainer /toolkit

# An ssh server that needs no root: `/usr/sbin/sshd -De -f /etc/ssh/sshd_trainer`. The folder with the keys is mounted at
# /home/trainer/.ssh, under the names that Kubernetes' MPI operator gives them; one key stands for all hosts and the user.
RUN printf '%s\n' 'Port 2222' 'HostKey /home/trainer/.ssh/id_rsa' 'PidFile none' 'UsePAM no' 'StrictModes no' \
        'PasswordAuthentication no' 'KbdInteractiveAuthentication no' >/etc/ssh/sshd_trainer && \
    printf '%s\n' 'Host *' '    Port 2222' '    StrictHostKeyChecking accept-new' '    BatchMode yes' \
        >/etc/ssh/ssh_config.d/trainer.conf

USER trainer
WORKDIR /toolkit

# First what the installation reads, so that a change elsewhere does not build Horovod again.
COPY --chown=trainer:trainer requirements.lock requirements-single.lock ./
COPY --chown=trainer:trainer runtime/__init__.py runtime/processors.py runtime/
COPY --chown=trainer:trainer setup-utils setup-utils
RUN PYTHON=${PYTHON} MXNET_PACKAGE=${MXNET_PACKAGE} bash setup-utils/install.sh
COPY --chown=trainer:trainer . .

# Containers may not copy between processes in one step (CMA), which Open MPI finds out at its first long message.
ENV VIRTUAL_ENV=/toolkit/.venv \
    PATH=/toolkit/.venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    OMPI_MCA_btl_vader_single_copy_mechanism=none

CMD ["bash", "run.sh"]
